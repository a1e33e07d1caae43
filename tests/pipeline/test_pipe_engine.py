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
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from gpst.config import config_from_dict
from gpst.losses import total_loss
from gpst.model import build_model
from pipeline.checkpoint import load_model_weights
from pipeline.config import load_config
from pipeline.engine import check_precision
from pipeline.engine_config import check_deepspeed_entries, deepspeed_config
from pipeline.errors import ConfigError
from pipeline.optim import build_optimizer, set_rates
from pipeline.preflight import check_run
from pipeline.resolve import BatchPlan
from pipeline.sampler import batch_samples, step_samples
from pipeline.schedule import schedule

WORKER = Path(__file__).with_name("worker_engine.py")
NUM_STEPS, NUM_MORE = 8, 2
"""Steps before and after the checkpoint."""
POISONED_STEP = 3
SEED = 669
"""In steps 2 and 5 all of rank 1's sentences have one token: its composition model idles."""
NOTHING_STAYS = "engine.deepspeed={zero_optimization: {stage3_param_persistence_threshold: 0}}"
"""In stage 3 DeepSpeed keeps small weights whole: all of ours are small."""
RECOMPUTE = "engine.checkpointing=[composition, generator]"
OFFLOAD = "engine.offload_optimizer=true"
SIZES = "hidden_dim: 32, num_heads: 2, ffn_dim: 64, max_context_tokens: 32, dropout: 0.0"
GPT2 = f"model={{kind: gpt2, num_layers: 2, {SIZES}}}"


class Case(NamedTuple):
    """A run of the worker."""

    stage: int
    ranks: int = 2
    overrides: tuple[str, ...] = ()
    after: str | None = None


FRESH = {
    "0": Case(0),
    "1": Case(1),
    "2": Case(2),
    "3": Case(3, 2, (NOTHING_STAYS,)),
    "3-all": Case(3, 2, (NOTHING_STAYS, RECOMPUTE, OFFLOAD)),
    "3-gpt2": Case(3, 2, (NOTHING_STAYS, GPT2)),
    "1-alone": Case(1, 1),
}
SLOW_FRESH = {
    "3-small": Case(3),  # small weights stay whole
    "3-alone": Case(3, 1, (NOTHING_STAYS,)),
    "3-recompute": Case(3, 2, (NOTHING_STAYS, RECOMPUTE)),
    "2-recompute": Case(2, 2, (RECOMPUTE,)),
    "1-offload": Case(1, 2, (OFFLOAD,)),
    "2-offload": Case(2, 2, (OFFLOAD, RECOMPUTE)),
    "3-offload": Case(3, 2, (NOTHING_STAYS, OFFLOAD)),
    "3-whole": Case(3, 2, (NOTHING_STAYS, "train.micro_batch_contexts_per_rank=4")),
    "3-single": Case(3, 2, (NOTHING_STAYS, "train.micro_batch_contexts_per_rank=1")),
    "0-gpt2": Case(0, 2, (GPT2,)),
    "1-gpt2": Case(1, 2, (GPT2,)),
    "2-gpt2": Case(2, 1, (GPT2, RECOMPUTE)),
    "3-gpt2-recompute": Case(3, 2, (NOTHING_STAYS, GPT2, RECOMPUTE)),
}
BF16 = {
    f"bf16-{stage}": Case(stage, 2, ("engine.precision=bf16", NOTHING_STAYS)) for stage in (1, 3)
}
SLOW_BF16 = {"bf16-2": Case(2, 2, ("engine.precision=bf16",))}
FP16 = {
    f"fp16-{stage}": Case(stage, 2, ("engine.precision=fp16", NOTHING_STAYS)) for stage in (1, 2, 3)
}
HALF = {**BF16, **SLOW_BF16, **FP16}


def following(before: str, stage: int, ranks: int = 2) -> tuple[str, Case]:
    """The case that goes on from the checkpoint of another one."""
    own = {**FRESH, **SLOW_FRESH, **HALF}[before].overrides
    overrides = tuple(dict.fromkeys((*own, NOTHING_STAYS)))
    return f"{before}-then-{stage}-on-{ranks}", Case(stage, ranks, overrides, before)


RESUMED = dict(
    following(*case)
    for case in [
        ("1", 1),
        ("3", 3),
        ("0", 2, 1),
        ("3", 0, 1),
        ("1-alone", 3),
        ("bf16-3", 1, 1),
    ]
)
SLOW_RESUMED = {
    name: case
    for name, case in (
        *(following(str(a), b, r) for a in range(4) for b in range(4) for r in (1, 2)),
        *(following(a, b) for a in ("1-alone", "3-alone") for b in range(4)),
        *(following(f"bf16-{a}", b, r) for a in (1, 2, 3) for b in (1, 2, 3) for r in (1, 2)),
        *(following(f"fp16-{a}", b, r) for a, b, r in ((1, 1, 2), (1, 3, 1), (3, 2, 1), (2, 3, 2))),
        *(following("3-gpt2", b, r) for b in range(4) for r in (1, 2)),
    )
    if name not in RESUMED
}
CASES = {**FRESH, **SLOW_FRESH, **HALF, **RESUMED, **SLOW_RESUMED}


