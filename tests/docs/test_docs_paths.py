"""Every path, module and test that docs, scripts, benchmarks and comments name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.config.run import REPOSITORY as ROOT

FOLDERS = ("gpst", "data_prep", "pipeline", "launch", "configs", "benchmarks", "docs", "tests")
TOPS = (*FOLDERS, "design", "shared")
"""First parts of paths that are the repository's, or would be."""
KINDS = "py|sh|bash|sbatch|md|yaml|yml|toml|lock|html|svg|json|jsonl|ipynb|txt"
PATH = re.compile(rf"(?<![\w/.$}}{{*-])(?:\./)?((?:[\w-]+/)+[\w-]+\.(?:{KINDS}))(?![\w*/])")
SCRIPT = re.compile(r"(?<![\w/.$}{*<-])([\w-]+\.(?:py|sh|sbatch|bash))(?![\w*/(])")
MODULE = re.compile(rf"-m ((?:{'|'.join(FOLDERS)})(?:\.\w+)*)")
PLACEHOLDER = re.compile(r"NAME|TASK|/x\.sh$")
ELSEWHERE = {"launch.py": "DeepSpeed's", "modeling_gpst.py": "in exported folders"}


def _texts() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in (".md", ".toml")]
    found += [ROOT / name for name in ("Makefile", "setup.py", "mkdocs.yml", ".ci/run")]
    for folder in FOLDERS:
        kinds = (".py", ".sh", ".bash", ".sbatch", ".md", ".yaml", ".html")
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    return sorted(path for path in found if "data" not in path.relative_to(ROOT).parts)


TEXTS = _texts()
NAMES = {path.name for path in TEXTS}


def gone(text: str, folder: Path) -> list[str]:
    """What a text in a folder names and is not there."""
    found = []
    for name in PATH.findall(text):
        ours = name.split("/")[0] in TOPS and not PLACEHOLDER.search(name)
        if ours and not any((place / name).exists() for place in (ROOT, folder)):
            found.append(name)
    found += [n for n in SCRIPT.findall(text) if n not in NAMES and n not in ELSEWHERE]
    for name in MODULE.findall(text):
        # The wheel holds the other packages inside gpst.
        inner = re.sub(r"^gpst\.(data_prep|pipeline)\b", r"\1", name)
        place = ROOT / inner.replace(".", "/")
        if not (PLACEHOLDER.search(name) or place.is_dir() or place.with_suffix(".py").exists()):
            found.append(name)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_named_is_there(path):
    relative = path.relative_to(ROOT)
    if relative == Path(__file__).resolve().relative_to(ROOT.resolve()):
        return
    text = path.read_text(encoding="utf-8")
    if relative.parts[0] == "tests":  # tests make files of their own: what they run must be there
        missing = [name for name in MODULE.findall(text) if name in gone(text, path.parent)]
    else:
        missing = gone(text, path.parent)
    assert not missing, f"{relative}: {', '.join(missing)}"


def test_what_is_gone_is_found():
    text = "tests/gpst/test_gpst_triton.py, design/evaluation.md, old_script.sh, -m pipeline.gone"
    assert gone(text, ROOT) == [
        "tests/gpst/test_gpst_triton.py",
        "design/evaluation.md",
        "old_script.sh",
        "pipeline.gone",
    ]
    assert gone("gpst/tree.py, launch/parse.sh, configs/run/NAME.yaml, -m pipeline", ROOT) == []
