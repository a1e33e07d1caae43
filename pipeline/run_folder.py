"""The folder of a run: the names of its files, whether it can be written, and its lock.

run_dir/config.yaml, metrics.jsonl, samples.jsonl, tensorboard/, checkpoints/, lock
run_dir/abandoned-001/      a line of the run that was left by a rewind (checkpoint/lines.py)
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO

from data_prep.format.lock import is_same_file
from pipeline.errors import ConfigError, DataError

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
"""Lines of the same kind as METRICS: trees and continuations."""
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb_id"
CHECKPOINTS = "checkpoints"
LOCK = "lock"
ABANDONED = "abandoned-"

WAIT_S = 10.0
"""How long to wait for the lock: a run that was killed just now may still be ending."""
_FILES = (
    *(CONFIG, METRICS, SAMPLES, WANDB_ID, LOCK),
    *(f"{CHECKPOINTS}/{name}" for name in ("latest", "best", "line.json")),
)
_FOLDERS = (CHECKPOINTS, TENSORBOARD, f"{TENSORBOARD}/steps", f"{TENSORBOARD}/tokens")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_PROBE_BYTES = 4096


def check_run_dir(run_dir: Path) -> None:
    """Refuses a folder that a run could not write; writes nothing itself.

    Raises:
        ConfigError: a file or folder of the run cannot be read or written, or is the other kind.
    """
    for folder in (*reversed(run_dir.absolute().parents), run_dir):
        _check_is_folder(folder, "give a folder")
    for name in _FOLDERS:
        _check_is_folder(run_dir / name, "a run needs a folder of that name: move it away")
    for name in _FILES:
        path = run_dir / name
        if path.is_dir():
            raise ConfigError(
                f"run_dir: {path} is a folder, and a run writes a file of that name: move it "
                "away, or give another run_dir"
            )
        if path.exists() and not os.access(path, os.R_OK):
            raise ConfigError(f"run_dir: {path} cannot be read (Permission denied); mend it")
    existing = next(p for p in (run_dir.absolute(), *run_dir.absolute().parents) if p.exists())
    for folder in (existing, *(run_dir / name for name in _FOLDERS)):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise _unwritable(folder, _reason(folder))


def _check_is_folder(path: Path, cure: str) -> None:
    if path.is_symlink() and not path.exists():
        raise ConfigError(
            f"run_dir: {path} is a link to {os.readlink(path)}, which is not there; mend the link, "
            "or give another run_dir"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run_dir: {path} is a file; {cure}, or give another run_dir")


def _reason(folder: Path) -> str:
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return "Read-only file system" if read_only else "Permission denied"


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"run_dir: {path} cannot be written ({reason}); give write permission, or another run_dir"
    )


@contextmanager
def only_run(run_dir: Path) -> Iterator[None]:
    """Makes the folder, tries to write in it, and holds its lock: one run at a time writes in it.

    Rank 0 of a run holds it. The kernel releases it when the process ends, in whatever way.

    Raises:
        ConfigError: another run has it (named with its host and process), or it cannot be written.
        DataError: no space is left in it.
    """
    check_run_dir(run_dir)
    with _or_unwritable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    file = _lock(run_dir / LOCK)
    try:
        for name in (".", *_FOLDERS):
            if (run_dir / name).is_dir():
                _try_to_write(run_dir / name)
        with suppress(OSError):  # it only tells others who we are
            file.truncate(0)
            file.write(f"host {socket.gethostname()}, process {os.getpid()}\n")
            file.flush()
        yield
    finally:
        with suppress(OSError):
            file.truncate(0)
            if [path.name for path in run_dir.iterdir()] == [LOCK]:  # nothing came of the run
                (run_dir / LOCK).unlink()
                run_dir.rmdir()
        file.close()


@contextmanager
def _or_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"run_dir: no space left for {path}; free some, start again") from None
        raise _unwritable(path, error.strerror or str(error)) from None


def _try_to_write(folder: Path) -> None:
    with _or_unwritable(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _lock(path: Path) -> IO[str]:
    """The open file with the lock on it; waits a little."""
    limit = time.monotonic() + WAIT_S
    while True:
        with _or_unwritable(path):
            file = open(path, "a+")  # noqa: SIM115 (the caller closes it)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise _taken(path, file) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                raise _unwritable(path, error.strerror or str(error)) from None
            print(
                f"warning: {path}: this file system knows no locks: see to it that no other run "
                "writes to this run_dir",
                file=sys.stderr,
                flush=True,
            )
            return file
        else:
            if is_same_file(file, path):
                return file
        file.close()
        time.sleep(0.05)


def _taken(path: Path, file: IO[str]) -> ConfigError:
    file.seek(0)
    holder = " ".join(file.read().split()) or "another process"
    file.close()
    return ConfigError(
        f"run_dir: {path.parent} is being written by another run ({holder}): wait for it or end "
        "it, or give another run_dir"
    )


def free_name(path: Path) -> Path:
    """The path itself, or with a number at its end where something has that name."""
    return next(
        one
        for one in chain([path], (path.with_name(f"{path.name}.{n}") for n in count(2)))
        if not os.path.lexists(one)
    )
