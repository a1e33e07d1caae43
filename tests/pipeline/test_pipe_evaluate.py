"""Held-out numbers: against hand computation, however the contexts are batched and shared out."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import distributed, nn

from data_prep.shard import Dataset, open_dataset, write_dataset
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.losses import LossTerm
from gpst.model import ModelOutput, build_model
from pipeline.data import ContextSource
from pipeline.evaluate import (
    evaluate_model,
    evaluation_contexts,
    token_bytes,
    token_counts,
    unigram_perplexity,
)

VOCAB = 30
CONTEXT = 24


def random_documents(seed, num_documents):
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(1, VOCAB, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 6))]
        for _ in range(num_documents)
    ]


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors gain nothing from threads, which only wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("data"),
        random_documents(0, 30),
        vocab_size=VOCAB,
        validation=random_documents(1, 12),
        shard_documents=11,
    )


@pytest.fixture(scope="module")
def held_out(dataset):
    return ContextSource([dataset], "validation", CONTEXT)


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


class Known(nn.Module):
    """Says that a token x costs x / 10 nats and every action 1/4 nat; counts its passes."""

    def __init__(self):
        super().__init__()
        self.num_passes = 0

    def forward(self, batch, noise, temperature):
        assert not self.training
        assert not torch.is_grad_enabled()
        assert (noise, temperature) == (0.0, 1.0)
        self.num_passes += 1
        losses = {
            "token": LossTerm(batch.tokens.sum() / 10, "actions"),
            "type": LossTerm(torch.tensor(batch.counts.actions / 4), "actions"),
        }
        height = LossTerm(torch.tensor(3.0 * batch.num_sentences), "sentences")
        return ModelOutput(losses, {"height": height}, torch.zeros(1))


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
def test_batching_changes_no_number(held_out, kind):
    model = tiny(kind)
    one = evaluate_model(model, held_out, max_contexts=7, batch_contexts=1)
    many = evaluate_model(model, held_out, max_contexts=7, batch_contexts=5)
    assert one.metrics().keys() == many.metrics().keys()
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


# --- the unigram model


def test_unigram_perplexity_by_brute_force(dataset, held_out):
    train = ContextSource([dataset], "train", CONTEXT)
    tokens = [
        t for document in random_documents(0, 30) for sentence in [*document, [0]] for t in sentence
    ]
    counts = Counter(tokens)
    assert token_counts(train).tolist() == [counts[t] for t in range(VOCAB)]
    for max_contexts in (None, 4):
        chosen = evaluation_contexts(held_out, max_contexts)
        text = held_out.batch(chosen).tokens.tolist()
        nats = [-math.log((counts[t] + 1) / (len(tokens) + VOCAB)) for t in text]
        found = unigram_perplexity(train, held_out, max_contexts=max_contexts)
        assert found == pytest.approx(math.exp(sum(nats) / len(text)))


def test_a_token_never_seen_in_training_costs_but_does_not_break(tmp_path):
    dataset = write_dataset(tmp_path, [[[1, 1]]], vocab_size=4, validation=[[[3]]])
    splits = [ContextSource([dataset], split, 8) for split in ("train", "validation")]
    # Training: 1, 1, 0 of 4 ids; held out: 3 (1/7) and 0 (2/7).
    assert unigram_perplexity(*splits) == pytest.approx((7 / 1 * 7 / 2) ** 0.5)


def test_counts_in_chunks_are_the_same(dataset, monkeypatch):
    train = ContextSource([dataset], "train", CONTEXT)
    whole = token_counts(train)
    monkeypatch.setattr("pipeline.evaluate._CHUNK_TOKENS", 7)
    assert token_counts(train).tolist() == whole.tolist()


# --- bits per byte

TEXTS = ["The naïve café — it’s closed.", " Over 100 people came!", "\n日本語も。"]


def byte_level(folder) -> Dataset:
    """A dataset whose tokenizer is a byte-level BPE; the held-out split is TEXTS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    sentences = [tokenizer.encode(text).ids for text in TEXTS]
    dataset = write_dataset(folder, [sentences], vocab_size=300, validation=[sentences])
    dataset.tokenizer_path.mkdir()
    tokenizer.save(str(dataset.tokenizer_path / "tokenizer.json"))
    record = replace(dataset.manifest.tokenizer, kind="byte_bpe")
    return replace(dataset, manifest=replace(dataset.manifest, tokenizer=record))


def test_bits_per_byte_counts_the_bytes_of_the_text(tmp_path):
    source = ContextSource([byte_level(tmp_path)], "validation", 100)
    sizes = token_bytes(source)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    batch = source.batch(np.arange(source.num_contexts))
    assert sizes is not None
    assert sizes[batch.tokens.numpy()].sum() == num_bytes
    assert sizes[0] == 0
    found = evaluate_model(Known(), source)
    bits = found.joint_nats_per_token * found.num_tokens / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits / num_bytes)
    assert found.metrics()["eval/bits_per_byte"] == found.bits_per_byte


def test_without_a_byte_level_tokenizer_bytes_are_the_mean(dataset):
    total = sum(dataset.manifest.num_tokens.values())
    counted = replace(dataset.manifest, counters={"text_bytes": 5 * total})
    source = ContextSource([replace(dataset, manifest=counted)], "validation", CONTEXT)
    found = evaluate_model(Known(), source)
    bits_per_token = found.joint_nats_per_token / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits_per_token / 5)


def test_bytes_may_be_unknown(tmp_path, dataset):
    assert token_bytes(ContextSource([dataset], "train", CONTEXT)) is None
    byte_bpe = byte_level(tmp_path)
    (byte_bpe.tokenizer_path / "tokenizer.json").unlink()
    assert token_bytes(ContextSource([byte_bpe], "train", 100)) is None


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
