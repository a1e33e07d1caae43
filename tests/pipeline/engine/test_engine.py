"""Ranks under DeepSpeed against plain PyTorch on the same global batches, real models.

Every ZeRO stage, alone and after every other one, on one rank and on two.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine_cases import (
    BF16,
    CASES,
    FP16,
    FRESH,
    GPT2,
    HALF,
    RESUMED,
    SLOW_BF16,
    SLOW_FRESH,
    SLOW_RESUMED,
    Case,
)
from plain_training import Reference, plain_adamw, plain_bf16

from gpst.config import config_from_dict
from gpst.model.build import build_model
from pipeline.checkpoint.manager import load_model_weights
from pipeline.config.run import load_config
from pipeline.data.order import batch_samples
from pipeline.train.preflight import check_run

WORKER = Path(__file__).with_name("worker_engine.py")
NUM_STEPS, NUM_MORE = 7, 1
"""Steps before and after the checkpoint."""
POISONED_STEP = 3
SEED = 669
"""In steps 2 and 5 all of rank 1's sentences have one token: its composition model idles."""


def marked(*cases: str) -> list[Any]:
    """Cases as parameters of a test; those that only the long run has are marked."""
    quick = {**FRESH, **BF16, **RESUMED}
    return [c if c in quick else pytest.param(c, marks=pytest.mark.slow) for c in cases]


@pytest.fixture(scope="module")
def exact_yaml(tmp_path_factory, toy_run):
    """A run without dropout and noise: any cut of a global batch has the same gradient."""
    run = toy_run(Path("unused"))
    run["model"] |= {"dropout": 0.0, "head_dropout": 0.0}
    run["model"]["composition"] |= {"dropout": 0.0}
    run["model"]["parser"] |= {"dropout": 0.0}
    run["structure"] = {"noise_start": 0.0, "noise_end": 0.0}
    run["train"] |= {"clip_norm": 0.2, "num_steps": 12}
    run["seed"] = SEED
    # Adam turns rounding into whole steps where a gradient is nothing but rounding: not with this.
    run["optim"] |= {"eps": 1e-4}
    path = tmp_path_factory.mktemp("engine") / "exact.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


@pytest.fixture(scope="module")
def references(exact_yaml):
    """Of GPST ("") and GPT-2 ("gpt2")."""
    return {
        name: plain_adamw(exact_yaml, overrides, (NUM_STEPS, NUM_MORE), POISONED_STEP)
        for name, overrides in (("", ()), ("gpt2", (GPT2,)))
    }


def run_cases(exact_yaml, output: Path, cases: dict[str, Case]) -> None:
    file = output / "cases.json"
    plans = [
        {
            "name": name,
            "config": str(exact_yaml),
            "ranks": case.ranks,
            "after": case.after,
            "overrides": [f"engine.zero_stage={case.stage}", *case.overrides],
        }
        for name, case in cases.items()
    ]
    file.write_text(json.dumps(plans))
    done = subprocess.run(
        [sys.executable, str(WORKER), str(output), str(file)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(exact_yaml):
    """runs(case) -> what each rank saw; all quick cases run at the first use, slow ones too if
    one of them is asked for."""
    output = exact_yaml.parent / "runs"
    output.mkdir()
    quick = {**FRESH, **BF16, **RESUMED}
    known: dict[str, Case] = {}

    def find(name: str) -> list[dict[str, Any]]:
        wanted = quick if name in quick else CASES
        missing = {name: case for name, case in wanted.items() if name not in known}
        if missing:
            known.update(missing)
            run_cases(exact_yaml, output, missing)
        return [torch.load(output / name / f"rank-{r}.pt") for r in range(CASES[name].ranks)]

    find.folder = output  # type: ignore[attr-defined]
    return find


def reference_of(name: str, references) -> Reference:
    return references["gpt2" if "gpt2" in name else ""]


def test_the_batches_are_hard_ones(exact_yaml):
    """A rank gets micro-batches without any split, another one of the same step with some."""
    checked = check_run(load_config(exact_yaml), 1)
    splits = [
        [
            checked.source.counts(
                checked.source.sample(SEED, batch_samples(step, micro, **cut))
            ).splits
            for cut in (
                {"rank": r, "world_size": 2, "micro_batch": 2, "accumulation": 2} for r in (0, 1)
            )
        ]
        for step in range(NUM_STEPS)
        for micro in range(2)
    ]
    assert any(pair[0] == 0 < pair[1] for pair in splits)
    for step in (2, 5):
        assert splits[2 * step][1] == splits[2 * step + 1][1] == 0
        assert splits[2 * step][0] + splits[2 * step + 1][0] > 0


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*FRESH, *SLOW_FRESH))
def test_fp32_is_plain_adamw(name, runs, references):
    """All steps: losses, gradient norms and parameters."""
    reference, rank_0 = reference_of(name, references), runs(name)[0]
    seen = [*rank_0["steps"], *rank_0["more"]]
    assert [step[0] for step in seen] == [n != POISONED_STEP for n in range(NUM_STEPS + NUM_MORE)]
    for (applied, norm, _, metrics), loss, expected in zip(
        seen, reference.losses, reference.norms, strict=True
    ):
        if applied:
            assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
            assert norm == pytest.approx(expected, rel=1e-4)
    same(rank_0["parameters"], reference.weights)
    same(rank_0["later"], reference.later)
    assert max(reference.norms) > 0.2  # clipping was at work


