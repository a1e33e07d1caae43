"""Checkpoint folders that are whole or do not exist.

    run_dir/checkpoints/step-000000100/   DeepSpeed's files, state.json, and manifest.json with
                                          the size and sha256 of each
    run_dir/checkpoints/latest            the name of the newest one
    run_dir/checkpoints/best              the name of the best one by checkpoint.best_metric
    run_dir/checkpoints/line.json         where this line of the run began (lines.py)

A checkpoint is written under a name that starts with a dot and renamed when all its files are on
disk. A folder that does not match its manifest is refused, with the reason, and renamed. It is not
renamed for a reason that may pass: a file that cannot be read now, another program's version.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.files import sync_directory, write_atomically
from pipeline.checkpoint.trainer_state import TrainerState
from pipeline.errors import CheckpointError, ConfigError, OtherVersionError, UnreadableError
from pipeline.run_folder import CHECKPOINTS

MANIFEST = "manifest.json"
STATE = "state.json"
LATEST = "latest"
BEST = "best"
STEP_PREFIX = "step-"
REFUSED_PREFIX = "refused-"
SAVING = ".saving-"
"""Begins the name of the folder that a checkpoint is written in."""
REPLACED = ".replaced-"
"""Begins the name of a checkpoint while a new one of the same step replaces it."""
FORMAT_VERSION = 1


def step_name(step: int) -> str:
    """The folder of the checkpoint after `step` optimizer steps."""
    return f"{STEP_PREFIX}{step:09d}"


def step_of(checkpoint: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(checkpoint.name[len(STEP_PREFIX) :])


def list_checkpoints(folder: Path) -> list[Path]:
    """Published checkpoints by their steps, oldest first; whole or not.

    Raises:
        UnreadableError: the folder cannot be listed.
    """
    paths = _list(folder, STEP_PREFIX)
    return [p for p in paths if p.name[len(STEP_PREFIX) :].isdigit() and p.is_dir()]


def list_refused(folder: Path) -> list[Path]:
    """What earlier starts refused and set aside, by name; raises as `list_checkpoints`."""
    return _list(folder, REFUSED_PREFIX)


def _list(folder: Path, prefix: str) -> list[Path]:
    try:  # not glob, for which a folder that may not be read is an empty one
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnreadableError(
            f"{folder} cannot be read ({error.strerror or error}): mend that and start again"
        ) from None
    return [folder / name for name in sorted(names) if name.startswith(prefix)]


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
        replaced = final.with_name(REPLACED + final.name)
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
    """The state in a checkpoint, all of whose files are as they were written.

    Raises:
        CheckpointError: names the checkpoint, the file and what is wrong with it for good.
        UnreadableError: it cannot be read now, or not by this version of the program.
    """
    manifest = _read_json(checkpoint, MANIFEST)
    sealed, version = manifest.pop("sha256", None), manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise OtherVersionError(
            f"checkpoint {checkpoint}: format {version!r}, this program reads {FORMAT_VERSION}: "
            "go on with the program that wrote it"
        )
    if sealed != _digest_of(manifest):
        raise CheckpointError(f"checkpoint {checkpoint}: {MANIFEST} was altered")
    for name, recorded in manifest["files"].items():
        path = checkpoint / name
        with _readable(checkpoint, name):
            size = path.stat().st_size
        if size != recorded["num_bytes"]:
            raise CheckpointError(
                f"checkpoint {checkpoint}: {name} has {size} bytes, not {recorded['num_bytes']}"
            )
        with _readable(checkpoint, name):
            sha256 = _sha256(path)
        if sha256 != recorded["sha256"]:
            raise CheckpointError(f"checkpoint {checkpoint}: {name} was altered (sha256 differs)")
    return TrainerState.from_dict(_read_json(checkpoint, STATE), checkpoint)


@contextmanager
def _readable(checkpoint: Path, name: str) -> Iterator[None]:
    """Tells a file that is gone from one that cannot be read for now."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"checkpoint {checkpoint}: {name} is missing") from None
    except OSError as error:
        raise UnreadableError(
            f"checkpoint {checkpoint}: {name} cannot be read ({error.strerror or error}): mend "
            "that and start again, or name an older checkpoint (checkpoint.resume=PATH)"
        ) from None


@dataclass(frozen=True)
class Newest:
    """The newest whole checkpoint of a run, and the damaged ones after it."""

    path: Path
    state: TrainerState
    refused: tuple[tuple[Path, str], ...] = ()
    """Newer ones, each with the reason."""


