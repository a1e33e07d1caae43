"""`make setup`, on an index of our own with a torch that weighs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def publish(index: Path, version: str, *requirements: str) -> None:
    """Adds a wheel of torch to a package index, a folder."""
    info = f"torch-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
    metadata += [f"Requires-Dist: {one}" for one in requirements]
    folder = index / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    links = (f'<a href="{path.name}">{path.name}</a>' for path in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text("<!DOCTYPE html>" + "".join(links))


@pytest.fixture
def setup(tmp_path):
    """setup("TORCH=cpu", ...) runs `make setup`; torch of the public index requires CUDA."""
    (tmp_path / "launch").mkdir()
    for name in ("Makefile", "pyproject.toml", "launch/install.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements.lock").write_text("# a comment\ntorch==2.13.0\n")
    publish(tmp_path / "public", "2.13.0", "gigabytes-of-cuda")
    publish(tmp_path / "cpu", "2.13.0+cpu")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE"))}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"file://{tmp_path}/public"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        index = f"TORCH_INDEX=file://{tmp_path}/cpu"
        return subprocess.run(
            ["make", f"PYTHON={sys.executable}", index, *arguments, "setup"],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def test_torch_without_cuda_is_a_variable_of_make(setup, tmp_path):
    plain = setup()
    assert plain.returncode != 0
    assert "gigabytes-of-cuda" in plain.stderr
    missing = setup("TORCH=cu999")  # what is not there is not replaced by something else
    assert missing.returncode != 0
    assert "torch==2.13.0+cu999" in missing.stderr
    assert not list((tmp_path / ".venv").glob(".ready*"))
    done = setup("TORCH=cpu")
    assert done.returncode == 0, done.stderr
    python, asked = tmp_path / ".venv" / "bin" / "python", "from importlib.metadata import version"
    shown = [python, "-c", f"{asked}; print(version('torch'))"]
    assert subprocess.check_output(shown, text=True).strip() == "2.13.0+cpu"
    # Without the variable afterwards, nothing is fetched again.
    done = setup()
    assert done.returncode == 0, done.stderr
    assert subprocess.check_output(shown, text=True).strip() == "2.13.0+cpu"


@pytest.mark.parametrize("has_ensurepip", [True, False], ids=["cut short", "without python3-venv"])
def test_a_venv_without_pip_is_mended_or_named(setup, tmp_path, has_ensurepip):
    """What `python -m venv` leaves when it is stopped, or when Debian's Python has no ensurepip."""
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"]
    subprocess.run(command, check=True)
    if not has_ensurepip:
        (site,) = (tmp_path / ".venv").glob("lib/python*/site-packages")
        hidden = "import sys; sys.modules['ensurepip'] = None\n"
        (site / "no_ensurepip.pth").write_text(hidden)
    done = setup("TORCH=cpu")
    if has_ensurepip:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2
    assert "No module named" not in done.stderr
    assert done.stderr.startswith(".venv has no pip, and its Python brings none: install python3-")
