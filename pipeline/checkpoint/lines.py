"""Lines of a run: one goes on from checkpoint to checkpoint; a rewind leaves it and begins another.

    run_dir/checkpoints/line.json   where the present line began, and what is still to be moved
    run_dir/abandoned-001/          an earlier line, laid out as a run's folder: its checkpoints,
                                    and metrics, samples and curves as they were

The record is written first and names all that is to be moved, so that the next start can finish a
rewind that was interrupted.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from data_prep.files import sync_directory, write_atomically
from pipeline.checkpoint.files import BEST, LATEST, MANIFEST, read_pointer, step_name
from pipeline.checkpoint.retention import mark_best
from pipeline.errors import CheckpointError, UnreadableError
from pipeline.run_folder import (
    ABANDONED,
    CHECKPOINTS,
    CONFIG,
    METRICS,
    SAMPLES,
    TENSORBOARD,
    WANDB_ID,
)

RECORD = "line.json"
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True)
class Line:
    """Where a line began."""

    asked: str | None
    """checkpoint.resume that began it: "none", or a path, within run_dir relative to it; None: an
    altered `latest` did."""
    source: str | None
    """The checkpoint it began from, written as `asked` is; None: step 0."""
    sha256: str | None
    """Of the source's manifest."""
    step: int
    """The source's."""
    own: bool
    """Whether the source was a checkpoint of this run, whose metrics and curves then go on."""
    best_step: int | None
    """The best checkpoint so far (TrainerState.best)."""
    aside: str | None = None
    """Folder in run_dir that gets the line before; None: nothing was to be set aside."""
    moving: tuple[str, ...] = ()
    """Names in checkpoints/ that belong to the line before."""
    done: bool = False
    """Whether everything is in its place."""


def place_of(path: Path, run_dir: Path) -> str:
    """A path as the record has it: within run_dir relative to it, so that a run can be moved."""
    real, home = os.path.realpath(path), os.path.realpath(run_dir)
    return os.path.relpath(real, home) if f"{real}/".startswith(f"{home}/") else real


def digest_of(checkpoint: Path) -> str:
    """Identifies a verified checkpoint: the digest in its manifest."""
    return json.loads((checkpoint / MANIFEST).read_bytes())["sha256"]


def read_line(run_dir: Path) -> Line | None:
    """The present line; None when the run never began another.

    Raises:
        UnreadableError: the record cannot be read.
    """
    path = run_dir / CHECKPOINTS / RECORD
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
        return Line(**{**values, "moving": tuple(values["moving"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UnreadableError(
            f"{path} cannot be read ({reason}): mend that, or remove it: `latest` then says where "
            "the run goes on"
        ) from None


def begin_line(run_dir: Path, line: Line) -> str | None:
    """Begins a line: sets aside what belongs to the one before. Returns a message about it.

    Raises:
        CheckpointError: it cannot be written; the next start goes on with it.
    """
    with _or_unfinished(run_dir):
        (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        if line.moving or (not line.own and _has_metrics(run_dir)):
            line = replace(line, aside=_free_name(run_dir))
        _write(run_dir, line)
        return _complete(run_dir, line)


def complete_line(run_dir: Path) -> str | None:
    """Finishes what a kill has interrupted; returns and raises as `begin_line`."""
    line = read_line(run_dir)
    if line is None or line.done:
        return None
    with _or_unfinished(run_dir):
        return _complete(run_dir, line)


def settle_best(folder: Path, step: int | None) -> None:
    """Lets `best` name the checkpoint of a step, or nothing when it does not exist."""
    if step is not None and (folder / step_name(step)).is_dir():
        mark_best(folder, step)
    else:
        (folder / BEST).unlink(missing_ok=True)


def _complete(run_dir: Path, line: Line) -> str | None:
    folder = run_dir / CHECKPOINTS
    if line.aside is not None:
        aside = run_dir / line.aside
        (aside / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        _set_files_aside(run_dir, aside, move=not line.own)
        for name in line.moving:
            _move(folder / name, aside / CHECKPOINTS / name)
        sync_directory(aside / CHECKPOINTS)
    source = Path(line.source).name if line.own and line.source else None
    if source is None:
        (folder / LATEST).unlink(missing_ok=True)
    elif read_pointer(folder, LATEST) != source:
        write_atomically(folder / LATEST, (source + "\n").encode())
    settle_best(folder, line.best_step)
    sync_directory(folder)
    _write(run_dir, replace(line, done=True))
    if line.aside is None:
        return None
    where = "step 0" if line.source is None else f"step {line.step} ({line.source})"
    return (
        f"a new line begins at {where}: {len(line.moving)} checkpoints, metrics and curves of the "
        f"line before are kept in {run_dir / line.aside}"
    )


def _set_files_aside(run_dir: Path, aside: Path, move: bool) -> None:
    """Sets aside metrics, samples, curves and config of the line before, as they are.

    Args:
        move: none of them belongs to the line that begins.
    """
    for name in (LATEST, BEST):
        _link(run_dir / CHECKPOINTS / name, aside / CHECKPOINTS / name)
    _link(run_dir / CONFIG, aside / CONFIG)
    _move(run_dir / WANDB_ID, aside / WANDB_ID)  # the new line is another run there
    if move:
        for name in (METRICS, SAMPLES, TENSORBOARD):
            _move(run_dir / name, aside / name)
        return
    for name in (METRICS, SAMPLES):
        _link(run_dir / name, aside / name)
    for path in (run_dir / TENSORBOARD).glob("*/*"):
        target = aside / path.relative_to(run_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(path, target)


def _move(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():
        os.rename(source, target)


def _link(source: Path, target: Path) -> None:
    """Links the file, or copies it: a run does not change a file but writes a new one."""
    if not source.is_file() or target.exists():
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy = target.with_name(f".{target.name}.tmp")
        shutil.copy2(source, copy)
        os.replace(copy, target)


def _has_metrics(run_dir: Path) -> bool:
    return any((run_dir / name).exists() for name in (METRICS, SAMPLES, TENSORBOARD))


def _free_name(run_dir: Path) -> str:
    names = (f"{ABANDONED}{number:03d}" for number in count(1))
    return next(name for name in names if not os.path.lexists(run_dir / name))


def _write(run_dir: Path, line: Line) -> None:
    content = json.dumps(asdict(line), indent=1).encode()
    write_atomically(run_dir / CHECKPOINTS / RECORD, content)


@contextmanager
def _or_unfinished(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the new line in {run_dir} cannot be begun ({error.strerror or error}): mend that and "
            "start again; nothing is lost"
        ) from None
