"""The folder of a run: what is wrong with it is one line before the start; one run writes it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import run_folder
from pipeline.errors import ConfigError, DataError
from pipeline.run_folder import check_run_dir, only_run

ROOT = Path(__file__).parents[2]
FILES = ["config.yaml", "metrics.jsonl", "samples.jsonl", "lock", "wandb_id"]
FILES += ["checkpoints/latest", "checkpoints/best", "checkpoints/line.json"]
FOLDERS = ["checkpoints", "tensorboard", "tensorboard/steps", "tensorboard/tokens"]


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", FILES)
def test_a_folder_where_a_file_belongs(run_dir, name):
    (run_dir / name).mkdir(parents=True)
    before = listing(run_dir)
    for check in (lambda: check_run_dir(run_dir), lambda: only_run(run_dir).__enter__()):
        with pytest.raises(ConfigError, match=f"run_dir: .*{name} is a folder") as caught:
            check()
        assert caught.value.exit_code == 2
    assert listing(run_dir) == before


@pytest.mark.parametrize("name", [".", *FOLDERS])
def test_a_file_where_a_folder_belongs(run_dir, name):
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        check_run_dir(run_dir)
    if name == ".":
        with pytest.raises(ConfigError, match=f"{run_dir} is a file"):
            check_run_dir(run_dir / "deeper" / "still")


@pytest.mark.parametrize("name", [".", "checkpoints", "tensorboard"])
def test_a_link_to_nothing(run_dir, name):
    """A disk that is not mounted."""
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/not/mounted")
    with pytest.raises(ConfigError, match="is a link to /not/mounted, which is not there"):
        check_run_dir(run_dir)


@pytest.fixture
def read_only(tmp_path):
    """read_only(folder) makes a folder one that cannot be written, for root too."""
    mounted = []

    def freeze(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid():
            folder.chmod(0o555)
            return
        command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(folder)

    yield freeze
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


@pytest.mark.parametrize("name", [".", "checkpoints", "tensorboard"])
def test_what_cannot_be_written(run_dir, name, read_only):
    read_only(run_dir / name)
    with pytest.raises(ConfigError, match=r"cannot be written \((Read-only|Permission)"):
        check_run_dir(run_dir)
    with pytest.raises(ConfigError, match="give write permission, or another run_dir"):
        only_run(run_dir / "new" if name == "." else run_dir).__enter__()


@pytest.mark.parametrize("failing", ["checkpoints", "."])
def test_what_only_a_try_shows(run_dir, failing, monkeypatch):
    """A network disk that maps root to nobody; a quota."""
    (run_dir / "checkpoints").mkdir(parents=True)
    plain = run_folder.tempfile.TemporaryFile

    def refuse(number):
        def temporary_file(dir):
            if Path(dir).resolve() == (run_dir / failing).resolve():
                raise OSError(number, os.strerror(number), str(dir))
            return plain(dir=dir)

        return temporary_file

    for number, error in ((errno.EACCES, ConfigError), (errno.EDQUOT, DataError)):
        monkeypatch.setattr(run_folder.tempfile, "TemporaryFile", refuse(number))
        with pytest.raises(error, match="run_dir: "):
            only_run(run_dir).__enter__()


def test_the_lock_names_its_holder_and_goes_with_it(run_dir, monkeypatch):
    monkeypatch.setattr(run_folder, "WAIT_S", 0.0)
    holder = (
        "import sys; from pathlib import Path; from pipeline.run_folder import only_run\n"
        "with only_run(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        (run_dir / "config.yaml").touch()
        who = f"host {socket.gethostname()}, process {process.pid}"
        with pytest.raises(ConfigError, match=rf"being written by another run \({who}\)"):
            only_run(run_dir).__enter__()
        process.send_signal(signal.SIGKILL)
    with only_run(run_dir):  # nothing of a dead process stands in the way
        assert (run_dir / "lock").read_text().endswith(f"process {os.getpid()}\n")
        with pytest.raises(ConfigError, match="being written by another run"):
            only_run(run_dir).__enter__()
    assert (run_dir / "config.yaml").exists()
    with only_run(run_dir):
        pass


def test_a_start_that_comes_to_nothing_leaves_nothing(run_dir):
    with only_run(run_dir):
        pass
    assert not run_dir.exists()


def test_a_file_system_without_locks_is_said(run_dir, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_run(run_dir):
        pass
    assert "this file system knows no locks" in capsys.readouterr().err


PRETRAIN = ROOT / "launch" / "pretrain.sh"


@pytest.mark.dist
def test_a_second_run_in_one_folder_is_refused_and_the_first_goes_on(
    toy_config, start_ranks, run_dir
):
    first = start_ranks(1, PRETRAIN, "--config", toy_config, "train.num_steps=100000")
    first.wait_for(lambda: (run_dir / "checkpoints" / "latest").exists())
    (second,) = start_ranks(1, PRETRAIN, "--config", toy_config).finish()
    assert (second[0], second[1], second[2].count("\n")) == (2, "", 1), second
    assert f"process {first.processes[0].pid}" in second[2]
    first.signal(signal.SIGTERM)
    ((code, out, err),) = first.finish()
    assert code == 0, err
    assert out.startswith("stopped by SIGTERM")
