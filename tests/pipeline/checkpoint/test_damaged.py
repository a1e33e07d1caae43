"""Checkpoints that are damaged, of another version, or unreadable for now are told apart."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from written_checkpoints import at, names, write

from pipeline.checkpoint import files as checkpoint_files
from pipeline.checkpoint.files import (
    newest_whole,
    step_name,
    whole_checkpoint,
)
from pipeline.checkpoint.retention import set_aside
from pipeline.errors import CheckpointError, OtherVersionError, UnreadableError


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
