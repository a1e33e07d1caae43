"""Folders of checkpoints that are there whole or not at all.

    run_dir/checkpoints/step-000000100/   DeepSpeed's files, state.json, and manifest.json with
                                          the size and sha256 of each
    run_dir/checkpoints/latest            the name of the newest one
    run_dir/checkpoints/best              the name of the best one by checkpoint.best_metric

A checkpoint is written under a name that starts with a dot and renamed when every file of it is on
disk. A folder that fails its manifest is refused, by name and with the reason.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from data_prep.files import sync_directory, write_atomically
from pipeline.errors import CheckpointError, ConfigError, OtherVersionError
from pipeline.state import TrainerState

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
STATE = "state.json"
LATEST = "latest"
BEST = "best"
STEP_PREFIX = "step-"
REFUSED_PREFIX = "refused-"
FORMAT_VERSION = 1


def step_name(step: int) -> str:
    """The folder of the checkpoint after `step` optimizer steps."""
    return f"{STEP_PREFIX}{step:09d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Published checkpoints by their steps, oldest first; whole or not."""
    names = folder.glob(f"{STEP_PREFIX}*")
    return sorted(p for p in names if p.is_dir() and p.name[len(STEP_PREFIX) :].isdigit())


def publish(staged: Path, final: Path, state: TrainerState) -> None:
    """Makes a written folder a checkpoint: state, manifest, durable files, one rename, `latest`."""
    write_atomically(staged / STATE, json.dumps(state.to_dict(), indent=1).encode())
    sync_files(staged)
    files = {p.name: _record(p) for p in sorted(staged.iterdir())}
    body = {"format_version": FORMAT_VERSION, "step": state.step, "files": files}
    manifest = {**body, "sha256": _digest_of(body)}
    write_atomically(staged / MANIFEST, json.dumps(manifest, indent=1).encode())
    replaced = None
    if final.exists():  # refused earlier, or of a run that was told to start before it
        replaced = final.with_name(f".replaced-{final.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(final, replaced)
    os.rename(staged, final)
    sync_directory(final.parent)
    write_atomically(final.parent / LATEST, (final.name + "\n").encode())
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def sync_files(folder: Path) -> None:
    """Makes the files of a folder durable."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_directory(folder)


def verify(checkpoint: Path) -> TrainerState:
    """The state in a checkpoint, once all its files were found as they were written.

    Raises:
        CheckpointError: names the checkpoint, the file and what is wrong with it.
    """
    manifest = _read_json(checkpoint, MANIFEST)
    sealed = manifest.pop("sha256", None)
    if manifest.get("format_version") != FORMAT_VERSION:
        found = manifest.get("format_version")
        raise OtherVersionError(f"checkpoint {checkpoint}: format {found!r}, not {FORMAT_VERSION}")
    if sealed != _digest_of(manifest):
        raise CheckpointError(f"checkpoint {checkpoint}: {MANIFEST} was altered")
    for name, recorded in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {checkpoint}: {name} is missing")
        size = path.stat().st_size
        if size != recorded["num_bytes"]:
            raise CheckpointError(
                f"checkpoint {checkpoint}: {name} has {size} bytes, not {recorded['num_bytes']}"
            )
        if _sha256(path) != recorded["sha256"]:
            raise CheckpointError(f"checkpoint {checkpoint}: {name} was altered (sha256 differs)")
    try:
        return TrainerState.from_dict(_read_json(checkpoint, STATE))
    except OtherVersionError as error:
        raise OtherVersionError(f"checkpoint {checkpoint}: {error}") from None


def newest_whole(
    folder: Path, refuse: Callable[[Path, CheckpointError], None]
) -> tuple[Path, TrainerState] | None:
    """The newest checkpoint that is whole, and its state; None when there are none at all.

    Args:
        refuse: told of each newer one that is not.

    Raises:
        OtherVersionError: of the newest one that is whole; it and all others stay as they are.
        CheckpointError: there are checkpoints and none is whole.
    """
    found = list_checkpoints(folder)
    last: CheckpointError | None = None
    for checkpoint in reversed(found):
        try:
            return checkpoint, verify(checkpoint)
        except OtherVersionError:
            raise
        except CheckpointError as error:
            refuse(checkpoint, error)
            last = error
    if last is not None:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {folder} is whole (the oldest: {last}); "
            "remove the folder to start from step 0"
        )
    return None


def named_folder(path: str | Path) -> Path:
    """The folder that a path of a model names: of `latest` and `best` that of their checkpoint.

    All that takes a run, a checkpoint or a model asks this first.
    """
    path = Path(path)
    if path.name in (LATEST, BEST) and path.is_file():
        return path.with_name(path.read_text().strip())
    return path


def whole_checkpoint(path: Path) -> tuple[Path, TrainerState]:
    """The checkpoint that `path` names: itself, or the newest whole one of a run or its folder.

    Raises:
        CheckpointError: there is none, or the named one is not whole.
    """
    path = named_folder(path)
    if (path / MANIFEST).exists():
        return path, verify(path)
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    found = newest_whole(folder, lambda *_: None)
    if found is None:
        raise CheckpointError(
            f"no checkpoint in {path}: give a folder like {FOLDER}/{step_name(100)}, or a run's"
        )
    return found


def check_no_checkpoints(folder: Path) -> None:
    """Refuses `checkpoint.resume: never` where there is something to resume."""
    if folder.is_dir() and any(folder.glob("step-*")):
        raise ConfigError(
            f"checkpoint.resume: never, but {folder} holds checkpoints; set it to auto, give "
            "another run_dir, or remove the folder"
        )


def set_aside(checkpoint: Path) -> Path:
    """Renames a refused checkpoint, so that it is neither tried nor counted again."""
    aside = checkpoint.with_name(REFUSED_PREFIX + checkpoint.name)
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(checkpoint, aside)
    return aside


def mark_best(folder: Path, step: int) -> None:
    """Lets `best` name the checkpoint of a step, if it is there."""
    name = step_name(step)
    if (folder / name).is_dir():
        write_atomically(folder / BEST, (name + "\n").encode())


def remove_old(
    folder: Path, keep_last: int, keep_every_steps: int | None, keep_steps: Collection[int] = ()
) -> list[Path]:
    """Removes checkpoints but the newest ones, those at multiples and those of `keep_steps`.

    Returns:
        the removed.
    """
    removed = []
    for checkpoint in list_checkpoints(folder)[:-keep_last]:
        step = int(checkpoint.name[len(STEP_PREFIX) :])
        if (keep_every_steps is None or step % keep_every_steps) and step not in keep_steps:
            # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
            doomed = checkpoint.with_name(f".removed-{checkpoint.name}")
            os.rename(checkpoint, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            removed.append(checkpoint)
    return removed


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left: unfinished, replaced and half-removed checkpoints."""
    for path in folder.glob(".*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _record(path: Path) -> dict[str, Any]:
    return {"num_bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_json(checkpoint: Path, name: str) -> dict[str, Any]:
    try:
        values = json.loads((checkpoint / name).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {checkpoint}: {name} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {name} cannot be read ({type(error).__name__})"
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"checkpoint {checkpoint}: {name} is not a JSON object")
    return values
