"""A rewind begins a new line: nothing of the old one is lost, mixed in, or gone on from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from played_run import Player, Start, next_weight

from pipeline.checkpoint.files import list_checkpoints, newest_whole, step_name, verify
from pipeline.checkpoint.lines import begin_line, complete_line, read_line
from pipeline.checkpoint.start_point import find_start
from pipeline.monitor.metrics_file import read_metrics


def weights(tags: list[int], first: int = 0) -> list[int]:
    """The model after each step, of which `tags` has the trainings'."""
    found = [first]
    for step, tag in enumerate(tags):
        found.append(next_weight(found[-1], step, tag))
    return found


@pytest.fixture
def player(toy_config, run_dir):
    return Player(toy_config, run_dir)


def steps(run_dir: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(run_dir / "checkpoints")]


def losses(run_dir: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(run_dir / "metrics.jsonl")]


def as_losses(found: list[int]) -> list[tuple[int, float]]:
    return [(step, float(weight)) for step, weight in enumerate(found) if step]


def test_a_rewind_begins_a_line_and_the_same_command_goes_on(player, run_dir):
    checkpoints, aside = run_dir / "checkpoints", run_dir / "abandoned-001"
    assert player.start(Start(to_step=9, tag=1)).code == 0
    assert steps(run_dir) == [6, 9]
    again = str(checkpoints / step_name(6))

    seen = player.start(Start(to_step=7, tag=2, resume=again))
    assert seen.code == 0, seen.err
    one, two = weights([1] * 9), weights([1] * 6 + [2] * 9)
    assert ("start", 6, one[6]) in seen.events
    said = "a new line begins at step 6 (checkpoints/step-000000006): 1 checkpoints"
    assert said in seen.err
    assert str(aside) in seen.err
    assert steps(run_dir) == [6, 7]
    assert (checkpoints / "latest").read_text() == "step-000000007\n"
    assert losses(run_dir) == as_losses(two[:8])
    # The line before is there as it was, and is itself a run's folder.
    assert steps(aside) == [9]
    assert losses(aside) == as_losses(one)
    assert (aside / "checkpoints" / "latest").read_text() == "step-000000009\n"
    assert "learning_rate: 0.001" in (aside / "config.yaml").read_text()

    # As a queue does it: the command again. Then one without `resume`.
    seen = player.start(Start(to_step=13, tag=2, resume=again))
    assert ("start", 7, two[7]) in seen.events
    assert "to begin it again, remove" in seen.err
    assert steps(run_dir) == [12, 13]  # the source went only when newer ones were whole
    seen = player.start(Start(to_step=15, tag=2, resume=again))
    assert ("start", 13, two[13]) in seen.events
    seen = player.start(Start(to_step=15, tag=2))
    assert ("start", 15, two[15]) in seen.events
    assert losses(run_dir) == as_losses(two)
    assert [path.name for path in run_dir.glob("abandoned-*")] == ["abandoned-001"]


def test_an_altered_latest_goes_back_as_well(player, run_dir):
    player.start(Start(to_step=9))
    (run_dir / "checkpoints" / "latest").write_text("step-000000006\n")
    seen = player.start(Start(to_step=8, tag=2))
    assert ("start", 6, weights([1] * 6)[6]) in seen.events
    assert steps(run_dir) == [6, 8]
    assert steps(run_dir / "abandoned-001") == [9]


def test_a_checkpoint_of_another_run(player, toy_config, run_dir, tmp_path):
    """It begins the run; what was in its folder is set aside, and the command again goes on."""
    player.start(Start(to_step=6, tag=1))
    other = Player(toy_config, tmp_path / "other")
    other.start(Start(to_step=9, tag=5))
    source = str(run_dir / "checkpoints" / step_name(3))
    # Killed before its first checkpoint, and started without `resume`: from the source, not from 0.
    seen = other.start(Start(to_step=3, tag=2, resume=source))
    assert ("start", 3, weights([1] * 3)[3]) in seen.events
    assert steps(tmp_path / "other") == []
    assert losses(tmp_path / "other") == []
    assert steps(tmp_path / "other" / "abandoned-001") == [6, 9]
    assert losses(tmp_path / "other" / "abandoned-001") == as_losses(weights([5] * 9))
    seen = other.start(Start(to_step=5, tag=2))
    assert ("start", 3, weights([1] * 3)[3]) in seen.events
    seen = other.start(Start(to_step=6, tag=2, resume=source))
    two = weights([1] * 3 + [2] * 3)
    assert ("start", 5, two[5]) in seen.events
    assert losses(tmp_path / "other") == as_losses(two)[3:]
    assert steps(run_dir) == [3, 6]

    third = Player(toy_config, tmp_path / "third")
    third.start(Start(to_step=3, tag=2, resume=source))
    shutil.rmtree(source)
    seen = third.start(Start(to_step=6))
    assert seen.code == 3
    assert seen.err.count("\n") == 1
    assert "checkpoint.resume=none" in seen.err