def marked(*cases: str) -> list[Any]:
    """Cases as parameters of a test; those that only the long run has are marked."""
    quick = {**FRESH, **BF16, **RESUMED}
    return [c if c in quick else pytest.param(c, marks=pytest.mark.slow) for c in cases]


class Reference(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    """After NUM_STEPS."""
    later: dict[str, torch.Tensor]
    """After NUM_MORE more."""


@pytest.fixture(scope="module")
def exact_yaml(tmp_path_factory, toy_run):
    """A run without dropout and noise: any cut of a global batch has the same gradient."""
    run = toy_run(Path("unused"))
    run["model"] |= {"dropout": 0.0, "head_dropout": 0.0}
    run["model"]["composition"] |= {"dropout": 0.0, "score_dropout": 0.0}
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
    return {"": plain_adamw(exact_yaml), "gpt2": plain_adamw(exact_yaml, GPT2)}


def plain_adamw(exact_yaml, *overrides: str) -> Reference:
    """Plain AdamW on whole batches in one process."""
    plan = check_run(load_config(exact_yaml, overrides), 1)
    config = plan.config
    torch.manual_seed(config.seed)
    model = build_model(config.model_config)
    groups = model.parameter_groups()  # type: ignore[operator]
    parser = groups.get("parser", [])
    settings = [
        ([p for p in parser if p.ndim >= 2], 0.1, True),
        ([p for p in parser if p.ndim < 2], 0.0, True),
        (groups["decay"], 0.1, False),
        (groups["no_decay"], 0.0, False),
    ]
    optimizer = torch.optim.AdamW(
        [{"params": p, "weight_decay": decay, "parser": own} for p, decay, own in settings if p],
        betas=(0.9, 0.999),
        eps=1e-4,
    )
    losses, norms, trained = [], [], {}
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
        check=False,
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
    plan = check_run(load_config(exact_yaml), 1)
    splits = [
        [
            plan.source.counts(plan.source.sample(SEED, batch_samples(step, micro, **cut))).splits
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
    """Ten steps: losses, gradient norms and parameters."""
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


def test_fp16_needs_a_gpu():
    with pytest.raises(ConfigError, match="needs a GPU"):
        check_precision("fp16", torch.device("cpu"))
    check_precision("fp16", torch.device("cuda"))
    check_precision("bf16", torch.device("cpu"))


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
    first, expected = rank_0["steps"][0], runs("bf16-1")[0]["steps"][0]
    assert first[3]["loss"] == expected[3]["loss"]
    assert first[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def bf16_reference(exact_yaml):
    return plain_bf16(exact_yaml)


def plain_bf16(exact_yaml) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step: a bf16 model whose fp32 masters AdamW steps."""
    plan = check_run(load_config(exact_yaml), 2)
    config, cut = plan.config, {"world_size": 2, "micro_batch": 2, "accumulation": 2}
    torch.manual_seed(config.seed)
    model = build_model(config.model_config).bfloat16()
    parameters = list(model.parameters())
    masters = [p.detach().float() for p in parameters]
    by_id = {id(p): master for p, master in zip(parameters, masters, strict=True)}
    groups = [
        {**group, "params": [by_id[id(p)] for p in group["params"]]}
        for group in build_optimizer(model, config.optim, torch.device("cpu")).param_groups  # type: ignore[arg-type]
    ]
    optimizer = torch.optim.AdamW(groups)
    seen = []
    for step in range(NUM_STEPS):
        counts = plan.source.counts(plan.source.sample(SEED, step_samples(step, 8)))
        gradients, total = [torch.zeros_like(m) for m in masters], 0.0
        for rank, micro in ((r, m) for r in (0, 1) for m in (0, 1)):
            contexts = plan.source.sample(SEED, batch_samples(step, micro, rank=rank, **cut))
            loss = total_loss(model(plan.source.batch(contexts)).losses, counts)
            total += loss.item()
            for gradient, part in zip(
                gradients, torch.autograd.grad(loss, parameters), strict=True
            ):
                gradient += part.float()
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(masters, 0.2).item()
        seen.append((total, norm))
        now = schedule(config, step)
        set_rates(optimizer, config.optim, now.learning_rate, now.parser_learning_rate)
        if step != POISONED_STEP:
            optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.copy_(master)
    return seen


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
        ("{zero_optimization: {stage: 0}}", ["zero_optimization.stage", "engine.zero_stage"]),
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
