"""Folders of checkpoints: whole or refused by name; published, kept and removed safely."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from pipeline.checkpoint import files as checkpoint_files
from pipeline.checkpoint.files import (
    list_checkpoints,
    newest_whole,
    publish,
    step_name,
    verify,
    whole_checkpoint,
)
from pipeline.checkpoint.retention import finish_publishing, remove_leftovers, remove_old, set_aside
from pipeline.checkpoint.trainer_state import TrainerState, first_state
from pipeline.config.run import load_config
from pipeline.errors import CheckpointError, OtherVersionError, UnreadableError


@pytest.fixture
def state(toy_config):
    return first_state(load_config(toy_config), "f" * 64, 2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


def at(state: TrainerState, step: int) -> TrainerState:
    return replace(state, step=step, samples=8 * step, tokens=100 * step)


def write(folder, state, step):
    """Publishes a checkpoint of two files of 1,000 bytes."""
    staged = folder / f".saving-{step}"
    staged.mkdir(parents=True)
    for name in ("a.pt", "b.pt"):
        (staged / name).write_bytes(bytes([step % 256]) * 1000)
    final = folder / step_name(step)
    publish(staged, final, at(state, step))
    return final


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


def truncate(final):
    os.truncate(final / "a.pt", 500)


def flip(final):
    data = bytearray((final / "b.pt").read_bytes())
    data[500] ^= 4
    (final / "b.pt").write_bytes(data)


def remove(final):
    (final / "a.pt").unlink()


def swap(final):
    shutil.copy(final.parent / step_name(1) / "a.pt", final / "a.pt")


def forge(final):
    manifest = json.loads((final / "manifest.json").read_text())
    del manifest["files"]["a.pt"]
    (final / "manifest.json").write_text(json.dumps(manifest))


def tear(final):
    os.truncate(final / "manifest.json", 30)


def lose_manifest(final):
    (final / "manifest.json").unlink()


def alter_state(final):
    text = (final / "state.json").read_text()
    (final / "state.json").write_text(text.replace('"step": 2', '"step": 3'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "a.pt has 500 bytes, not 1000"),
        (flip, "b.pt was altered"),
        (remove, "a.pt is missing"),
        (swap, "a.pt was altered"),
        (forge, "manifest.json was altered"),
        (tear, "manifest.json cannot be read"),
        (lose_manifest, "manifest.json is missing"),
        (alter_state, "state.json was altered"),
    ],
)
def test_damage_is_found_and_the_one_before_taken(folder, state, damage, words):
    first, second = write(folder, state, 1), write(folder, state, 2)
    damage(second)
    found = newest_whole(folder)
    assert found is not None
    assert (found.path, found.state) == (first, at(state, 1))
    ((path, reason),) = found.refused
    assert path == second
    assert words in reason
    assert str(second) in reason
    with pytest.raises(CheckpointError, match=r"give (a run|a whole one)"):
        whole_checkpoint(second)


def test_nothing_whole_is_an_error_and_nothing_at_all_is_not(folder, state):
    assert newest_whole(folder.parent / "absent") is None
    final = write(folder, state, 1)
    truncate(final)
    with pytest.raises(CheckpointError, match=r"the only checkpoint .*resume=none"):
        newest_whole(folder)
    set_aside(final)
    with pytest.raises(CheckpointError, match=r"all refused .*checkpoint.resume=none"):
        newest_whole(folder)
    shutil.rmtree(folder / "refused-step-000000001")
    with pytest.raises(CheckpointError, match=r"latest names step-000000001.*resume=none"):
        newest_whole(folder)


def reseal(final, name, change):
    """Alters a file and makes the manifest fit it, as another program would have written both."""
    path = final / name
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    if name == "manifest.json":
        return
    manifest = json.loads((final / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][name] = checkpoint_files._record(path)
    manifest["sha256"] = checkpoint_files._digest_of(manifest)
    (final / "manifest.json").write_text(json.dumps(manifest))


def another_format(final):
    reseal(final, "manifest.json", lambda values: values.update(format_version=99))


def another_state(final):
    reseal(final, "state.json", lambda values: values.update(state_version=99))


def more_fields(final):
    reseal(final, "state.json", lambda values: values.update(mood="good"))


@pytest.mark.parametrize("change", [another_format, another_state, more_fields])
def test_another_version_is_no_damage(folder, state, change):
    """The one before is not taken instead: a few thousand steps would be lost for a wrong venv."""
    write(folder, state, 1)
    change(write(folder, state, 2))
    with pytest.raises(OtherVersionError, match="go on with the program that wrote"):
        newest_whole(folder)


@pytest.mark.parametrize("name", ["manifest.json", "a.pt", "state.json"])
def test_what_cannot_be_read_for_now_is_no_damage(folder, state, name, monkeypatch):
    write(folder, state, 1)
    second = write(folder, state, 2)
    plain = open

    def refuse(file, *arguments, **options):
        if str(file) == str(second / name):
            raise OSError(5, "Input/output error", str(file))
        return plain(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("io.open", refuse)
    with pytest.raises(UnreadableError, match=rf"{name} cannot be read \(Input/output error\)"):
        newest_whole(folder)


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(folder, state, monkeypatch):
    write(folder, state, 1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UnreadableError, match=r"cannot be read \(Permission denied\)"):
        newest_whole(folder)


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
        remove_leftovers(folder)
        assert not list(folder.glob(".*"))
        shutil.rmtree(folder / step_name(2), ignore_errors=True)


def test_a_checkpoint_of_another_version_is_refused_and_stays(folder, state):
    """Before phi_beta had a map for either sibling a checkpoint had version 2."""
    for step in (1, 2):
        old = replace(at(state, step), state_version=2, git_revision="0123abc")
        write(folder, old, step)
    before = names(folder)
    message = (
        f"checkpoint {folder / step_name(2)}: its state has version 2, this program "
        f"reads 3; go on with the program that wrote it (revision 0123abc), or export"
    )
    with pytest.raises(OtherVersionError, match=re.escape(message)):
        newest_whole(folder)
    assert names(folder) == before
