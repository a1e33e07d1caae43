"""requirements.lock: holds what pyproject.toml asks for, and can be installed with PyPI's torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11.2", "3.11.7", "3.12.1", "3.13.0")


def same_name(name: str) -> str:
    """Names of packages as the registry compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(python: str) -> dict[str, str]:
    """Package -> version that the lock asks for under a Python on Linux."""
    place = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    place |= {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"}
    found = {}
    for one in LOCK:
        if one.marker is None or one.marker.evaluate(place):
            assert same_name(one.name) not in found, f"{one.name} twice"
            found[same_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_holds_what_the_project_asks_for(python):
    versions = locked(python)
    extras = PROJECT["optional-dependencies"]
    [in_lock] = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*in_lock.split(), "wandb"} == extras.keys()
    asked = PROJECT["dependencies"] + [one for name in in_lock.split() for one in extras[name]]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(versions[same_name(requirement.name)]), requirement


LOWEST = ROOT.name == ".lowest"
"""Whether this is the checkout of `make test-lowest`, whose lock is for one Python."""


@pytest.mark.skipif(not LOWEST, reason="for make test-lowest")
def test_the_lowest_versions_are_those_that_are_promised():
    """A bound that another package raises is a promise that nobody can have tried."""
    extras = PROJECT["optional-dependencies"]
    asked = PROJECT["dependencies"] + [
        one for name in extras if name != "wandb" for one in extras[name]
    ]
    for requirement in map(Requirement, asked):
        lowest = Version(re.split("[=>]=", str(requirement.specifier))[1]).release
        assert Version(version(requirement.name)).release[: len(lowest)] == lowest, requirement


def test_the_lock_leaves_cuda_to_torch():
    """So that TORCH=cpu needs none; and no version is one that lies on somebody's disk only."""
    for one in LOCK:
        assert not one.name.startswith(("nvidia-", "cuda-")), one
        assert one.url is None, one
        assert re.fullmatch(r"==[\w.]+", str(one.specifier)), one


CI = bool(os.environ.get("CI"))  # there the registry is there, and what make setup installs


def resolve(lock: Path) -> subprocess.CompletedProcess[str]:
    """uv, on the registry alone: wheels that lie here are not what others get.

    For every Python from 3.11 on and every system at once; only metadata is downloaded.
    """
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None and not CI:
        pytest.skip("uv is not installed: make setup")
    environ = {k: v for k, v in os.environ.items() if k != "UV_FIND_LINKS"}
    return subprocess.run(
        [uv or "uv", "pip", "compile", "--no-header", "--quiet", "--no-annotate", "--universal",
         "--python-version", "3.11", lock],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.skipif(LOWEST, reason="the lowest versions are for one Python")
def test_the_lock_can_be_installed_with_the_torch_of_the_registry():
    """Nothing conflicts (triton's version is torch's choice), and no package is missing."""
    found = resolve(ROOT / "requirements.lock")
    offline = re.search("error sending request|dns error|Failed to fetch|timed out", found.stderr)
    if offline and not CI:
        pytest.skip(f"the package registry cannot be reached: {found.stderr.splitlines()[-1]}")
    assert found.returncode == 0, found.stderr
    lock = (ROOT / "requirements.lock").read_text()
    resolved = [one for one in found.stdout.splitlines() if not re.match("nvidia-|cuda-", one)]
    assert resolved == [line for line in lock.splitlines() if not line.startswith("#")]


def test_a_triton_that_torch_does_not_take_is_refused(tmp_path):
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^torch==.*$", lock, re.MULTILINE)
    (tmp_path / "bad.lock").write_text("\n".join([*pins, "triton==3.9.0"]))
    refused = resolve(tmp_path / "bad.lock")
    if not CI and "triton" not in refused.stderr:
        pytest.skip("the package registry cannot be reached")
    assert refused.returncode != 0
    assert "triton" in refused.stderr
