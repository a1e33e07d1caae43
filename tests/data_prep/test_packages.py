"""Packages that are not there, or that something of their name hides."""

from __future__ import annotations

import sys

import pytest

from data_prep.packages import PackageError, import_package

PROBES = {
    "folder": "is not installed ({folder}/probed is a folder of that name): pip install probed",
    "file": "is hidden by {folder}/probed.py: rename that, or start in another folder",
    "package": "is hidden by {folder}/probed/__init__.py: rename that, or start in another folder",
    "nothing": "is not installed: pip install probed",
    "broken": "cannot be imported (No module named 'not_there_either'): pip install probed",
}


@pytest.mark.parametrize("what", PROBES)
def test_what_has_the_name_of_a_package_is_not_taken_for_it(tmp_path, monkeypatch, what):
    """W&B makes a folder `wandb`, and many a project has a folder `datasets`."""
    monkeypatch.syspath_prepend(tmp_path)
    if what in ("folder", "package"):
        (tmp_path / "probed").mkdir()
    if what == "package":
        (tmp_path / "probed" / "__init__.py").touch()
    if what in ("file", "broken"):
        text = "import not_there_either\n" if what == "broken" else ""
        (tmp_path / "probed.py").write_text(text)
    with pytest.raises(PackageError) as caught:
        import_package("probed", "run")
    assert str(caught.value) == PROBES[what].format(folder=tmp_path)
    assert "probed" not in sys.modules


def test_a_package_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "probed_too.py").write_text("run = 3\n")
    assert import_package("probed_too", "run").run == 3
    del sys.modules["probed_too"]


def test_a_file_that_hides_datasets_is_named(tmp_path, monkeypatch, run):
    (tmp_path / "datasets.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    given = ("--input", tmp_path, "--output", tmp_path / "out", "--vocab-size", "300")
    code, _, error = run("tokenizer", "--source", "hf", *given)
    assert (code, error.count("\n")) == (2, 1)
    assert f"datasets, which is hidden by {tmp_path}/datasets.py: rename that" in error
