"""Do the tests see a fault? Each mutant is one small fault in the code; a test has to fail on it.

    python benchmarks/mutation.py                    # the listed mutants (benchmarks/mutants.yaml)
    python benchmarks/mutation.py --only gpst/model/losses.py
    python benchmarks/mutation.py --sample 60 --seed 1    # drawn ones: operators, constants, calls

A mutant survives when all tests of its file (`tests` in mutants.yaml) pass. The code is copied, the
checkout stays as it is. Prints a JSON line; the exit code is 1 if one survived or is out of date.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutants.yaml")


@dataclass(frozen=True)
class Mutant:
    """One fault: the text `was` of a file is replaced."""

    file: str
    was: str
    becomes: str
    start: int
    """Where `was` begins in the file."""

    def __str__(self) -> str:
        line = (ROOT / self.file).read_text()[: self.start].count("\n") + 1
        was, becomes = (" ".join(text.split()) for text in (self.was, self.becomes))
        return f"{self.file}:{line}: {was}  ->  {becomes}"

    def source(self) -> str:
        """The file's text with the fault in it."""
        text = (ROOT / self.file).read_text()
        return text[: self.start] + self.becomes + text[self.start + len(self.was) :]


class OutOfDateError(ValueError):
    """A listed mutant's text is not in its file exactly once."""


def listed(entries: list[dict[str, str]], only: str) -> list[Mutant]:
    """The mutants that mutants.yaml lists for the files that match."""
    mutants = []
    for entry in entries:
        if fnmatch(entry["file"], only):
            text = (ROOT / entry["file"]).read_text()
            if text.count(entry["was"]) != 1:
                count = text.count(entry["was"])
                raise OutOfDateError(
                    f"{entry['file']} has {entry['was']!r} {count} times, not once"
                )
            start = text.index(entry["was"])
            mutants.append(Mutant(entry["file"], entry["was"], entry["becomes"], start))
    return mutants


# --- drawn mutants -----------------------------------------------------------------------------

_OTHER = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
"""Operators and what each becomes."""


