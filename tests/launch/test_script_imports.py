"""What pyright does not read: Python in shell scripts and documents imports names that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "launch", "tests")
IMPORT = re.compile(r"^\s*from ((?:data_prep|gpst|launch|pipeline)[\w.]*) import ([\w, ]+)", re.M)


def imports() -> list[tuple[str, str, str]]:
    """File, module and name of each import in what is no `.py`."""
    files = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        for kind in ("sh", "bash", "sbatch", "md"):
            files += (ROOT / folder).rglob(f"*.{kind}")
    return [
        (str(file.relative_to(ROOT)), module, name.split()[0])
        for file in sorted(files)
        for module, names in IMPORT.findall(file.read_text(encoding="utf-8"))
        for name in names.split(",")
    ]


IMPORTS = imports()


def test_the_scripts_that_are_bash_and_python_are_among_them():
    files = {file for file, _, _ in IMPORTS}
    assert files >= {"launch/pretrain.sh", "launch/finetune.sh", "tests/cluster/ranks.sh"}


@pytest.mark.parametrize(("file", "module", "name"), IMPORTS)
def test_an_import_exists(file, module, name):
    found = importlib.import_module(module)
    if not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")