def newest_whole(folder: Path) -> Newest | None:
    """The newest checkpoint that is whole: what `latest` names, or the one before it that is.

    None in a new folder: no checkpoint, no refused one and no `latest`.

    Raises:
        CheckpointError: there are checkpoints and none is whole.
        UnreadableError: a newer one than the whole ones cannot be read, for a reason that may pass.
    """
    refused: list[tuple[Path, str]] = []
    for checkpoint in newest_first(folder):
        try:
            return Newest(checkpoint, verify(checkpoint), tuple(refused))
        except UnreadableError:
            raise
        except CheckpointError as error:
            refused.append((checkpoint, str(error)))
    earlier = list_refused(folder)
    if not refused and not earlier and read_pointer(folder, LATEST) is None:
        return None
    anew = "put a whole copy back, or start from step 0 with checkpoint.resume=none, which sets "
    anew += "aside what is there"
    if refused:
        reason = refused[0][1]
        count = len(refused) + len(earlier)
        if count == 1:
            raise CheckpointError(f"the only checkpoint is not whole: {reason}; {anew}")
        raise CheckpointError(
            f"none of the {count} checkpoints in {folder} is whole (the newest: {reason}); {anew}"
        )
    if earlier:
        raise CheckpointError(
            f"the checkpoints in {folder} were all refused as damaged ({earlier[-1].name}); {anew}"
        )
    raise CheckpointError(
        f"{folder / LATEST} names {read_pointer(folder, LATEST)}, and no checkpoint is there; "
        f"{anew}"
    )


def newest_first(folder: Path) -> list[Path]:
    """Checkpoints up to the one that `latest` names, or all when that one is missing."""
    checkpoints = list_checkpoints(folder)
    latest = read_pointer(folder, LATEST)
    if latest is not None and (folder / latest) in checkpoints:
        checkpoints = checkpoints[: checkpoints.index(folder / latest) + 1]
    return checkpoints[::-1]


def read_pointer(folder: Path, name: str) -> str | None:
    """The name in `latest` or `best`; None when the file is missing.

    Raises:
        UnreadableError: it cannot be read.
    """
    try:
        return (folder / name).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(
            f"{folder / name} cannot be read ({error.strerror or error}): mend that and start again"
        ) from None


def named_folder(path: str | Path) -> Path:
    """The folder that a path of a model names: of `latest` and `best` that of their checkpoint.

    Whatever takes a run, a checkpoint or a model calls this first.
    """
    path = Path(path)
    if path.name in (LATEST, BEST) and path.is_file():
        return path.with_name(path.read_text().strip())
    if (path.parent.name, path.name) == (CHECKPOINTS, BEST) and not path.exists():
        raise CheckpointError(
            f"{path}: no best checkpoint is kept (checkpoint.best_metric); give "
            f"{path.with_name(LATEST)} for the newest"
        )
    return path


def whole_checkpoint(path: Path) -> tuple[Path, TrainerState]:
    """The checkpoint that `path` names: itself, or the newest whole one of a run or its folder.

    Raises:
        CheckpointError: there is none, or the named one is not whole.
    """
    path = named_folder(path)
    if (path / MANIFEST).exists():
        try:
            return path, verify(path)
        except UnreadableError:
            raise
        except CheckpointError as error:
            raise CheckpointError(f"{error}: give a whole one, or the run for its newest") from None
    folder = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    newest = newest_whole(folder)
    if newest is None:
        raise CheckpointError(
            f"no checkpoint in {path}: give a run, or its {CHECKPOINTS}/{step_name(100)}"
        )
    return newest.path, newest.state


def check_no_checkpoints(folder: Path) -> None:
    """Refuses `checkpoint.resume: never` where there is something to resume."""
    if list_checkpoints(folder) or list_refused(folder):
        raise ConfigError(
            f"checkpoint.resume: never, but {folder} holds checkpoints; set it to auto, or to none "
            "(which sets them aside), or give another run_dir"
        )


def _record(path: Path) -> dict[str, Any]:
    return {"num_bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_json(checkpoint: Path, name: str) -> dict[str, Any]:
    with _readable(checkpoint, name):
        content = (checkpoint / name).read_bytes()
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {name} cannot be read ({type(error).__name__})"
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"checkpoint {checkpoint}: {name} is not a JSON object")
    return values