def same(found, expected, atol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=atol, rtol=0)


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*FRESH, *HALF, *SLOW_FRESH))
def test_non_finite_step_changes_nothing_on_any_rank(name, runs):
    for rank in runs(name):
        applied, norm, unchanged, metrics = rank["steps"][POISONED_STEP]
        assert (applied, norm, unchanged) == (False, math.inf, True)
        assert math.isnan(metrics["loss"])
        assert not rank["steps"][POISONED_STEP + 1][2]


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*FRESH, *BF16))
def test_ranks_agree_and_metrics_are_global(name, runs):
    ranks = runs(name)
    for rank in ranks[1:]:
        same(rank["later"], ranks[0]["later"], atol=0)
        assert rank["steps"][0][3] == ranks[0]["steps"][0][3]


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*FP16))
def test_fp16_stays_near_fp32(name, runs, references):
    """The loss scale is found on the way: whole steps are skipped for it only when they must be."""
    rank_0 = runs(name)[0]
    for step, (applied, norm, _, metrics) in enumerate(rank_0["steps"]):
        assert applied == (step != POISONED_STEP)
        if applied:
            # A split chosen otherwise, by rounding, parts the runs.
            loss, expected = references[""].losses[step], references[""].norms[step]
            assert metrics["loss"] == pytest.approx(loss, abs=2e-3 if step == 0 else 0.15)
            assert norm == pytest.approx(expected, rel=1e-2 if step == 0 else 0.25)


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*BF16, *SLOW_BF16))
def test_bf16_has_fp32_masters(name, runs, bf16_reference):
    rank_0 = runs(name)[0]
    for step, (_, norm, _, metrics) in enumerate(rank_0["steps"]):
        if step != POISONED_STEP:
            # The last bit of a sum decides how a value is rounded to bf16, and runs part there.
            loss, reference_norm = bf16_reference[step]
            assert metrics["loss"] == pytest.approx(loss, abs=1e-3 if step == 0 else 0.15)
            assert norm == pytest.approx(reference_norm, rel=1e-2 if step == 0 else 0.25)
    # Before rounding can part them, the stages agree.
    first, expected = rank_0["steps"][0], runs("bf16-3")[0]["steps"][0]
    assert first[3]["loss"] == expected[3]["loss"]
    assert first[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def bf16_reference(exact_yaml):
    """On one thread, as the ranks: sums of another order are rounded otherwise, and runs part."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return plain_bf16(exact_yaml, NUM_STEPS, POISONED_STEP)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*FRESH, *HALF, *SLOW_FRESH))
def test_weights_of_a_checkpoint_are_the_models(name, runs):
    rank_0 = runs(name)[0]
    config, weights = load_model_weights(runs.folder / name)
    assert config["engine"]["zero_stage"] == CASES[name].stage
    assert set(weights) == set(rank_0["parameters"])
    for key, value in rank_0["parameters"].items():
        assert weights[key].dtype == torch.float32
        # In half precision the model's own values are its fp32 masters, rounded.
        assert torch.equal(weights[key].to(value.dtype), value)
    build_model(config_from_dict(config["model"])).load_state_dict(weights, strict=True)


@pytest.mark.dist
@pytest.mark.parametrize("name", marked(*RESUMED, *SLOW_RESUMED))
def test_any_stage_and_ranks_follow_any_others(name, runs):
    """The same parameters, moments carried over; bit for bit where nothing else has changed."""
    case = CASES[name]
    assert case.after is not None
    before, then = runs(case.after)[0], runs(name)[0]
    same(then["before"], before["parameters"], atol=0)
    for old, new in zip(before["more"], then["more"], strict=True):
        half = case.after in HALF
        assert new[3]["loss"] == pytest.approx(old[3]["loss"], abs=1e-2 if half else 1e-5)
        assert new[1] == pytest.approx(old[1], rel=5e-2 if half else 1e-4)
        assert not new[2]
    alike = CASES[case.after]
    if (case.stage, case.ranks) == (alike.stage, alike.ranks):
        same(then["later"], before["later"], atol=0)
        assert [step[3] for step in then["more"]] == [step[3] for step in before["more"]]
    elif case.after not in HALF:
        same(then["later"], before["later"], atol=1e-6)
