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

import data_prep.compile_cache
import data_prep.compiled
import gpst.jit.cache
import gpst.jit.compiled

ROOT = Path(gpst.jit.compiled.__file__).parents[2]
CACHES = [gpst.jit.cache, data_prep.compile_cache]
MODULES = [
    path.relative_to(ROOT)
    for package in ("gpst", "data_prep", "pipeline")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "compiled import compiled" in path.read_text()
]


def double(x):
    return 2 * x


@pytest.mark.parametrize("package", ["gpst", "data_prep"])
def test_code_is_compiled_without_a_place_for_the_cache(package, monkeypatch, tmp_path) -> None:
    """A read-only installation without a home."""
    cache = importlib.import_module(f"{package}.compile_cache")
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "_parents", lambda: [tmp_path / "file", tmp_path / "file" / "x"])
    cache._folder.cache_clear()
    compiled = importlib.import_module(f"{package}.compiled").compiled(double)
    cache._folder.cache_clear()
    assert compiled(np.arange(3)).tolist() == [0, 2, 4]
    assert compiled.signatures
    assert not compiled.stats.cache_path


@pytest.mark.parametrize("cache", CACHES, ids=["gpst", "data_prep"])
def test_where_the_cache_may_be(cache, monkeypatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    own = Path(cache.__file__).parent / "__pycache__"
    assert cache._parents() == [own, Path("/somewhere/numba")]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no home, no such user
    assert cache._parents() == [own]
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/given")
    assert cache._parents() == [Path("/given"), own]


def test_both_packages_have_the_same_file() -> None:
    first, second = (Path(cache.__file__).read_bytes() for cache in CACHES)
    assert first == second


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
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("compiled.py", "compile_cache.py"):
        shutil.copy(ROOT / package / name, folder / name)
    head = f"from {package}.compiled import compiled\n"
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
from gpst.chart.plan import build_plan
scores = np.array([3.0, 1.0, 2.0, 4.0, 5.0, 0.0])
print(build_plan(scores, np.array([6])).left.tolist())
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
            "data_prep/segment/abbreviations.py",
            SEGMENT,
            "            return slot\n",
            "            break\n",
        ),
    ],
    ids=["merge.py", "abbreviations.py"],
)
def test_an_edited_file_is_in_force(edited, code, old, new, tmp_path) -> None:
    package = edited.partition("/")[0]
    ignored = shutil.ignore_patterns("__pycache__")
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
    functions = [
        v for v in vars(module).values() if isinstance(v, numba.core.dispatcher.Dispatcher)
    ]
    assert functions
    for function in functions:
        for name in set(function.py_func.__code__.co_names) & set(vars(module)):
            value = vars(module)[name]
            if isinstance(value, type(np)):
                file = getattr(value, "__file__", "")
            elif isinstance(value, numba.core.dispatcher.Dispatcher):
                file = sys.modules[value.py_func.__module__].__file__
            elif name in origins:
                file = importlib.import_module(origins[name]).__file__
            else:
                continue
            if file and Path(file).is_relative_to(ROOT):
                assert "compiled" in Path(file).read_text(), (function, name)
