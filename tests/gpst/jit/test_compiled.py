"""Compiled code and its cache: what it is keyed by, where it lies, that it need not be there."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest

import gpst.jit.cache
import gpst.jit.compiled

ROOT = Path(gpst.jit.compiled.__file__).parents[2]
MODULES = [
    path.relative_to(ROOT)
    for package in ("gpst", "data_prep", "pipeline")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "compiled import compiled" in path.read_text()
]


def double(x):
    return 2 * x


def test_code_is_compiled_without_a_place_for_the_cache(monkeypatch, tmp_path) -> None:
    """A read-only installation without a home."""
    cache = gpst.jit.cache
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "_parents", lambda _: [tmp_path / "file", tmp_path / "file" / "x"])
    monkeypatch.setattr(double, "__module__", "gpst.chart.merge")
    cache._folder.cache_clear()
    compiled = gpst.jit.compiled.compiled(double)
    cache._folder.cache_clear()
    assert compiled(np.arange(3)).tolist() == [0, 2, 4]
    assert compiled.signatures
    assert not compiled.stats.cache_path


def test_where_the_cache_may_be(monkeypatch) -> None:
    def parents() -> list[Path]:
        return gpst.jit.cache._parents(ROOT / "data_prep")

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    own = ROOT / "data_prep" / "__pycache__"
    assert parents() == [own, Path("/somewhere/numba")]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no home, no such user
    assert parents() == [own]
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/given")
    assert parents() == [Path("/given"), own]


@pytest.mark.parametrize(
    "name", ["gpst.chart.merge", "data_prep.tokenizer.pieces", "pipeline.data.context_table"]
)
def test_each_package_is_a_cache_of_its_own(name, monkeypatch) -> None:
    importlib.import_module(name)
    monkeypatch.setattr(double, "__module__", name)
    assert gpst.jit.compiled._package_of(double) == ROOT / name.partition(".")[0]


def test_the_decorator_loads_no_torch() -> None:
    code = "import sys, data_prep.build.unit; print('torch' in sys.modules)"
    assert run(ROOT, code) == "False"


def test_code_of_other_sources_goes_when_it_is_old(tmp_path) -> None:
    for name, days in (("p-1-old", 8), ("p-1-new", 6), ("q-1-old", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code").touch()
        os.utime(tmp_path / name, (time.time() - days * 24 * 3600,) * 2)
    gpst.jit.cache._prune(tmp_path, "p-1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-1-new", "q-1-old"]


def run(folder: Path, code: str) -> str:
    """What code prints that imports the packages in a folder."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return result.stdout.strip()


@pytest.mark.parametrize("package", ["gpst", pytest.param("data_prep", marks=pytest.mark.slow)])
def test_a_change_in_another_file_is_compiled(package, tmp_path) -> None:
    folder = tmp_path / package
    for name in ("gpst", package):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    shutil.copytree(ROOT / "gpst" / "jit", tmp_path / "gpst" / "jit")
    head = "from gpst.jit.compiled import compiled\n"
    called = head + "@compiled\ndef called(x):\n    return x + {}\n"
    body = "@compiled\ndef calls(x):\n    return called(x)\n"
    (folder / "a.py").write_text(f"{head}from {package}.b import called\n{body}")
    code = f"from {package}.a import calls; print(calls(1), sum(calls.stats.cache_hits.values()))"
    (folder / "b.py").write_text(called.format(1))
    assert run(tmp_path, code) == "2 0"
    (folder / "c.py").write_text("# no function of numba's\n")
    assert run(tmp_path, code) == "2 1"
    (folder / "b.py").write_text(called.format(2))
    assert run(tmp_path, code) == "3 0"


CHART = """
import numpy as np
from gpst.chart.layout import build_layout
scores = np.array([3.0, 1.0, 2.0, 4.0, 5.0, 0.0])
print(build_layout(scores, np.array([6])).left.tolist())
"""
SEGMENT = """
import numpy as np
from data_prep.segment.segmenters import get_segmenter
text = b"Dr. Smith came. He went."
print(get_segmenter("fast").cut(np.frombuffer(text, np.uint8), np.array([len(text)]))[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edited", "code", "old", "new"),
    [
        (
            "gpst/chart/merge.py",
            CHART,
            "backwards = scores[::-1].copy()",
            "backwards = -scores[::-1]",
        ),
        (
            "data_prep/segment/words.py",
            SEGMENT,
            "            return slot\n",
            "            break\n",
        ),
    ],
    ids=["merge.py", "words.py"],
)
def test_an_edited_file_is_in_force(edited, code, old, new, tmp_path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("gpst", "data_prep"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    before = run(tmp_path, code)
    source = (tmp_path / edited).read_text()
    assert source.count(old) == 1
    (tmp_path / edited).write_text(source.replace(old, new))
    assert run(tmp_path, code) != before


# --- what compiled functions use comes from files that the cache is keyed by


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_compiled_functions_use_keyed_sources_only(path) -> None:
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    origins = {}
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and (ROOT / node.module.split(".")[0]).is_dir()
        ):
            origins |= {name.asname or name.name: node.module for name in node.names}
    kinds = (gpst.jit.compiled.Compiled, numba.core.dispatcher.Dispatcher)
    functions = [v for v in vars(module).values() if isinstance(v, kinds)]
    assert functions
    for function in functions:
        for name in set(function.py_func.__code__.co_names) & set(vars(module)):
            value = vars(module)[name]
            if isinstance(value, type(np)):
                file = getattr(value, "__file__", "")
            elif isinstance(value, kinds):
                file = sys.modules[value.py_func.__module__].__file__
            elif name in origins:
                file = importlib.import_module(origins[name]).__file__
            else:
                continue
            if file and Path(file).is_relative_to(ROOT):
                assert "compiled" in Path(file).read_text(), (function, name)
