"""The wheel: what is in it, and that it works from another folder, without the checkout."""

from __future__ import annotations

import ast
import configparser
import os
import pkgutil
import re
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
TEXT = "".join(
    f"The farmer saw {number} dogs. A child has found {number} red apples!\n\n"
    for number in range(90)
)


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
    """One package at the top: `pipeline` and `data_prep` are names that others use too."""
    folders = {"gpst": "gpst", "pipeline": "gpst/pipeline", "data_prep": "gpst/data_prep"}
    expected = set()
    for name in SOURCES:
        folder = folders.get(name, f"gpst/pipeline/shipped/{name}")
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(f"{folder}/{path.relative_to(ROOT / name).as_posix()}")
    launch = "gpst/pipeline/shipped/launch"
    for name in ("demo.sh", "install.sh", "miniature.sh", "typed.bash"):  # of make
        expected.remove(f"{launch}/{name}")
    expected = {name for name in expected if not name.startswith(f"{launch}/demo_")}
    names = set(zipfile.ZipFile(wheel).namelist())
    found = {name for name in names if ".dist-info/" not in name}
    assert found == expected
    assert any(name.endswith("LICENSE") for name in names)


def test_no_source_of_the_wheel_names_a_package_that_is_not_there(wheel):
    gone = {"pipeline", "data_prep"}
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        text = archive.read(name).decode() if name.endswith((".py", ".sh", ".bash")) else ""
        assert not re.search(r"-m (pipeline|data_prep|launch)\b", text), name
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert gone.isdisjoint(alias.name.partition(".")[0] for alias in node.names), name
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").partition(".")[0] not in gone, name
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.match(r"(pipeline|data_prep)\.[\w{]", node.value), (name, node.value)


def test_every_console_script_has_its_function(wheel):
    """In the checkout, as pyproject.toml says, and in the wheel, where it says it otherwise."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["scripts"]) >= 9
    archive = zipfile.ZipFile(wheel)
    [file] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
    scripts = configparser.ConfigParser()
    scripts.read_string(archive.read(file).decode())
    installed = dict(scripts["console_scripts"])
    assert installed.keys() == project["scripts"].keys()
    for name, target in project["scripts"].items():
        assert installed[name] == f"gpst.{target}"
        module = target.partition(":")[0]
        assert callable(pkgutil.resolve_name(target))
        assert f"gpst/{module.replace('.', '/')}.py" in archive.namelist()


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_package_pipeline_of_the_users_own_is_not_shadowed(wheel, tmp_path, first):
    for name in ("pipeline", "data_prep"):
        (tmp_path / "user" / name).mkdir(parents=True)
        (tmp_path / "user" / name / "__init__.py").write_text("OWNER = 'the user'\n")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    theirs = "import pipeline, data_prep"
    ours = (
        "import gpst.pipeline.config.run, gpst.pipeline.evaluate.perplexity\n"
        "import gpst.pipeline.report.command\n"
        "import gpst.data_prep.build.build, gpst.data_prep.executors.processes\n"
        "from gpst.data_prep.sources.registry import NAMES, get_source\n"
        "[get_source(name) for name in NAMES]\n"
    )
    code = "\n".join([theirs, ours] if first == "theirs" else [ours, theirs])
    code += "\nprint(pipeline.OWNER, data_prep.OWNER, gpst.pipeline.__file__)"
    places = os.pathsep.join([str(tmp_path / "user"), str(tmp_path / "site")])
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": places},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("the user the user " + str(tmp_path / "site"))


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
    for name in ("pipeline", "data_prep", "launch"):  # the user's own: in no command's way
        (work / name).mkdir()
        (work / name / "__init__.py").write_text("raise RuntimeError('not yours')\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environ = {**kept, "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "1", "PATH": os.defpath}

    def run(script: str, *arguments: str | Path) -> str:
        found = subprocess.run(
            [home / "bin" / script, *arguments],
            cwd=work, env=environ, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found.stdout

    source = ["--source", "text", "--input", "text.txt", "--split-blank-lines"]
    run("gpst-prep", "tokenizer", *source, "--vocab-size", "300", "--output", "tok")
    build = [*source, "--tokenizer", "tok", "--unit-mib", "0.001"]
    build += ["--validation-fraction", "0.2"]
    run("gpst-prep", "build", *build, "--output", "data", "--workers", "2")
    run("python", "-m", "gpst.data_prep", "verify", "data")
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    run(mpirun, "-n", "2", "--oversubscribe", "--allow-run-as-root", home / "bin" / "gpst-prep",
        "build", *build, "--output", "data-mpi", "--backend", "mpi")  # fmt: skip
    for file in (work / "data").glob("*/*.npy"):
        assert (
            file.read_bytes() == (work / "data-mpi" / file.relative_to(work / "data")).read_bytes()
        )
    train = ["--config", "configs/run/demo.yaml", "data.path=data", "run_dir=run",
             "train.num_steps=4", "data.context_tokens=32", "checkpoint.every_steps=2",
             "evaluate.every_steps=null", "checkpoint.best_metric=null"]  # fmt: skip
    run("gpst-train", *train, "train.stop_at_step=2")
    # A checkpoint names no module: the checkout goes on with it.
    going_on = subprocess.run(
        [sys.executable, ROOT / "launch" / "pretrain.sh", *train], cwd=work, capture_output=True,
        text=True, env=environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    )  # fmt: skip
    assert going_on.returncode == 0, going_on.stderr
    assert "step 2" in going_on.stdout + going_on.stderr
    run("gpst-convert", "to-hf", "run", "exported")
    (work / "sentence.txt").write_text("The dog barks.\n")
    tree = run("gpst-parse", "--model", "exported", "--format", "bracket", "sentence.txt")
    assert tree.startswith("(")
    run("gpst-surprisal", "--model", "exported", "sentence.txt")
    run("gpst-generate", "--model", "exported", "--prompt", "The dog")
    run("gpst-evaluate", "perplexity", "--model", "exported", "--data", "data", "--beam", "2",
        "--context-tokens", "32", "--max-contexts", "1")  # fmt: skip
    run("gpst-report", "run", "--output", "report")
    (work / "gold.txt").write_text("(S (NP (D the) (N dog)) (V barks))\n")
    assert run("gpst-treebank", "gold.txt", "--to", "words") == "the dog barks\n"
    for script in ("gpst-finetune", "gpst-demo", "gpst-doctor"):
        assert "usage" in run(script, "--help")
    where = run("python", "-c", "import gpst.pipeline; print(gpst.pipeline.__file__)")
    assert str(home) in where
