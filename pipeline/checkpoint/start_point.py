"""Where a run starts: by `checkpoint.resume` and the contents of its folder."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.checkpoint.files import (
    LATEST,
    Newest,
    check_no_checkpoints,
    list_checkpoints,
    list_refused,
    named_folder,
    newest_whole,
    step_name,
    verify,
    whole_checkpoint,
)
from pipeline.checkpoint.lines import RECORD, Line, digest_of, place_of, read_line
from pipeline.checkpoint.trainer_state import TrainerState
from pipeline.config.sections import CheckpointConfig
from pipeline.errors import CheckpointError, ConfigError
from pipeline.run_folder import CHECKPOINTS

NONE = "none"
"""checkpoint.resume that starts at step 0 and sets earlier checkpoints aside."""


@dataclass(frozen=True)
class StartPoint:
    """What a start goes on from, and what it changes in run_dir once that is loaded."""

    checkpoint: Path | None = None
    """None: step 0."""
    state: TrainerState | None = None
    refused: tuple[tuple[Path, str], ...] = ()
    """Damaged checkpoints that are newer, with the reasons."""
    line: Line | None = None
    """The line that begins here."""
    messages: tuple[str, ...] = ()
    """For the user."""


def find_start(run_dir: Path, resume: str) -> StartPoint:
    """Where to start by `checkpoint.resume`. Verifies, and changes nothing.

    Raises:
        CheckpointError: a checkpoint is to be used and cannot be.
        ConfigError: `never`, and there are checkpoints.
    """
    folder = run_dir / CHECKPOINTS
    if resume == "never":
        check_no_checkpoints(folder)
        return StartPoint()
    line = read_line(run_dir)
    asked = resume if resume == NONE else place_of(Path(resume), run_dir)
    if resume == "auto" or asked in (".", CHECKPOINTS, f"{CHECKPOINTS}/{LATEST}"):
        return _go_on(run_dir, line)
    if line is not None and line.asked == asked:
        return _again(run_dir, line, resume)
    if resume == NONE:
        everything = [*list_checkpoints(folder), *list_refused(folder)]
        names = tuple(path.name for path in everything)
        return StartPoint(line=Line(NONE, None, None, 0, False, None, moving=names))
    if not named_folder(resume).exists():
        raise ConfigError(
            f"checkpoint.resume {resume}: no such folder; give a checkpoint or a run, or auto"
        )
    checkpoint, state = whole_checkpoint(Path(resume))
    return _begin(run_dir, asked, checkpoint, state)


def _go_on(run_dir: Path, line: Line | None) -> StartPoint:
    """From the newest whole checkpoint, or from where the line began if it has none yet."""
    folder = run_dir / CHECKPOINTS
    nothing = not list_checkpoints(folder) and not list_refused(folder)
    if nothing and line is not None and line.source is not None and not line.own:
        return _from_source(run_dir, line)
    newest = newest_whole(folder)
    if newest is None:
        if line is not None and line.source is not None:
            raise CheckpointError(
                f"{folder}: this line of the run began at {line.source}, and no checkpoint is "
                "there; put one back, or start from step 0 with checkpoint.resume=none"
            )
        return StartPoint()
    state, messages = _forget_missing_best(folder, newest.state)
    left = _left_by_latest(folder, newest)
    if left:
        place = place_of(newest.path, run_dir)
        line = Line(
            line.asked if line else None,
            place,
            digest_of(newest.path),
            state.step,
            True,
            state.best_step,
            moving=left,
        )
    return StartPoint(newest.path, state, newest.refused, line if left else None, messages)


def _left_by_latest(folder: Path, newest: Newest) -> tuple[str, ...]:
    """Checkpoints beyond the one that `latest` names: somebody altered `latest` to go back."""
    refused = {path.name for path, _ in newest.refused}
    names = [path.name for path in list_checkpoints(folder)]
    return tuple(n for n in names if n > newest.path.name and n not in refused)


def _from_source(run_dir: Path, line: Line) -> StartPoint:
    """The other run's checkpoint that the line began from, as long as it has saved none."""
    assert line.source is not None
    path = Path(os.path.join(run_dir, line.source))
    try:
        state = verify(path)
        if digest_of(path) != line.sha256:
            raise CheckpointError(f"checkpoint {path} is another one by now")
    except CheckpointError as error:
        raise CheckpointError(
            f"this line of {run_dir} began at {line.source} and has no checkpoint of its own yet: "
            f"{error}; put it back, or start from step 0 with checkpoint.resume=none",
            error.exit_code,
        ) from None
    return StartPoint(path, replace(state, best={}))


def _again(run_dir: Path, line: Line, resume: str) -> StartPoint:
    """The command that began the line is repeated: the line goes on."""
    start = _go_on(run_dir, line)
    if start.checkpoint is None or start.state is None or start.state.step == line.step:
        return start
    message = (
        f"checkpoint.resume={resume} began this line at step {line.step}, which goes on from step "
        f"{start.state.step}; to begin it again, remove {run_dir / CHECKPOINTS / RECORD}"
    )
    return replace(start, messages=(*start.messages, message))


def _begin(run_dir: Path, asked: str, checkpoint: Path, state: TrainerState) -> StartPoint:
    """A new line that begins at a checkpoint of this run or of another one."""
    folder, place = run_dir / CHECKPOINTS, place_of(checkpoint, run_dir)
    own = place == f"{CHECKPOINTS}/{step_name(state.step)}"
    present = list_checkpoints(folder)
    if own:
        moving = [path for path in present if path.name > checkpoint.name]
        state, messages = _forget_missing_best(folder, state)
    else:
        moving = [*present, *list_refused(folder)]
        moving = [path for path in moving if place_of(path, run_dir) != place]
        state, messages = replace(state, best={}), ()
    line = Line(
        asked,
        place,
        digest_of(checkpoint),
        state.step,
        own,
        state.best_step,
        moving=tuple(path.name for path in moving),
    )
    return StartPoint(checkpoint, state, (), line, messages)


def _forget_missing_best(folder: Path, state: TrainerState) -> tuple[TrainerState, tuple[str, ...]]:
    """Forgets a best value whose checkpoint is gone, with a message about it."""
    step = state.best_step
    if step is None or (folder / step_name(step)).is_dir():
        return state, ()
    message = (
        f"the best checkpoint before step {state.step} ({step_name(step)}) is gone: the next "
        "evaluation is the best so far"
    )
    return replace(state, best={}), (message,)


def forget_other_best(start: StartPoint, config: CheckpointConfig) -> StartPoint:
    """Forgets a best value of another metric than now: the two cannot be compared."""
    state = start.state
    if state is None or not state.best or config.best_metric is None:
        return start
    saved = state.config["checkpoint"]
    before = state.best.get("by", f"{saved['best_is']} {saved['best_metric']}")
    if before == config.best_by:
        return start
    name = step_name(int(state.best["step"]))
    message = (
        f"the best checkpoint so far ({name}) has the {before}, and wanted is now the "
        f"{config.best_by}: the next evaluation is the best so far"
    )
    line = start.line and replace(start.line, best_step=None)
    return replace(
        start, state=replace(state, best={}), line=line, messages=(*start.messages, message)
    )
