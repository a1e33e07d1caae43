"""Runs with the loss-spike guard, prefetching and best-checkpoint tracking, seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_metrics import find_metric
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.checkpoint.files import list_checkpoints, verify, whole_checkpoint
from pipeline.monitor.metrics_file import read_metrics

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"
pytestmark = pytest.mark.dist
GUARD = ["train.spike_deviations=0.5", "train.spike_window_steps=2", "train.max_nonfinite_steps=50"]
STEPS = 12


@pytest.fixture
def pretrain(toy_config, start_ranks, tmp_path):
    def run(name: str, *overrides: str, num_steps: int = STEPS) -> tuple[int, str, str]:
        options = [f"run_dir={tmp_path / name}", f"train.num_steps={num_steps}", *overrides]
        (result,) = start_ranks(1, PRETRAIN, "--config", toy_config, *options).finish()
        return result

    return run


def trained(run_dir: Path) -> list[dict[str, float]]:
    """The lines of training, without what depends on the clock."""
    clock = ("time_s", "tokens_per_second", "tflops", "mfu", "memory_gib")
    lines = [line for line in read_metrics(run_dir / "metrics.jsonl") if "loss" in line]
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def test_guard_prefetch_and_best_checkpoint_are_exact_under_resume(pretrain, tmp_path):
    best = (
        # Perplexity falls, so that the highest is not the last one.
        "checkpoint={every_steps: null, keep_last: 1, best_metric: eval/perplexity/token, "
        "best_is: highest}",
        "evaluate={every_steps: 2, max_contexts: 2}",
    )
    code, _, said = pretrain("whole", *GUARD, *best, "data.prefetch_batches=3")
    assert code == 0, said
    for more in ("train.stop_at_step=7", "train.stop_at_step=null"):
        code, _, err = pretrain("parts", *GUARD, *best, "data.prefetch_batches=0", more)
        assert code == 0, err
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    lines = trained(whole)
    assert lines == trained(parts)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    skipped = lines[-1]["skipped_steps"]
    assert 1 <= skipped < STEPS - 2
    assert said.count("deviations above its average") == skipped

    perplexity = {
        line["step"]: line["eval/perplexity/token"]
        for line in read_metrics(whole / "metrics.jsonl")
        if "eval/perplexity/token" in line
    }
    assert list(perplexity) == [2, 4, 6, 8, 10, 12]
    best_step = max(perplexity, key=lambda step: perplexity[step])
    folder = whole / "checkpoints"
    kept = {int(path.name[-9:]) for path in list_checkpoints(folder)}
    assert kept == {best_step, STEPS}  # the newest, and the best one that is older
    assert (folder / "best").read_text() == f"step-{best_step:09d}\n"
    checkpoint, state = whole_checkpoint(folder / "best")
    assert state.best == {
        "step": best_step,
        "value": perplexity[best_step],
        "by": "highest eval/perplexity/token",
    }
    assert verify(checkpoint).spikes["count"] >= 1

    events = EventAccumulator(str(whole / "tensorboard" / "steps")).Reload()
    wanted = {"mfu", "tflops", "memory_gib", "structure/levels", "structure/agreement"}
    assert wanted <= set(events.Tags()["scalars"])
    assert 0 < events.Scalars("mfu")[-1].value < 1.5
    assert events.Scalars("structure/levels")[0].value >= 1
    assert [name for name in events.Tags()["scalars"] if find_metric(name) is None] == []


def test_a_spike_stops_the_run_where_that_is_wanted(pretrain, tmp_path):
    code, out, err = pretrain("run", *GUARD, "train.spike_action=stop", "checkpoint.every_steps=50")
    assert (code, out) == (1, ""), err
    last = err.splitlines()[-1]
    assert last.startswith("pretrain: stopped before step ")
    assert "deviations above its average" in last
    assert "train.spike_action=skip" in last
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert str(checkpoint) in last
    state = verify(checkpoint)
    assert f"stopped before step {state.step + 1}:" in last
    assert state.skipped_steps == 0


def test_samples_are_written_on_their_schedule(pretrain, tmp_path):
    options = (
        "{log_every_steps: 3, sample_every_steps: 2, sentences: [w1 w4 w7 w10], prompts: [w2]}"
    )
    treebank = tmp_path / "gold.txt"
    treebank.write_text("(S (NP (D w1) (N w2)) (VP (V w3) (N w4)))\n")
    evaluate = f"evaluate={{every_steps: 2, max_contexts: 2, treebank: {treebank}}}"
    overrides = (f"monitor={options}", evaluate, "engine.zero_stage=3")
    code, _, err = pretrain("run", *overrides, num_steps=4)
    assert code == 0, err
    lines = read_metrics(tmp_path / "run" / "samples.jsonl")
    assert [line["step"] for line in lines] == [2, 4]
    assert all(len(line["continuations"][0].split()) >= 1 for line in lines)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "steps")).Reload()
    assert [event.step for event in events.Images("trees/0")] == [2, 4]
    assert [event.step for event in events.Scalars("trees/change")] == [4]
    scored = [
        line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval/f1" in line
    ]
    assert [line["step"] for line in scored] == [2, 4]
    assert all(line["eval/f1"] in (0.0, 50.0, 100.0) for line in scored)
