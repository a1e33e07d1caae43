"""Every Triton kernel is compiled for GPUs, on a machine that has none."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
IN_TRAINING = ["--levels", "--pairs", "1", "2", "16", "33", "--dims", "256", "--dtypes", "bfloat16"]
ALL = ["--levels", "--spare", "320"]
"""At other widths and in fp32 the kernels of whole levels spill: see docs/gpu_forecast.md."""


def _is_jit(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(mark).startswith("triton.jit") for mark in function.decorator_list)


def _called(tree: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {func.id for func in calls if isinstance(func, ast.Name)}


def kernels(folder: Path) -> set[str]:
    """Names of Triton's functions in a folder that no other one of them calls."""
    trees = [ast.parse(file.read_text()) for file in folder.rglob("*.py")]
    functions = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    jit = [function for function in functions if _is_jit(function)]
    return {function.name for function in jit} - set().union(*map(_called, jit))


def test_kernels_are_told_from_their_helpers(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "@triton.jit\ndef helper(x): pass\n"
        "@triton.jit(do_not_specialize=['x'])\ndef kernel(x): helper(x)\n"
        "def plain(): pass\n"
    )
    assert kernels(tmp_path) == {"kernel"}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(IN_TRAINING, id="in training"),
        pytest.param(ALL, id="all", marks=pytest.mark.slow),
    ],
)
def test_kernels_compile_for_gpus(arguments: list[str]) -> None:
    """All of them, through Triton's own just-in-time path; a level of one pair once failed."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["PYTHONPATH"] = f"{HOME}{os.pathsep}{HOME / 'benchmarks'}"
    done = subprocess.run(
        [sys.executable, "benchmarks/forecast/no_gpu.py", *arguments],
        cwd=HOME, capture_output=True, text=True, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    forms = [line for line in lines if "kernel" in line]
    assert max(form["local_bytes"] for form in forms) <= (320 if arguments is ALL else 16)
    for arch in (80, 90):
        compiled = {form["kernel"] for form in forms if form["arch"] == arch}
        assert compiled == kernels(HOME / "gpst" / "kernels" / "gpu")
    assert [line["arch"] for line in lines if "forms" in line] == [80, 90]
