"""Folders of checkpoints: whole or refused by name; published, kept and removed safely."""

from __future__ import annotations

import os
import shutil

import pytest
from written_checkpoints import at, names, write

from pipeline.checkpoint import files as checkpoint_files
from pipeline.checkpoint.files import (
    list_checkpoints,
    newest_whole,
    step_name,
    verify,
    whole_checkpoint,
)
from pipeline.checkpoint.retention import finish_publishing, remove_leftovers, remove_old, set_aside
from pipeline.errors import CheckpointError


def test_published_checkpoint_is_whole_and_latest(folder, state):
    final = write(folder, state, 100)
    assert final.name == "step-000000100"
    assert names(folder) == ["latest", "step-000000100"]
    assert (folder / "latest").read_text() == "step-000000100\n"
    assert verify(final) == at(state, 100)
    assert whole_checkpoint(final) == (final, at(state, 100))


def test_a_checkpoint_replaces_a_refused_one_of_its_step(folder, state):
    final = write(folder, state, 2)
    (final / "a.pt").write_bytes(b"torn")
    write(folder, state, 2)
    assert verify(final).step == 2
    assert names(folder) == ["latest", "step-000000002"]


def test_latest_is_what_a_start_reads(folder, state):
    for step in (1, 2, 3):
        write(folder, state, step)
    (folder / "latest").write_text("step-000000002\n")
    found = newest_whole(folder)
    assert found is not None
    assert found.path == folder / step_name(2)
    (folder / "latest").write_text("step-000000009\n")  # gone: the newest that is there
    found = newest_whole(folder)
    assert found is not None
    assert found.path == folder / step_name(3)


def test_a_publication_that_was_cut_short_is_finished(folder, state):
    """Killed after the checkpoint had its name, and before `latest` said so."""
    write(folder, state, 1)
    final = write(folder, state, 2)
    (folder / "latest").write_text("step-000000001\n")
    finish_publishing(folder)
    assert (folder / "latest").read_text() == "step-000000001\n"  # nobody was publishing
    (folder / f".saving-{final.name}").mkdir()
    finish_publishing(folder)
    assert (folder / "latest").read_text() == "step-000000002\n"
    os.rename(final, folder / f".replaced-{final.name}")
    finish_publishing(folder)
    assert verify(final).step == 2


def test_a_run_a_folder_or_a_checkpoint_can_be_named(folder, state):
    final = write(folder, state, 7)
    for path in (folder.parent, folder, final):
        assert whole_checkpoint(path)[0] == final
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        whole_checkpoint(folder.parent.parent / "other")


def test_refused_checkpoints_are_set_aside(folder, state):
    second = [write(folder, state, step) for step in (1, 2)][1]
    assert set_aside(second).name == "refused-step-000000002"
    assert [path.name for path in list_checkpoints(folder)] == ["step-000000001"]
    second = write(folder, state, 2)
    assert set_aside(second).name == "refused-step-000000002.2"  # the first one stays


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [(1, None, [60]), (2, None, [50, 60]), (1, 20, [20, 40, 60]), (2, 40, [40, 50, 60])],
)
def test_retention(folder, state, keep_last, keep_every, kept):
    for step in range(10, 70, 10):
        write(folder, state, step)
    remove_old(folder, keep_last, keep_every)
    assert [path.name for path in list_checkpoints(folder)] == [step_name(k) for k in kept]


def test_retention_counts_back_from_latest(folder, state):
    """What is newer than `latest` belongs to another line and pushes nothing out."""
    for step in (10, 20, 30, 40):
        write(folder, state, step)
    (folder / "latest").write_text("step-000000020\n")
    assert remove_old(folder, 1, None) == [folder / step_name(10)]
    assert [int(path.name[5:]) for path in list_checkpoints(folder)] == [20, 30, 40]


def test_kill_while_publishing_leaves_the_old_ones(folder, state, monkeypatch):
    """Whatever the operation at which it ends, an old or the new checkpoint is found."""
    write(folder, state, 1)
    for count in range(1, 6):
        done = []

        def killed_at(name, done=done, count=count):
            real = getattr(checkpoint_files, name)

            def operation(*arguments):
                done.append(name)
                if len(done) == count:
                    raise KeyboardInterrupt
                return real(*arguments)

            return operation

        with monkeypatch.context() as patch:
            for name in ("write_atomically", "sync_files", "sync_directory"):
                patch.setattr(checkpoint_files, name, killed_at(name))
            with pytest.raises(KeyboardInterrupt):
                write(folder, state, 2)
        found = newest_whole(folder)
        assert found is not None
        assert not found.refused, "a half checkpoint has a name"
        assert found.path.name in (step_name(1), step_name(2))
        (folder / ".latest.13075.tmp").write_text("step-")  # killed before its name was given
        remove_leftovers(folder)
        assert not list(folder.glob(".*"))
        shutil.rmtree(folder / step_name(2), ignore_errors=True)