def drawn(file: str) -> list[Mutant]:
    """Every mutant of a file by rule, where the tests could see it: no annotations, no messages."""
    text = (ROOT / file).read_text()
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    encoded = text.encode()

    def place(line: int, column: int) -> int:
        """Where a position of `ast`, which counts bytes, lies in the text."""
        return len(encoded[: starts[line - 1] + column].decode())

    def whole(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    mutants: list[Mutant] = []

    def replace(first: int, last: int, becomes: str) -> None:
        mutants.append(Mutant(file, text[first:last], becomes, first))

    def operator(left: ast.expr, right: ast.expr, kind: type) -> None:
        was, becomes = _OTHER.get(kind, ("", ""))
        first, last = whole(left)[1], whole(right)[0]
        if was and text[first:last].count(was) == 1:
            at = first + text[first:last].index(was)
            replace(at, at + len(was), becomes)

    for node in _nodes(ast.parse(text)):
        if isinstance(node, ast.BinOp):
            operator(node.left, node.right, type(node.op))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            operator(node.left, node.comparators[0], type(node.ops[0]))
        elif isinstance(node, ast.BoolOp):
            operator(node.values[0], node.values[1], type(node.op))
        elif isinstance(node, ast.UnaryOp):
            first, last = whole(node)
            replace(first, last, text[slice(*whole(node.operand))])
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            first, last = whole(node)
            replace(first, last, str(node.value + 1))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            first, last = whole(node)
            replace(first, last, str(not node.value))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            replace(*whole(node), "pass")  # a call for its effect
        elif isinstance(node, ast.AugAssign):
            replace(*whole(node), "pass")
    return mutants


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes whose value matters when the code runs."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.Assert)):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            yield child
            yield from _nodes(child)


# --- running ------------------------------------------------------------------------------------


class Tests:
    """A copy of the checkout, in which tests run against one mutant after another."""

    def __init__(self, folder: Path, tests: dict[str, list[str]], limit_s: float):
        self.folder, self.tests, self.limit_s = folder, tests, limit_s
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in names.stdout.split("\0"):
            if name and (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)

    def of(self, file: str) -> list[str]:
        """The tests that answer for a file, quickest first."""
        matching = [names for pattern, names in self.tests.items() if fnmatch(file, pattern)]
        return matching[0] if matching else []

    def failing(self, files: set[str]) -> list[str]:
        """Those of the tests for some files that fail on the code as it is; each runs once."""
        needed = sorted({test for file in files for test in self.of(file)})
        return [test for test in needed if self._run([test]) != 0]

    def fail(self, mutant: Mutant) -> bool:
        """Whether a test fails on the mutant, or outlasts the limit."""
        path = self.folder / mutant.file
        before = path.read_text()
        path.write_text(mutant.source())
        try:
            return self._run(self.of(mutant.file)) != 0
        finally:
            path.write_text(before)

    def _run(self, tests: list[str]) -> int:
        """Exit code of the tests, in a fork: torch is imported once."""
        child = os.fork()
        if not child:
            try:
                os.setsid()
                _tests_alone(self.folder, tests)
            finally:
                os._exit(99)
        limit = time.monotonic() + self.limit_s
        while time.monotonic() < limit:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -1


def _tests_alone(folder: Path, tests: list[str]) -> None:
    """Runs tests of a copy and ends the process with their exit code."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.environ["PYTHONPATH"] = str(folder)
    # pytest has been imported, with plugins, before the fork.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *quiet, *tests]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--only", default="*", help="files that match, e.g. 'gpst/chart/*'")
    parser.add_argument("--sample", type=int, default=0, help="draw this many mutants by rule")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a mutant's tests")
    arguments = parser.parse_args()
    content = yaml.safe_load(LIST.read_text())
    try:
        mutants = listed(content["mutants"], arguments.only)
        known = {(m.file, m.start, m.becomes) for m in listed(content["harmless"], "*")}
    except OutOfDateError as error:
        print(f"mutants.yaml is out of date: {error}", file=sys.stderr)
        return 1
    if arguments.sample:
        mutants = _sample(content["tests"], known, arguments)
    os.environ["TRITON_INTERPRET"] = "1"  # as tests/conftest.py; before triton is imported
    sys.dont_write_bytecode = True  # a mutant may be as long and as old as the code before
    with warnings.catch_warnings(action="ignore"):
        for name in ("torch", "numba", "hypothesis", "transformers"):
            importlib.import_module(name)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(Path(folder), content["tests"], arguments.limit)
        for test in tests.failing({mutant.file for mutant in mutants}):
            print(f"{test} fails without a fault", file=sys.stderr)
            return 1
        for number, mutant in enumerate(mutants, 1):
            begun = time.monotonic()
            killed = tests.fail(mutant)
            seconds = time.monotonic() - begun
            word = "killed  " if killed else "SURVIVED"
            print(f"{number}/{len(mutants)} {word} {seconds:4.0f} s  {mutant}", flush=True)
            if not killed:
                survivors.append(str(mutant))
    print(json.dumps({"mutants": len(mutants), "survivors": survivors}))
    return 1 if survivors else 0


def _sample(
    tests: dict[str, list[str]], known: set[tuple[str, int, str]], arguments: argparse.Namespace
) -> list[Mutant]:
    """Mutants drawn by rule from all files that have tests, without those known to be harmless."""
    files = [p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("*/**/*.py"))]
    covered = [f for f in files if any(fnmatch(f, pattern) for pattern in tests)]
    pool = [m for f in covered if fnmatch(f, arguments.only) for m in drawn(f)]
    pool = [m for m in pool if (m.file, m.start, m.becomes) not in known]
    count = min(arguments.sample, len(pool))
    return random.Random(arguments.seed).sample(pool, count)


class _Raw(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


if __name__ == "__main__":
    sys.exit(main())
