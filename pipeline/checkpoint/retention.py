"""Which checkpoints are kept, removed and set aside; cleaning up after a kill."""

import os
import shutil
from pathlib import Path

from data_prep.files import write_atomically
from pipeline.checkpoint.files import (
    BEST,
    LATEST,
    REFUSED_PREFIX,
    REPLACED,
    SAVING,
    STEP_PREFIX,
    newest_first,
    step_name,
    step_of,
)
from pipeline.run_folder import free_name


def set_aside(checkpoint: Path) -> Path:
    """Renames a refused checkpoint, so that it is neither tried nor counted again."""
    aside = free_name(checkpoint.with_name(REFUSED_PREFIX + checkpoint.name))
    os.rename(checkpoint, aside)
    return aside


def mark_best(folder: Path, step: int) -> None:
    """Lets `best` name the checkpoint of a step, if it is there."""
    name = step_name(step)
    if (folder / name).is_dir():
        write_atomically(folder / BEST, (name + "\n").encode())


def remove_old(
    folder: Path, keep_last: int, keep_every_steps: int | None, best_step: int | None = None
) -> list[Path]:
    """Removes checkpoints but the newest ones, those at multiples and the best one.

    Only checkpoints before the one that `latest` names, which is whole, are removed.

    Returns:
        the removed.
    """
    removed = []
    for checkpoint in newest_first(folder)[keep_last:][::-1]:
        step = step_of(checkpoint)
        if (keep_every_steps is None or step % keep_every_steps) and step != best_step:
            # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
            doomed = checkpoint.with_name(f".removed-{checkpoint.name}")
            os.rename(checkpoint, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            removed.append(checkpoint)
    return removed


def finish_publishing(folder: Path) -> None:
    """Finishes a publication that a kill interrupted between its renames.

    `.replaced-X` is what X replaced; `.saving-X` exists until `latest` names X. Without it, a
    checkpoint that is newer than `latest` was left behind by somebody who altered `latest`.
    """
    for replaced in folder.glob(f"{REPLACED}*"):
        final = folder / replaced.name[len(REPLACED) :]
        if not final.exists():
            os.rename(replaced, final)
    for staging in sorted(folder.glob(f"{SAVING}{STEP_PREFIX}*")):
        name = staging.name[len(SAVING) :]
        if (folder / name).is_dir() and not (staging / name).exists():
            newer = [path.name for path in newest_first(folder)[:1]] < [name]
            if newer:
                write_atomically(folder / LATEST, (name + "\n").encode())


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left: unfinished, replaced and half-removed checkpoints, and
    files that had not got their names yet (data_prep/files.py)."""
    for path in folder.glob(".*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".tmp":
            path.unlink(missing_ok=True)
