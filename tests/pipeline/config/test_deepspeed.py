"""What DeepSpeed is told: derived from the run's config, and what may not be added to it."""

from __future__ import annotations

import pytest
import torch

from pipeline.config.batch_shape import BatchShape
from pipeline.config.deepspeed import check_deepspeed_entries, deepspeed_config
from pipeline.config.run import load_config
from pipeline.engine.engine import check_precision
from pipeline.errors import ConfigError

PLAN = BatchShape(global_batch=8, micro_batch=2, accumulation=2, world_size=2)


def engine_config(toy_config, *entries):
    return load_config(toy_config, ["train.clip_norm=0.2", *(f"engine.{e}" for e in entries)])


def test_deepspeed_config_follows_from_the_run(toy_config):
    config = engine_config(
        toy_config,
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
        ("{zero_optimization: {overlap_com: true}}", ["zero_optimization", "overlap_com"]),
        (
            "{zero_optimization: {reduce_bucket_size: auto}}",
            ["engine.deepspeed.zero_optimization.reduce_bucket_size: 'auto' is filled in by"],
        ),
        ("{steps_per_print: auto}", ["engine.deepspeed.steps_per_print: 'auto'"]),
        ("{zero_optimization: {reduce_bucket_size: -1}}", ["reduce_bucket_size: Input should be"]),
        ("{zero_optimization: 3}", ["engine.deepspeed.zero_optimization: 3"]),
        ('{prescale_gradients: "false"}', ["prescale_gradients: 'false'", "true or false"]),
        ("{gradient_predivide_factor: many}", ["gradient_predivide_factor: 'many'", "a number"]),
        ("{data_types: null}", ["engine.deepspeed.data_types: null is not what DeepSpeed"]),
    ],
)
def test_deepspeed_entries_are_checked(toy_config, entries, names):
    config = engine_config(toy_config, f"deepspeed={entries}")
    with pytest.raises(ConfigError) as caught:
        check_deepspeed_entries(config, PLAN)
    assert all(name in str(caught.value) for name in names), str(caught.value)
    assert "\n" not in str(caught.value)


def test_known_deepspeed_entries_pass(toy_config):
    entries = "{wall_clock_breakdown: true, flops_profiler: {enabled: true}, steps_per_print: 5}"
    check_deepspeed_entries(engine_config(toy_config, f"deepspeed={entries}"), PLAN)


def test_fp16_needs_a_gpu():
    with pytest.raises(ConfigError, match="needs a GPU"):
        check_precision("fp16", torch.device("cpu"))
    check_precision("fp16", torch.device("cuda"))
    check_precision("bf16", torch.device("cpu"))
