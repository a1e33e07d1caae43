"""Plans made ahead: the same trees with and without the thread, resumed bit for bit, errors."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from data_prep.shard import open_dataset
from gpst.baseline import GPT2Baseline
from gpst.batch import ContextBatch
from gpst.classifier import Classifier
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.losses import total_loss
from gpst.model import GPST
from pipeline.checkpoint import load_model_weights
from pipeline.checkpoint_files import list_checkpoints
from pipeline.config import config_from_dict, load_config
from pipeline.data import ContextSource
from pipeline.errors import CheckpointError, ConfigError
from pipeline.plan_ahead import (
    FirstOrder,
    PlanAhead,
    plan_ahead,
    read_first_order,
    write_first_order,
)
from pipeline.prefetch import BatchReader, Prefetcher
from pipeline.resolve import BatchPlan

PRETRAIN = Path(__file__).parents[2] / "launch" / "pretrain.sh"
CPU = torch.device("cpu")
ONE_RANK: Any = SimpleNamespace(rank=0, device=CPU)
CUT = BatchPlan(global_batch=8, micro_batch=2, accumulation=4, world_size=1)


@pytest.fixture(scope="module")
def reader(toy_dataset):
    return BatchReader(ContextSource([open_dataset(toy_dataset)], "train", 32), 0, CUT, 0)


@pytest.fixture
def config(toy_run, tmp_path):
    """config(mode): of a run of 8 steps with noise."""

    def make(mode: str):
        return config_from_dict({**toy_run(tmp_path / "run"), "engine": {"plan_ahead": mode}})

    return make


def make_model(dropout: float = 0.1) -> GPST:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"dim": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 1}
    config = GPSTConfig(
        vocab_size=64,
        bos_token_id=0,
        max_context_tokens=32,
        hidden_dim=16,
        num_heads=2,
        ffn_dim=32,
        num_type_layers=1,
        num_token_layers=1,
        composition=CompositionConfig(**sizes, num_decomposition_layers=1, score_dim=16),
        parser=ParserConfig(**sizes, dropout=dropout),
    )
    return GPST(config).train()


def train(model: GPST, ahead: PlanAhead, batches, steps: range) -> list[float]:
    """Losses of plain SGD over micro-batches whose plans were made ahead."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for micro_step in range(CUT.accumulation):
            micro = ahead.take(batches, step, micro_step)
            torch.manual_seed(100 * step + micro_step)
            output = model(micro.batch, noise=1.0, plan=micro.plan)
            loss = total_loss(output.losses, micro.batch.counts)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def trained(config, reader, *, threaded=True, steps=range(3), first=None, model=None):
    """(losses, model, what orders the step after) of a short training."""
    model = model or make_model()
    with PlanAhead(model, config, CUT.accumulation, 0, CPU, first, threaded) as ahead:
        losses = train(model, ahead, reader, steps)
        return losses, model, ahead.first_order(steps.stop)


def assert_same(a: GPST, b: GPST) -> None:
    for (name, own), other in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(own, other), name


@pytest.mark.parametrize("mode", ["micro_steps", "steps"])
def test_the_thread_changes_nothing(config, reader, mode):
    with_thread = trained(config(mode), reader)
    without = trained(config(mode), reader, threaded=False)
    assert with_thread[0] == without[0]
    assert_same(with_thread[1], without[1])


def test_within_a_step_nothing_is_stale(config, reader):
    """micro_steps orders every micro-batch by the weights that compute it; steps does not."""
    model = make_model(dropout=0.0)
    stale = {}
    for mode in ("micro_steps", "steps"):
        with PlanAhead(model, config(mode), CUT.accumulation, 0, CPU) as ahead:
            for step in (0, 1):
                for micro_step in range(CUT.accumulation):
                    micro = ahead.take(reader, step, micro_step)
                    with PlanAhead(model, config("micro_steps"), 1, 0, CPU) as now:
                        expected = now.take(reader, step, micro_step).plan
                    stale[mode, step, micro_step] = not same_plan(micro.plan, expected)
                with torch.no_grad():
                    model.parser.dense.weight.normal_(0, 1)
    assert [place for place, differs in stale.items() if differs] == [("steps", 1, 0)]


def same_plan(a, b) -> bool:
    return len(a.integers) == len(b.integers) and bool((a.integers == b.integers).all())


def test_ordering_leaves_the_random_numbers_alone_and_repeats():
    model, batch = make_model(), ContextBatch.from_sentences([[[3, 4, 5, 6, 7, 8]]])
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = model.order(batch, 1.0, seed=7).wait()
    assert torch.equal(torch.rand(4), expected)
    assert np.array_equal(first, model.order(batch, 1.0, seed=7).wait())
    assert not np.array_equal(first, model.order(batch, 1.0, seed=8).wait())


def test_resumed_from_the_kept_order_it_is_the_undisturbed_run(config, reader, tmp_path):
    whole, undisturbed, _ = trained(config("steps"), reader, steps=range(5))
    head, model, order = trained(config("steps"), reader, steps=range(2))
    assert order is not None
    write_first_order(tmp_path, 0, order)
    kept = read_first_order(tmp_path, 0)
    tail, resumed, _ = trained(config("steps"), reader, steps=range(2, 5), first=kept, model=model)
    assert head + tail == whole
    assert_same(resumed, undisturbed)


