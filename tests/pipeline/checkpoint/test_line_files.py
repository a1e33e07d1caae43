"""The files of a run when a line begins: the record, `best`, metrics and curves."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
from run_files import log, monitor, scalars, steps_of

from pipeline.checkpoint import lines
from pipeline.checkpoint.files import publish, step_name
from pipeline.checkpoint.lines import Line, begin_line, read_line
from pipeline.checkpoint.start_point import find_start
from pipeline.checkpoint.trainer_state import first_state
from pipeline.config.run import load_config
from pipeline.errors import CheckpointError, ConfigError


def test_the_best_checkpoint_follows_the_line(run_dir, toy_config):
    """`best` names one that is there; a best value whose checkpoint is gone is forgotten."""
    folder = run_dir / "checkpoints"
    state = first_state(load_config(toy_config), "f" * 64, 1)
    for step, best in ((4, 2), (6, 6)):
        staged = folder / f".saving-{step_name(step)}" / step_name(step)
        staged.mkdir(parents=True)
        publish(staged, folder / step_name(step), _at(state, step, best))
    (folder / "best").write_text(step_name(6) + "\n")
    start = find_start(run_dir, str(folder / step_name(4)))
    assert start.state is not None
    assert start.state.best == {}  # of step 2, which nobody has any more
    assert "the next evaluation is the best so far" in start.messages[0]
    assert start.line is not None
    begin_line(run_dir, start.line)
    assert not (folder / "best").exists()
    assert (run_dir / "abandoned-001" / "checkpoints" / "best").read_text() == "step-000000006\n"
    # Named by `best`: the same command goes on although `best` may move.
    shutil.move(run_dir / "abandoned-001" / "checkpoints" / step_name(6), folder)
    (folder / "best").write_text(step_name(4) + "\n")
    first = find_start(run_dir, str(folder / "best"))
    assert first.line is not None
    begin_line(run_dir, first.line)
    (folder / "best").write_text(step_name(5) + "\n")
    assert find_start(run_dir, str(folder / "best")).checkpoint == folder / step_name(4)


def _at(state, step, best):
    return replace(state, step=step, best={"step": best, "value": 1.0})


def test_a_damaged_record_is_one_line(run_dir):
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / lines.RECORD).write_text("{")
    with pytest.raises(CheckpointError, match=r"line.json cannot be read .* remove it"):
        read_line(run_dir)


def test_a_file_system_without_links_gets_copies(run_dir, monkeypatch):
    with monitor(run_dir) as watcher:
        log(watcher, [10, 20, 30])
    (run_dir / "checkpoints" / step_name(20)).mkdir(parents=True)
    (run_dir / "checkpoints" / step_name(30)).mkdir()

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    where = f"checkpoints/{step_name(20)}"
    begin_line(run_dir, Line(where, where, "", 20, True, None, moving=(step_name(30),)))
    assert steps_of(run_dir / "abandoned-001") == [10, 20, 30]


@pytest.mark.parametrize("own", [True, False])
def test_curves_of_two_lines_do_not_mix(run_dir, own):
    """TensorBoard goes on from the rewound step; the line before keeps its curves."""
    with monitor(run_dir) as watcher:
        log(watcher, [10, 20, 30])
    for step in (20, 30):
        (run_dir / "checkpoints" / step_name(step)).mkdir(parents=True)
    place = f"checkpoints/{step_name(20)}" if own else "/elsewhere/step-000000020"
    begin_line(run_dir, Line(place, place, "", 20, own, None, moving=(step_name(30),)))
    with monitor(run_dir, start_step=20, start_tokens=2000) as watcher:
        log(watcher, [25, 35], loss=2.0)
    old, new = [(10, 1.0), (20, 1.0), (30, 1.0)], [(25, 2.0), (35, 2.0)]
    assert scalars(run_dir, "steps", "loss") == (old[:2] if own else []) + new
    assert steps_of(run_dir) == ([10, 20] if own else []) + [25, 35]
    assert scalars(run_dir / "abandoned-001", "steps", "loss") == old
    by_tokens = [(100 * step, value) for step, value in old]
    assert scalars(run_dir / "abandoned-001", "tokens", "by_tokens/loss") == by_tokens
    assert steps_of(run_dir / "abandoned-001") == [10, 20, 30]


def test_a_mistyped_place_to_resume_from_is_a_wrong_configuration(tmp_path):
    """Not damaged data, for which a queue would call somebody."""
    with pytest.raises(ConfigError, match=r"checkpoint\.resume .*nowhere: no such folder"):
        find_start(tmp_path / "run", str(tmp_path / "nowhere"))