def test_nothing_whole_ends_every_start_with_3_and_one_line(player, run_dir):
    """One flipped byte in each: nothing is renamed, nothing begins at 0, metrics stay."""
    player.start(Start(to_step=6))
    for path in list_checkpoints(run_dir / "checkpoints"):
        file = next(path.glob("zero*"))
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = sorted(str(path) for path in run_dir.rglob("*"))
    metrics = (run_dir / "metrics.jsonl").read_bytes()
    for _ in range(2):
        seen = player.start(Start(to_step=9))
        assert seen.code == 3
        assert seen.err.count("\n") == 1
        assert "none of the 2 checkpoints" in seen.err
        assert "checkpoint.resume=none" in seen.err
        assert sorted(str(path) for path in run_dir.rglob("*")) == before
        assert (run_dir / "metrics.jsonl").read_bytes() == metrics
    # Told so in words; and the same command again goes on.
    for to_step, begins in ((4, 0), (5, 4)):
        seen = player.start(Start(to_step=to_step, tag=3, resume="none"))
        assert seen.code == 0
        assert ("start", begins, weights([3] * 4)[begins]) in seen.events
    assert losses(run_dir) == as_losses(weights([3] * 5))
    assert steps(run_dir / "abandoned-001") == [3, 6]
    assert losses(run_dir / "abandoned-001") == as_losses(weights([1] * 6))


def test_a_run_with_refused_checkpoints_alone_does_not_begin_at_0(player, run_dir):
    player.start(Start(to_step=3))
    folder = run_dir / "checkpoints"
    os.rename(folder / step_name(3), folder / f"refused-{step_name(3)}")
    for resume, code in (("auto", 3), ("never", 2)):
        seen = player.start(Start(to_step=6, resume=resume))
        assert (seen.code, seen.err.count("\n")) == (code, 1)
    assert losses(run_dir) == as_losses(weights([1] * 3))


def test_what_cannot_be_read_for_now_stops_and_changes_nothing(player, run_dir):
    player.start(Start(to_step=6))
    file = next((run_dir / "checkpoints" / step_name(6)).glob("zero*"))
    for _ in range(2):
        seen = player.start(Start(to_step=9, unreadable=(str(file),)))
        assert (seen.code, seen.err.count("\n")) == (3, 1)
        assert "cannot be read (Permission denied)" in seen.err
        assert steps(run_dir) == [3, 6]
    seen = player.start(Start(to_step=7))
    assert ("start", 6, weights([1] * 6)[6]) in seen.events


def test_a_kill_at_any_moment_of_a_rewind_leaves_one_of_the_two_lines(
    player, run_dir, tmp_path, monkeypatch
):
    """Before the record is written the old line is whole; after it the next start finishes."""
    player.start(Start(to_step=9))
    kept = tmp_path / "kept"
    shutil.copytree(run_dir, kept)
    source = run_dir / "checkpoints" / step_name(6)
    outcomes = set()
    for number in range(1, 100):
        shutil.rmtree(run_dir)
        shutil.copytree(kept, run_dir)
        line = find_start(run_dir, str(source)).line
        assert line is not None
        done = 0

        def counted(plain, number=number):
            def operation(*arguments, **options):
                nonlocal done
                done += 1
                if done == number:
                    raise KeyboardInterrupt
                return plain(*arguments, **options)

            return operation

        killed = False
        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "mkdir", "link", "unlink", "fsync"):
                patch.setattr(os, name, counted(getattr(os, name)))
            try:
                begin_line(run_dir, line)
            except KeyboardInterrupt:
                killed = True
        complete_line(run_dir)
        newest = newest_whole(run_dir / "checkpoints")
        assert newest is not None
        outcomes.add(newest.state.step)
        everything = {path.name for path in run_dir.rglob("step-*")}
        assert everything == {step_name(6), step_name(9)}
        if newest.state.step == 6:
            assert steps(run_dir) == [6]
            assert steps(run_dir / "abandoned-001") == [9]
            assert losses(run_dir / "abandoned-001") == as_losses(weights([1] * 9))
            assert verify(run_dir / "abandoned-001" / "checkpoints" / step_name(9)).step == 9
        else:
            assert steps(run_dir) == [6, 9]
            assert read_line(run_dir) is None
        if not killed:
            break
    assert not killed
    assert number > 12
    assert outcomes == {6, 9}


def test_a_run_can_be_moved(player, run_dir, tmp_path, toy_config):
    """The record has paths within the run relative to it."""
    player.start(Start(to_step=9))
    player.start(Start(to_step=7, tag=2, resume=str(run_dir / "checkpoints" / step_name(6))))
    moved = tmp_path / "moved"
    os.rename(run_dir, moved)
    again = str(moved / "checkpoints" / step_name(6))
    seen = Player(toy_config, moved).start(Start(to_step=8, tag=2, resume=again))
    assert ("start", 7, weights([1] * 6 + [2])[7]) in seen.events


PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"


@pytest.mark.slow
@pytest.mark.dist
def test_a_real_run_is_rewound_and_ends_as_before(toy_config, start_ranks, run_dir):
    """With the same configuration the new line has the same numbers, bit for bit."""

    def train(*overrides):
        (result,) = start_ranks(1, PRETRAIN, "--config", toy_config, *overrides).finish()
        assert result[0] == 0, result
        return result

    train("train.num_steps=6")
    before = losses(run_dir)
    weights_of = (run_dir / "checkpoints" / step_name(6) / "state.json").read_text()
    rewind = f"checkpoint.resume={run_dir / 'checkpoints' / step_name(4)}"
    train("train.num_steps=6", rewind)
    assert losses(run_dir) == before
    state = json.loads((run_dir / "checkpoints" / step_name(6) / "state.json").read_text())
    assert state["next_loss"] == json.loads(weights_of)["next_loss"]
    assert steps(run_dir / "abandoned-001") == [6]
