"""Held-out numbers: against hand computation, however the contexts are batched and shared out."""

import json
import math

import numpy as np
import pytest
import torch
from known_model import Known
from packing import VOCAB
from torch import distributed

from data_prep.format.shard import open_dataset
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.model.build import build_model
from gpst.model.losses import LossTerm
from pipeline.data.source import ContextSource
from pipeline.evaluate.held_out import evaluate_model, evaluation_contexts, metric_names

CONTEXT = 24


def tiny(kind):
    torch.manual_seed(0)
    if kind == "gpt2":
        config = GPT2Config(VOCAB, 0, CONTEXT, hidden_dim=16, num_heads=2, ffn_dim=32, num_layers=1)
        return build_model(config)
    return build_model(
        GPSTConfig(
            VOCAB,
            0,
            CONTEXT,
            hidden_dim=16,
            num_heads=2,
            ffn_dim=32,
            num_type_layers=1,
            num_token_layers=1,
            composition=CompositionConfig(
                dim=8, num_heads=2, ffn_dim=16, num_layers=1, score_dim=4
            ),
            parser=ParserConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1),
        )
    )


def test_numbers_by_hand(held_out):
    model = Known()
    found = evaluate_model(model, held_out, batch_contexts=2)
    everything = held_out.batch(np.arange(held_out.num_contexts))
    counts = everything.counts
    per_token = everything.tokens.sum().item() / 10 / counts.tokens
    assert found.num_contexts == held_out.num_contexts
    assert (found.num_tokens, found.num_sentences) == (counts.tokens, counts.sentences)
    assert model.num_passes == math.ceil(held_out.num_contexts / 2)
    assert found.token_perplexity == pytest.approx(math.exp(per_token))
    assert found.type_perplexity == pytest.approx(math.exp(0.25))
    joint = per_token + counts.actions / 4 / counts.tokens
    assert found.joint_nats_per_token == pytest.approx(joint)
    assert found.losses["token"] == pytest.approx(per_token * counts.tokens / counts.actions)
    assert found.structure == {"height": pytest.approx(3.0)}
    assert found.bits_per_byte is None
    assert sorted(found.metrics()) == [
        "eval/joint_nats_per_token",
        "eval/loss/token",
        "eval/loss/type",
        "eval/perplexity/token",
        "eval/perplexity/type",
        "eval/structure/height",
    ]


def test_a_model_beyond_measure_has_infinite_perplexity(held_out):
    class Hopeless(Known):
        def forward(self, batch, noise, temperature):
            output = super().forward(batch, noise, temperature)
            output.losses["token"] = LossTerm(torch.tensor(1e9), "tokens")
            return output

    assert evaluate_model(Hopeless(), held_out).token_perplexity == math.inf


@pytest.mark.parametrize("kind", ["gpt2", "gpst"])
def test_batching_changes_no_number_and_the_model_names_them(held_out, kind):
    model = tiny(kind)
    one = evaluate_model(model, held_out, max_contexts=7, batch_contexts=1)
    many = evaluate_model(model, held_out, max_contexts=7, batch_contexts=5)
    assert set(one.losses) == set(model.LOSSES)
    assert set(one.structure) == set(model.STATISTICS)
    names = metric_names(model.LOSSES, model.STATISTICS)
    names.remove("eval/bits_per_byte")  # the data set does not know its bytes
    assert list(one.metrics()) == list(many.metrics())
    assert sorted(one.metrics()) == sorted(names)
    for name, value in one.metrics().items():
        assert value == pytest.approx(many.metrics()[name], rel=1e-5), name


@pytest.mark.parametrize("kind", ["gpt2", "gpst"])
def test_an_untrained_model_is_as_surprised_as_chance(held_out, kind):
    model = tiny(kind).train()
    before = [p.clone() for p in model.parameters()]
    found = evaluate_model(model, held_out)
    # A little above: initial logits are not all equal.
    assert found.token_perplexity == pytest.approx(VOCAB, rel=0.3)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    if kind == "gpst":
        assert found.type_perplexity == pytest.approx(2, rel=0.3)
        assert found.joint_nats_per_token > math.log(found.token_perplexity)
        assert found.structure["height"] >= 1
    else:
        assert found.type_perplexity is None
        assert found.joint_nats_per_token == pytest.approx(math.log(found.token_perplexity))


def test_a_model_in_evaluation_mode_stays_there(held_out):
    model = tiny("gpt2").eval()
    evaluate_model(model, held_out, max_contexts=1)
    assert not model.training


def test_the_mode_comes_back_after_a_failure(held_out):
    class Broken(Known):
        def forward(self, batch, noise, temperature):
            raise FloatingPointError

    model = Broken().train()
    with pytest.raises(FloatingPointError):
        evaluate_model(model, held_out)
    assert model.training


def test_a_choice_of_contexts_is_fixed_and_spread(held_out):
    total = held_out.num_contexts
    assert evaluation_contexts(held_out, None).tolist() == list(range(total))
    assert evaluation_contexts(held_out, total + 5).tolist() == list(range(total))
    some = evaluation_contexts(held_out, 6).tolist()
    assert some == evaluation_contexts(held_out, 6).tolist()
    assert some == sorted(set(some))
    assert some != list(range(6))
    assert set(some) <= set(evaluation_contexts(held_out, 9).tolist())


# --- several ranks


def _evaluate_on_a_rank(rank, world_size, path, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size
    )
    source = ContextSource([open_dataset(path)], "validation", CONTEXT)
    results = []
    for max_contexts in (7, 1):
        found = evaluate_model(tiny("gpst"), source, max_contexts=max_contexts, batch_contexts=2)
        results.append({**found.metrics(), "contexts": found.num_contexts})
    (folder / f"{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


@pytest.mark.dist
def test_ranks_share_the_contexts_and_agree(dataset, held_out, tmp_path):
    torch.multiprocessing.spawn(
        _evaluate_on_a_rank, (2, dataset.path, tmp_path), nprocs=2, join=True
    )
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    for max_contexts, found in zip((7, 1), ranks[0], strict=True):
        alone = evaluate_model(tiny("gpst"), held_out, max_contexts=max_contexts, batch_contexts=2)
        assert found.pop("contexts") == max_contexts
        assert found == pytest.approx(alone.metrics(), rel=1e-5)
