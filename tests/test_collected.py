"""pytest finds every test: its own list of folders that it does not enter has `build`."""

from fnmatch import fnmatch
from pathlib import Path

import pytest


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config):
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    assert len(folders) > 20
    skipped = pytestconfig.getini("norecursedirs")
    assert not {f for f in folders for part in f.parts for s in skipped if fnmatch(part, s)}
