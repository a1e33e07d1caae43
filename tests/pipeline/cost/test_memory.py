"""The memory plan against what PyTorch keeps, and by hand; --dry-run of every shipped config."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from gpst.batch import ContextBatch
from gpst.config import config_from_dict
from gpst.model.build import build_model
from gpst.model.losses import total_loss
from pipeline.config.run import REPOSITORY, load_config
from pipeline.cost.activations import activation_bytes, assumed_batch
from pipeline.cost.memory import ModelSize, checkpoint_bytes, model_size, state_memory
from pipeline.errors import ConfigError
from pipeline.quantities import GIB
from pipeline.train.dry_run import check_dry_run

SIZES = {"vocab_size": 500, "bos_token_id": 0, "hidden_dim": 192, "num_heads": 4, "ffn_dim": 768}
GPST = {
    **SIZES,
    "num_type_layers": 2,
    "num_token_layers": 4,
    "composition": {"dim": 96, "num_heads": 4, "ffn_dim": 384, "num_layers": 3},
    "parser": {"dim": 64, "num_heads": 4, "ffn_dim": 192},
}
GPT2 = {**SIZES, "kind": "gpt2", "num_layers": 6}


def saved_bytes(config, batch, checkpointing):
    """What a forward pass on the CPU leaves in memory, each storage once, without weights.

    Autograd tells what it keeps itself; what our own Functions keep, the garbage collector knows.
    """
    torch.manual_seed(0)
    model = build_model(config).train()
    model.activation_checkpointing = set(checkpointing)  # type: ignore[assignment]
    before = {storage.data_ptr() for storage in storages()}
    saved = []

    def keep(tensor):
        saved.append(tensor.untyped_storage())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(batch)
        loss = total_loss(output.losses, batch.counts)
    sizes = {s.data_ptr(): s.nbytes() for s in [*storages(), *saved] if s.data_ptr() not in before}
    del loss
    heads = 2 if len(output.losses) > 1 else 1
    # The embedding's gradients are counted with the heads' workspace.
    return sum(sizes.values()) - heads * 4 * config.vocab_size * config.hidden_dim


def storages():
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return [tensor.untyped_storage() for tensor in tensors]


def real_batch() -> ContextBatch:
    """Contexts of at most 128 tokens with sentences of all lengths."""
    random = np.random.default_rng(1)
    contexts = []
    for _ in range(3):
        lengths = []
        while sum(lengths) < 110:
            lengths.append(int(random.integers(1, 30)))
        contexts.append([random.integers(1, 500, n).tolist() for n in lengths])
    return ContextBatch.from_sentences(contexts)


COMPOSITION, GENERATOR = ("composition",), ("generator",)
WITHOUT_DROPOUT = {
    **GPST, "dropout": 0.0, "head_dropout": 0.0,
    "composition": {**GPST["composition"], "dropout": 0.0},
    "parser": {**GPST["parser"], "dropout": 0.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "checkpointing"),
    [
        pytest.param(GPST, (), id="gpst"),
        pytest.param(GPST, COMPOSITION, id="gpst composition recomputed"),
        pytest.param(GPST, COMPOSITION + GENERATOR, id="gpst both recomputed"),
        pytest.param(WITHOUT_DROPOUT, (), id="gpst without dropout"),
        pytest.param(GPT2, (), id="gpt2"),
        pytest.param(GPT2, GENERATOR, id="gpt2 recomputed"),
        pytest.param({**GPT2, "dropout": 0.0}, (), id="gpt2 without dropout"),
    ],
)
def test_the_plan_is_what_a_step_keeps(values, checkpointing):
    config, batch = config_from_dict(values), real_batch()
    measured = saved_bytes(config, batch, checkpointing)
    planned = activation_bytes(config, batch, "fp32", checkpointing, "cpu")
    assert planned.saved == pytest.approx(measured, rel=0.05)
    assert bool(planned.recomputed) == bool(checkpointing)
    assert planned.total >= planned.saved + planned.tables + planned.logits


def test_what_is_recomputed_is_what_a_piece_keeps():
    """All of a chart of one level is one piece where pairs are not taken in chunks."""
    config = config_from_dict(GPST)
    pairs = ContextBatch.from_sentences([[[1, 2]] * 16])  # each sentence has one edge
    whole, again = (activation_bytes(config, pairs, "fp32", c, "cpu") for c in ((), COMPOSITION))
    rows = 16 * 3 * 2 * 4 * (8 * 96 + 2 * 384 + 4)  # floats of layers, without scores and ends
    assert rows < again.recomputed < 1.2 * rows
    assert again.saved + again.recomputed < whole.saved


def test_activations_grow_with_the_contexts_and_half_precision_halves_them():
    config = config_from_dict(GPST)
    one, four = (activation_bytes(config, assumed_batch(n, 240), "fp32").saved for n in (1, 4))
    assert four == pytest.approx(4 * one, rel=0.02)
    half = activation_bytes(config, assumed_batch(1, 240), "bf16").saved
    assert half == pytest.approx(one / 2, rel=0.08)


def test_an_assumed_batch_fills_its_contexts():
    batch = assumed_batch(2, 50)
    assert batch.sentence_lengths.tolist() == [24, 24, 2, 24, 24, 2]
    assert batch.context_lengths.tolist() == [50, 50]


# --- weights, gradients, optimizer


@pytest.fixture
def config(toy_config):
    return load_config(toy_config)


MILLION = ModelSize(parameters=1_000_000, in_blocks=800_000)


@pytest.mark.parametrize(
    ("stage", "precision", "bytes_per_parameter"),
    [
        # weights, gradients, moments and master weights of 4 ranks, as DeepSpeed 0.19 holds them
        (0, "fp32", (4, 4, 8)),
        (1, "fp32", (4, 4 + 1, 12 / 4)),
        (2, "fp32", (4, 4 / 4, 12 / 4)),
        (3, "fp32", (0.8 + 0.8, 4 / 4, 12 / 4)),
        (1, "bf16", (2, 6, 12 / 4)),
        (2, "bf16", (2, 4 / 4, 12 / 4)),
        (3, "bf16", (0.4 + 0.4, 4 / 4, 12 / 4)),
    ],
)
def test_states_by_stage(config, stage, precision, bytes_per_parameter):
    engine = replace(config.engine, zero_stage=max(1, stage), precision=precision)
    memory = state_memory(replace(config, engine=engine), MILLION, 4, stage)
    found = (memory.weights, memory.gradients, memory.optimizer)
    assert found == tuple(round(1e6 * b) for b in bytes_per_parameter)
    assert memory.total == memory.states == sum(found) + memory.buckets


def test_an_offloaded_optimizer_is_in_the_host_s_memory(config):
    engine = replace(config.engine, offload_optimizer=True)
    memory = state_memory(replace(config, engine=engine), MILLION, 4, 2)
    assert (memory.optimizer, memory.host) == (0, 3_000_000)


def test_buckets_follow_the_deepspeed_config(config):
    options = {"zero_optimization": {"reduce_bucket_size": 1000}}
    engine = replace(config.engine, deepspeed=options)
    assert state_memory(replace(config, engine=engine), MILLION, 4, 2).buckets == 4000


def test_parameters_in_blocks():
    size = model_size(config_from_dict(GPT2))
    model = build_model(config_from_dict(GPT2))
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.in_blocks == sum(p.numel() for p in model.gpt2.transformer.h.parameters())


def test_a_checkpoint_on_disk(config):
    assert checkpoint_bytes(config, 1000) == 1000 * (4 + 8 + 4)


# --- the dry run

RUNS = sorted((REPOSITORY / "configs" / "run").glob("*.yaml"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_run_config_dry_runs_without_its_data(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(path)
    train = config.train
    world_size = min(8, train.global_batch_contexts // train.micro_batch_contexts_per_rank)
    text = check_dry_run(config, world_size).describe()
    assert "not ready" in text
    assert "8 x A100 80 GB" in text
    if world_size == 8:
        assert "fits, " in text.split("8 x A100 80 GB")[1]
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_gpst_small_on_8_a100(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = REPOSITORY / "configs" / "run" / "gpst_small_openwebtext.yaml"
    text = check_dry_run(load_config(path), 8).describe()
    assert "256 contexts a step = 16 a micro-batch x 2 accumulated x 8 ranks" in text
    assert "each of 8 ranks goes forward and backward 2 times on 16 contexts" in text
    assert "at most 262,144 tokens a step" in text
    assert "at most 15,000,141,824 tokens" in text
    assert "573 steps of warm-up, then linear" in text
    rows = text.split("memory on 8 x A100")[1].splitlines()
    assert "ZeRO 0  not with bf16" in rows[2]
    assert rows[3].startswith("* ZeRO 1")
    size = model_size(check_dry_run(load_config(path), 8).config.model)
    weights, gradients, optimizer, _, activations, total = map(float, rows[3].split()[3:])
    assert weights == pytest.approx(2 * size.parameters / GIB, abs=0.01)
    assert gradients == pytest.approx(6 * size.parameters / GIB, abs=0.01)
    assert optimizer == pytest.approx(12 * size.parameters / 8 / GIB, abs=0.01)
    assert total == pytest.approx(weights + gradients + optimizer + activations, abs=0.03)
    assert ", is the fastest: train.micro_batch_contexts_per_rank=32" in text
    assert "engine.checkpointing=[]" not in text


def test_recomputation_that_is_not_needed_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = REPOSITORY / "configs" / "run" / "gpst_medium_openwebtext.yaml"
    needless = "engine.checkpointing=[] fits, too"
    recomputing = "engine.checkpointing=[composition]"
    for contexts, fits in ((16, True), (48, False)):
        sizes = {"global_batch_contexts": 384, "micro_batch_contexts_per_rank": contexts}
        settings = [f"train.{name}={number}" for name, number in sizes.items()]
        config = load_config(path, [recomputing, *settings])
        text = check_dry_run(config, 8).describe().split("memory on 8 x A100")[1]
        assert "fits, " in text
        assert (needless in text) == fits


def test_what_does_not_fit_says_what_would(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = REPOSITORY / "configs" / "run" / "gpst_medium_openwebtext.yaml"
    overrides = ["train.micro_batch_contexts_per_rank=32", "engine.checkpointing=[]"]
    overrides.append("engine.precision=fp32")
    text = check_dry_run(load_config(path, overrides), 8).describe()
    rows = text.split("memory on 8 x A100")[1].splitlines()
    assert rows[-4].startswith("does not fit (73.6 GiB are usable): ")
    assert rows[-4].endswith("train.micro_batch_contexts_per_rank=16 would")
    assert "too much" in rows[3]


def test_with_the_data_the_real_sentences_count(config, toy_config):
    text = check_dry_run(config, 2).describe()
    assert "not ready" not in text
    assert "2 a micro-batch x 2 accumulated x 2 ranks" in text
    assert "epochs" in text


@pytest.mark.parametrize("stage", [0, 2])
def test_the_buffers_for_gradients_are_explained(config, stage):
    config = replace(config, engine=replace(config.engine, zero_stage=stage))
    said = "reduce_bucket_size" in check_dry_run(config, 2).describe()
    assert said == (stage > 0)


def test_other_mistakes_are_errors_in_a_dry_run_too(toy_config):
    with pytest.raises(ConfigError, match="hidden_dim"):
        check_dry_run(load_config(toy_config, ["data.path=nowhere", "model.hidden_dim=31"]), 1)
    with pytest.raises(ConfigError, match="3 ranks"):
        check_dry_run(load_config(toy_config, ["data.path=nowhere"]), 3)
