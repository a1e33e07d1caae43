"""Two ranks under DeepSpeed against plain PyTorch on the same global batches, real model."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml

from gpst.losses import total_loss
from gpst.model import build_model
from pipeline.checkpoint import load_model_weights
from pipeline.config import load_config
from pipeline.engine_config import check_deepspeed_entries, deepspeed_config
from pipeline.errors import ConfigError
from pipeline.metrics_file import read_metrics
from pipeline.preflight import check_run
from pipeline.resolve import BatchPlan
from pipeline.sampler import batch_samples, step_samples
from pipeline.schedule import schedule

WORKER = Path(__file__).with_name("worker_engine.py")
PRETRAIN = Path(__file__).parents[2] / "launch" / "pretrain.sh"
NUM_STEPS, POISONED_STEP = 6, 3
NUM_MORE = 2
"""Steps after the checkpoint, by another number of ranks."""
FP32 = ("fp32-0", "fp32-1", "fp32-2")
BF16 = ("bf16-1", "bf16-2")


class Reference(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    """After NUM_STEPS."""
    later_weights: dict[str, torch.Tensor]
    """After NUM_MORE more."""


@pytest.fixture(scope="module")
def exact_yaml(tmp_path_factory, toy_run):
    """A run without dropout and noise: any cut of a global batch has the same gradient."""
    run = toy_run(Path("unused"))
    run["model"] |= {"dropout": 0.0, "head_dropout": 0.0}
    run["model"]["composition"] |= {"dropout": 0.0, "score_dropout": 0.0}
    run["model"]["parser"] |= {"dropout": 0.0}
    run["structure"] = {"noise_start": 0.0, "noise_end": 0.0}
    run["train"] |= {"clip_norm": 0.2}
    # Adam turns rounding into whole steps where a gradient is nothing but rounding: not with this.
    run["optim"] |= {"eps": 1e-4}
    path = tmp_path_factory.mktemp("engine") / "exact.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


@pytest.fixture(scope="module")
def reference(exact_yaml):
    """Plain AdamW on whole batches in one process."""
    plan = check_run(load_config(exact_yaml), 1)
    config = plan.config
    torch.manual_seed(config.seed)
    model = build_model(config.model_config)
    groups = model.parameter_groups()  # type: ignore[operator]
    vectors = [p for p in groups["parser"] if p.ndim < 2]
    matrices = [p for p in groups["parser"] if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1, "parser": True},
            {"params": vectors, "weight_decay": 0.0, "parser": True},
            {"params": groups["decay"], "weight_decay": 0.1, "parser": False},
            {"params": groups["no_decay"], "weight_decay": 0.0, "parser": False},
        ],
        betas=(0.9, 0.999),
        eps=1e-4,
    )
    losses, norms = [], []
    for step in range(NUM_STEPS + NUM_MORE):
        if step == NUM_STEPS:
            trained = {name: value.clone() for name, value in model.state_dict().items()}
        contexts = plan.source.sample(config.seed, step_samples(step, 8))
        batch = plan.source.batch(contexts)
        loss = total_loss(model(batch).losses, batch.counts)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())
        losses.append(loss.item())
        for group in optimizer.param_groups:
            now = schedule(config, step)
            group["lr"] = now.parser_learning_rate if group["parser"] else now.learning_rate
        if step != POISONED_STEP:
            optimizer.step()
    return Reference(losses, norms, trained, model.state_dict())


@pytest.fixture(scope="module")
def trained(exact_yaml):
    """case -> what rank 0 and rank 1 saw, and the folder of the case."""
    output = exact_yaml.parent / "runs"
    output.mkdir()
    subprocess.run(
        [sys.executable, str(WORKER), str(exact_yaml), str(output), *FP32, *BF16],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=240,
        check=True,
    )
    return {
        case: ([torch.load(output / case / f"rank-{r}.pt") for r in (0, 1)], output / case)
        for case in (*FP32, *BF16)
    }


def test_the_batches_are_hard_ones(exact_yaml):
    """A rank gets micro-batches without any split, another one of the same step with some."""
    plan = check_run(load_config(exact_yaml), 1)
    splits = [
        [
            plan.source.counts(plan.source.sample(0, batch_samples(step, micro, **cut))).splits
            for cut in (
                {"rank": r, "world_size": 2, "micro_batch": 2, "accumulation": 2} for r in (0, 1)
            )
        ]
        for step in range(NUM_STEPS)
        for micro in range(2)
    ]
    assert any(min(pair) == 0 < max(pair) for pair in splits)


@pytest.mark.dist
@pytest.mark.parametrize("case", FP32)
def test_fp32_is_plain_adamw(case, trained, reference):
    losses, norms = reference.losses[:NUM_STEPS], reference.norms[:NUM_STEPS]
    (rank_0, _), _ = trained[case]
    applied = [step != POISONED_STEP for step in range(NUM_STEPS)]
    assert [seen[0] for seen in rank_0["steps"]] == applied
    for (_, norm, _, metrics), loss, expected, was_applied in zip(
        rank_0["steps"], losses, norms, applied, strict=True
    ):
        if was_applied:
            assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
            assert norm == pytest.approx(expected, rel=1e-4)
    for name, value in reference.weights.items():
        torch.testing.assert_close(rank_0["parameters"][name], value, atol=1e-5, rtol=0)
    assert max(norms) > 0.2  # clipping was at work


@pytest.mark.dist
@pytest.mark.parametrize("case", FP32 + BF16)
def test_non_finite_step_changes_nothing_on_any_rank(case, trained):
    for rank in trained[case][0]:
        applied, norm, same, metrics = rank["steps"][POISONED_STEP]
        assert (applied, norm, same) == (False, math.inf, True)
        assert math.isnan(metrics["loss"])
        assert not rank["steps"][POISONED_STEP + 1][2]


@pytest.mark.dist
@pytest.mark.parametrize("case", FP32 + BF16)
def test_ranks_agree_and_metrics_are_global(case, trained):
    (rank_0, rank_1), _ = trained[case]
    for name, value in rank_0["parameters"].items():
        assert torch.equal(value, rank_1["parameters"][name])
    assert rank_0["steps"][0][3] == rank_1["steps"][0][3]


@pytest.mark.dist
@pytest.mark.parametrize("case", BF16)
def test_bf16_stays_near_fp32(case, trained, reference):
    (rank_0, _), _ = trained[case]
    losses = [seen[3]["loss"] for seen in rank_0["steps"]]
    for step, (loss, expected) in enumerate(zip(losses, reference.losses, strict=False)):
        if step != POISONED_STEP:
            assert loss == pytest.approx(expected, abs=0.1)
    assert all(value.isfinite().all() for value in rank_0["parameters"].values())


@pytest.mark.dist
@pytest.mark.parametrize("case", FP32 + BF16)
def test_weights_of_a_checkpoint_are_the_models(case, trained):
    (rank_0, _), folder = trained[case]
    config, weights = load_model_weights(folder)
    assert config["engine"]["zero_stage"] == int(case[-1])
    assert set(weights) == set(rank_0["parameters"])
    for name, value in rank_0["parameters"].items():
        assert weights[name].dtype == torch.float32
        # Under bf16 the model's own values are its fp32 masters, rounded.
        assert torch.equal(weights[name].to(value.dtype), value)
    from gpst.config import config_from_dict

    build_model(config_from_dict(config["model"])).load_state_dict(weights, strict=True)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "stage"),
    [
        ("fp32-1", 2),
        ("bf16-1", 2),
        pytest.param("fp32-2", 1, marks=pytest.mark.slow),
    ],
)
def test_one_rank_goes_on_from_two(case, stage, trained, reference, exact_yaml, start_ranks):
    """The checkpoint of two ranks, converted unasked: same batches, moments carried over."""
    _, folder = trained[case]
    run_dir = folder.with_name(f"{case}-on-one")
    shutil.copytree(folder / "checkpoints", run_dir / "checkpoints")
    precision = case.split("-")[0]
    overrides = (
        f"run_dir={run_dir}",
        f"engine.zero_stage={stage}",
        f"engine.precision={precision}",
    )
    ((code, _, err),) = start_ranks(1, PRETRAIN, "--config", exact_yaml, *overrides).finish()
    assert code == 0, err
    lines = read_metrics(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [7, 8]
    if precision == "fp32":
        losses = [line["loss"] for line in lines]
        assert losses == pytest.approx(reference.losses[NUM_STEPS:], abs=1e-5)
        for name, value in load_model_weights(run_dir)[1].items():
            torch.testing.assert_close(value, reference.later_weights[name], atol=1e-5, rtol=0)
    assert not list((run_dir / "checkpoints").glob(".*"))  # nothing is left of the conversion


PLAN = BatchPlan(global_batch=8, micro_batch=2, accumulation=2, world_size=2)


def engine_config(exact_yaml, *entries):
    return load_config(exact_yaml, [f"engine.{entry}" for entry in entries])


def test_deepspeed_config_follows_from_the_run(exact_yaml):
    config = engine_config(
        exact_yaml,
        "zero_stage=2",
        "precision=bf16",
        "deepspeed={zero_optimization: {reduce_bucket_size: 1000}, train_batch_size: 8}",
    )
    made = deepspeed_config(config, PLAN)
    assert made["train_batch_size"] == 8
    assert made["train_micro_batch_size_per_gpu"] == made["gradient_accumulation_steps"] == 2
    assert made["gradient_clipping"] == 0.2
    assert made["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert made["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ("{train_batch_size: 9}", ["train_batch_size", "9", "train.global_batch_contexts"]),
        ("{zero_optimization: {stage: 3}}", ["zero_optimization.stage", "engine.zero_stage"]),
        ("{optimizer: {type: SGD}}", ["optimizer", "optim"]),
        ("{fp16: {enabled: true}}", ["fp16", "engine.precision"]),
        ("{zero_optimisation: {}}", ["zero_optimisation", "zero_optimization"]),
        ("{zero_optimization: {overlap_com: true}}", ["overlap_com"]),
    ],
)
def test_deepspeed_entries_are_checked(exact_yaml, entries, names):
    config = engine_config(exact_yaml, f"deepspeed={entries}")
    with pytest.raises(ConfigError) as caught:
        check_deepspeed_entries(config, PLAN)
    assert all(name in str(caught.value) for name in names), str(caught.value)
    assert "\n" not in str(caught.value)


def test_known_deepspeed_entries_pass(exact_yaml):
    entries = "{wall_clock_breakdown: true, flops_profiler: {enabled: true}, steps_per_print: 5}"
    check_deepspeed_entries(engine_config(exact_yaml, f"deepspeed={entries}"), PLAN)
