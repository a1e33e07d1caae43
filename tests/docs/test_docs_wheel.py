"""The wheel: what is in it, and that it works from another folder, without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("gpst", "data_prep", "pipeline", "configs", "launch")
TEXT = "The farmer saw the old dog. A child has found three red apples!\n\nThe dog barks.\n\n" * 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", out, source], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


def test_the_wheel_holds_what_it_should_and_no_more(wheel):
    expected = set()
    for name in SOURCES:
        prefix = "pipeline/shipped/" if name in ("configs", "launch") else ""
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(prefix + path.relative_to(ROOT).as_posix())
    expected.remove("pipeline/shipped/launch/demo.sh")  # `make demo` is of the checkout
    names = set(zipfile.ZipFile(wheel).namelist())
    found = {name for name in names if ".dist-info/" not in name}
    assert found == expected
    assert any(name.endswith("LICENSE") for name in names)


def test_every_console_script_has_its_function():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["scripts"]) >= 9
    for target in project["scripts"].values():
        module, function = target.split(":")
        source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        assert f"def {function}(" in source


@pytest.mark.slow
def test_prep_train_and_parse_from_the_installed_wheel(wheel, tmp_path):
    home, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    venv.create(home, symlinks=True)
    python, site = home / "bin" / "python", next(home.glob("lib/python*/site-packages"))
    # The packages that we need, as `pip install` would fetch them, but not the checkout itself:
    # links beside it, since a .pth file would bring the checkout's own .pth along.
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        taken = (site / path.name).exists() or path.name.startswith(("gpst", "pip"))
        if not taken and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", wheel], check=True)
    deepspeed = Path(shutil.which("deepspeed", path=str(Path(sys.executable).parent)) or "")
    lines = deepspeed.read_text().split("\n", 1)[1]
    (home / "bin" / "deepspeed").write_text(f"#!{python}\n{lines}")
    (home / "bin" / "deepspeed").chmod(0o755)
    (work / "text.txt").write_text(TEXT)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environ = {**kept, "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "1", "PATH": os.defpath}

    def run(script: str, *arguments: str) -> str:
        found = subprocess.run(
            [home / "bin" / script, *arguments],
            cwd=work, env=environ, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found.stdout

    source = ["--source", "text", "--input", "text.txt", "--split-blank-lines"]
    run("gpst-prep", "tokenizer", *source, "--vocab-size", "300", "--output", "tok")
    run("gpst-prep", "build", *source, "--tokenizer", "tok", "--output", "data", "--workers", "1")
    run("gpst-train", "--config", "configs/run/demo.yaml", "data.path=data", "run_dir=run",
        "train.num_steps=20", "data.context_tokens=32", "checkpoint.every_steps=20",
        "evaluate.every_steps=null", "checkpoint.best_metric=null")  # fmt: skip
    run("gpst-convert", "to-hf", "run", "exported")
    tree = run("gpst-parse", "--model", "exported", "--format", "bracket", "text.txt")
    assert tree.startswith("(")
    code = "import gpst, pipeline; print(gpst.__file__, pipeline.__file__)"
    where = subprocess.run([python, "-c", code], cwd=work, capture_output=True, text=True)
    assert str(ROOT) not in where.stdout
