"""ZeRO stages, ranks and what they follow: the cases of tests/pipeline/engine/test_engine.py."""

from __future__ import annotations

from typing import NamedTuple

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
    "2": Case(2),
    "3": Case(3, 2, (NOTHING_STAYS,)),
    "3-all": Case(3, 2, (NOTHING_STAYS, RECOMPUTE, OFFLOAD)),
    "3-gpt2": Case(3, 2, (NOTHING_STAYS, GPT2)),
}
SLOW_FRESH = {
    "1": Case(1),
    "1-alone": Case(1, 1),
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
BF16 = {"bf16-3": Case(3, 2, ("engine.precision=bf16", NOTHING_STAYS))}
SLOW_BF16 = {f"bf16-{stage}": Case(stage, 2, ("engine.precision=bf16",)) for stage in (1, 2)}
FP16 = {
    f"fp16-{stage}": Case(stage, 2, ("engine.precision=fp16", NOTHING_STAYS)) for stage in (1, 2, 3)
}
HALF = {**BF16, **SLOW_BF16, **FP16}


def following(before: str, stage: int, ranks: int = 2) -> tuple[str, Case]:
    """The case that goes on from the checkpoint of another one."""
    own = {**FRESH, **SLOW_FRESH, **HALF}[before].overrides
    overrides = tuple(dict.fromkeys((*own, NOTHING_STAYS)))
    return f"{before}-then-{stage}-on-{ranks}", Case(stage, ranks, overrides, before)


RESUMED = dict(following(*case) for case in (("3", 3), ("0", 2, 1), ("3", 0, 1), ("bf16-3", 1, 1)))
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