def test_another_micro_batch_is_ordered_by_the_present_weights(config, reader):
    """At another number of ranks the first micro-batch holds other contexts."""
    model = make_model(dropout=0.0)
    other = FirstOrder(2, "of other contexts", np.zeros(3, np.float32))
    plans = []
    for first in (other, None):
        with PlanAhead(model, config("steps"), CUT.accumulation, 0, CPU, first) as ahead:
            plans.append(ahead.take(reader, 2, 0).plan)
    assert same_plan(*plans)


def test_the_last_step_and_other_modes_keep_no_order(config, reader):
    assert trained(config("micro_steps"), reader, steps=range(2))[2] is None
    assert trained(config("steps"), reader, steps=range(6, 8))[2] is None  # the run has 8 steps


def test_it_reads_a_prefetcher_in_its_order(config, reader):
    expected = trained(config("steps"), reader, steps=range(2))[0]
    with Prefetcher(reader, 0, 3, ahead=2) as batches:
        assert trained(config("steps"), batches, steps=range(2))[0] == expected


@pytest.mark.parametrize("rule", ["constrain_tree", "constrain_chart"])
def test_atoms_are_in_the_plans_made_ahead(config, reader, rule):
    read = reader.read(0, 0)
    inner = np.zeros(read.num_tokens, bool)
    longest = int(read.sentence_lengths.argmax())
    first = int(read.sentence_starts[longest])
    inner[first + 1] = True

    class WithAtoms:
        def read(self, step, micro_step):
            here = (step, micro_step) == (0, 0)
            return replace(read, inner=inner, atoms=rule) if here else reader.read(step, micro_step)

    with PlanAhead(make_model(), config("none"), CUT.accumulation, 0, CPU) as ahead:
        plan = ahead.take(WithAtoms(), 0, 0).plan
    assert plan is not None
    spans = {(int(i), int(j)) for i, j in plan.spans}
    assert read.sentence_lengths[longest] > 2
    assert (first + 1, first + 2) in spans
    assert ((first, first + 1) in spans) == (rule == "constrain_tree")
    assert bool(len(plan.cutting)) == (rule == "constrain_tree")


def test_what_the_thread_raises_reaches_the_loop_and_no_thread_is_left(config, reader):
    before = threading.active_count()

    class Broken(GPST):
        def plan_of(self, *arguments, **options):
            assert threading.current_thread().name.startswith("plan")
            raise ZeroDivisionError("in the thread")

    model = make_model()
    model.__class__ = Broken
    with (
        pytest.raises(ZeroDivisionError, match="in the thread"),
        PlanAhead(model, config("steps"), CUT.accumulation, 0, CPU) as ahead,
    ):
        ahead.take(reader, 0, 0)
    assert threading.active_count() == before


def test_a_kept_order_that_cannot_be_read_is_named(tmp_path):
    assert read_first_order(tmp_path, 0) is None
    (tmp_path / "first_order_rank_0.npz").write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match=r"first_order_rank_0.npz cannot be read"):
        read_first_order(tmp_path, 0)


def test_an_unknown_mode_is_refused(toy_config):
    with pytest.raises(ConfigError, match=r"engine.plan_ahead.*'step'.*none.*micro_steps.*steps"):
        load_config(toy_config, ["engine.plan_ahead=step"])


@pytest.mark.dist
def test_a_run_resumed_on_two_ranks_is_the_undisturbed_one(toy_run, tmp_path, start_ranks):
    def run(name: str, *overrides: str) -> Path:
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(toy_run(tmp_path / name)))
        # Stopped early: the order of the step after is fixed by then.
        common = ("engine.plan_ahead=steps", "train.stop_at_step=3", "checkpoint.every_steps=1")
        results = start_ranks(2, PRETRAIN, "--config", file, *common, *overrides).finish()
        assert [code for code, _, _ in results] == [0, 0], results
        return tmp_path / name / "checkpoints"

    whole = run("whole")
    resumed = run("resumed", f"checkpoint.resume={whole / 'step-000000001'}")
    assert [path.name[-1] for path in list_checkpoints(resumed)] == ["2", "3"]
    expected, found = (load_model_weights(folder)[1] for folder in (whole, resumed))
    assert all(torch.equal(expected[name], value) for name, value in found.items())
    for rank in (0, 1):
        orders = [read_first_order(d / "step-000000003", rank) for d in (whole, resumed)]
        assert orders[0] is not None
        assert orders[1] is not None
        assert orders[0].digest == orders[1].digest
        assert np.array_equal(orders[0].scores, orders[1].scores)


def test_gpt2_has_no_plans(config):
    gpt2 = GPT2Baseline(
        GPT2Config(
            vocab_size=64,
            bos_token_id=0,
            max_context_tokens=32,
            hidden_dim=16,
            num_heads=2,
            ffn_dim=32,
            num_layers=1,
        )
    )
    assert plan_ahead(gpt2, config("steps"), CUT, ONE_RANK, None) is None
    assert plan_ahead(Classifier(gpt2, 2), config("steps"), CUT, ONE_RANK, None) is None
    assert plan_ahead(make_model(), config("none"), CUT, ONE_RANK, None) is None
    made = plan_ahead(Classifier(make_model(), 2), config("steps"), CUT, ONE_RANK, None)
    assert made is not None
    made.close()
