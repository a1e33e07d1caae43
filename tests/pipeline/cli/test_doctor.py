"""The doctor: a healthy machine passes, and each thing that would break a run is named."""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from pipeline import __main__
from pipeline.cli import doctor
from pipeline.cli.doctor import CHECKS, Finding


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_this_machine_passes(tmp_path, capsys):
    assert __main__.main(["doctor", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[6:22].strip() for line in lines[:-1]] == list(CHECKS)
    assert not [line for line in lines if line.startswith("FAIL")]
    assert lines[-1].startswith("runs will work here")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_makes_the_exit_code(capsys):
    findings = {"a": Finding("ok", "x"), "b": Finding("FAIL", "y"), "c": Finding("warn", "z")}
    assert doctor.report(findings) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "runs would break here: b"
    assert doctor.report({"a": Finding("warn", "z")}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "runs will work here; see a"


def test_old_and_missing_packages_are_named(tmp_path, monkeypatch):
    def found(name):
        if name == "tqdm":
            raise PackageNotFoundError(name)
        return "0.19.7" if name == "deepspeed" else "99.1.0+cpu"

    monkeypatch.setattr(doctor, "version", found)
    status, text = CHECKS["packages"](tmp_path)
    assert status == "FAIL"
    assert "deepspeed 0.19.7 is older than 0.19.8" in text
    assert "tqdm is missing" in text
    assert "torch" not in text


def test_a_lock_of_a_killed_compilation_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert CHECKS["extension locks"](tmp_path).status == "ok"
    (tmp_path / "py311" / "fused_adam").mkdir(parents=True)
    (tmp_path / "py311" / "fused_adam" / "lock").touch()
    status, text = CHECKS["extension locks"](tmp_path)
    assert status == "FAIL"
    assert "fused_adam/lock" in text


def test_a_folder_that_cannot_hold_runs(tmp_path, monkeypatch):
    assert CHECKS["disk"](tmp_path / "absent").status == "FAIL"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, text = CHECKS["disk"](tmp_path)
    assert (status, "No space left" in text) == ("FAIL", True)


def test_little_disk_is_a_warning(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    assert CHECKS["disk"](tmp_path).status == "warn"


def test_the_clock(tmp_path, monkeypatch):
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real - 3600)
    status, text = CHECKS["clock"](tmp_path)
    assert status == "warn"
    assert "+3600 s off" in text
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert CHECKS["clock"](tmp_path).status == "FAIL"


def test_stale_rank_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert CHECKS["rank variables"](tmp_path).status == "warn"


def test_gloo_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_interface")
    status, text = CHECKS["gloo and NCCL"](tmp_path)
    assert status == "FAIL"
    assert text.startswith("GLOO_SOCKET_IFNAME='no_such_interface': ")
    monkeypatch.setattr("pipeline.distributed.environment.check_interfaces", lambda *_: None)
    status, text = CHECKS["gloo and NCCL"](tmp_path)
    assert status == "FAIL"
    assert "gloo cannot start" in text


def test_a_folder_named_mpi4py_is_not_mpi4py(tmp_path, monkeypatch):
    (tmp_path / "mpi4py").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    assert CHECKS["MPI"](tmp_path).status == "warn"


def test_a_missing_mpirun_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert CHECKS["MPI"](tmp_path).status == "warn"


def test_a_gpu_that_pytorch_cannot_use(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert CHECKS["GPUs"](tmp_path).status == "FAIL"


def test_gpus_are_counted_with_their_memory(tmp_path, monkeypatch):
    device = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", total_memory=80 << 30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: device)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    assert CHECKS["GPUs"](tmp_path) == ("ok", "8: NVIDIA A100-SXM4-80GB 80 GiB")
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: False)
    assert "engine.precision=fp16" in CHECKS["GPUs"](tmp_path).text
