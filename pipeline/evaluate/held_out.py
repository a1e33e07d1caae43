"""Held-out evaluation: how well a model predicts contexts it was not trained on.

For GPST these are the teacher-forced numbers, given the trees its own composition model induces
on the whole sentence; see gpst/search for the perplexity with the tree marginalised.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import nn

from gpst.batch import BatchCounts
from gpst.model.modes import evaluating
from pipeline.data.order import sample_index
from pipeline.data.source import ContextSource

_COUNTS = ("tokens", "sentences", "contexts", "bytes")
_CHUNK_TOKENS = 1 << 24


@dataclass(frozen=True)
class Evaluation:
    """Means over held-out contexts."""

    num_contexts: int
    num_tokens: int
    num_sentences: int
    losses: dict[str, float]
    """Every loss of the model, as in training: nats per token, action, split or sentence."""
    structure: dict[str, float]
    """Means of what the model reports of its trees (height, ...); empty for GPT-2."""
    token_perplexity: float
    """exp of the nats per token of the tokens, given the actions before them."""
    type_perplexity: float | None
    """exp of the nats per action of its type (GEN or COMP); None for a model without actions."""
    joint_nats_per_token: float
    """-log p(tokens, actions) per token; of GPT-2, which has no actions, -log p(tokens)."""
    bits_per_byte: float | None
    """The joint nats in bits per byte of the contexts' text; None where that size is not known."""

    def metrics(self) -> dict[str, float]:
        """The numbers by the names they have in metrics.jsonl and TensorBoard."""
        values: dict[str, float | None] = {
            "eval/perplexity/token": self.token_perplexity,
            "eval/perplexity/type": self.type_perplexity,
            "eval/joint_nats_per_token": self.joint_nats_per_token,
            "eval/bits_per_byte": self.bits_per_byte,
            **{f"eval/loss/{name}": value for name, value in self.losses.items()},
            **{f"eval/structure/{name}": value for name, value in self.structure.items()},
        }
        return {name: value for name, value in values.items() if value is not None}


def metric_names(losses: Iterable[str], statistics: Iterable[str]) -> list[str]:
    """The names of `Evaluation.metrics` for a model with these losses and statistics."""
    losses = dict.fromkeys(losses, 0.0)
    types = 1.0 if "type" in losses else None
    structure = dict.fromkeys(statistics, 0.0)
    return list(Evaluation(0, 0, 0, losses, structure, 1.0, types, 0.0, 0.0).metrics())


def evaluation_contexts(source: ContextSource, max_contexts: int | None) -> NDArray[np.int64]:
    """The contexts to evaluate: all, or a fixed pseudo-random choice of `max_contexts`."""
    total = source.num_contexts
    if max_contexts is None or max_contexts >= total:
        return np.arange(total)
    return np.sort(sample_index(0, np.arange(max_contexts), total))


@torch.no_grad()
def evaluate_model(
    model: nn.Module,
    source: ContextSource,
    *,
    max_contexts: int | None = None,
    batch_contexts: int = 4,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Evaluates a model, in evaluation mode and without noise, on held-out contexts.

    With torch.distributed initialised, every rank must call this; the ranks share the contexts
    and all get the same result. `model` is the bare module (not the engine), whose forward passes
    may differ in number between ranks.

    Args:
        source: the held-out split.
        max_contexts: see `evaluation_contexts`.
        batch_contexts: contexts in a forward pass; changes no result.
    """
    rank, world_size = _rank_and_world_size()
    contexts = evaluation_contexts(source, max_contexts)
    mine = contexts[rank::world_size]
    # A rank without contexts still has to know the losses' names: it evaluates one and drops it.
    evaluated = mine if len(mine) else contexts[:1]
    weight = 1.0 if len(mine) else 0.0
    with evaluating(model):
        sums = _sum_losses(model, source, evaluated, batch_contexts, device)
    totals = {name: value * weight for name, value in sums.items()}
    if world_size > 1:
        totals = _all_reduce(totals, device)
    return _summarise(totals)


def _rank_and_world_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _sum_losses(
    model: nn.Module,
    source: ContextSource,
    contexts: NDArray[np.int64],
    batch_contexts: int,
    device: torch.device | str,
) -> dict[str, float]:
    """Sums over the contexts: "kind/name/unit" of losses and statistics, and the counts."""
    sums: dict[str, float] = {}
    sizes = token_bytes(source)
    for start in range(0, len(contexts), batch_contexts):
        batch = source.batch(contexts[start : start + batch_contexts])
        output = model(batch.to(device), noise=0.0, temperature=1.0)
        values = {
            f"{kind}/{name}/{term.per}": float(term.sum)
            for kind, terms in (("loss", output.losses), ("structure", output.statistics))
            for name, term in terms.items()
        }
        values |= {
            "tokens": batch.num_tokens,
            "sentences": batch.num_sentences,
            "contexts": batch.num_contexts,
            "bytes": float(sizes[batch.tokens.numpy()].sum()) if sizes is not None else 0.0,
        }
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _all_reduce(sums: Mapping[str, float], device: torch.device | str) -> dict[str, float]:
    names = sorted(sums)
    values = torch.tensor([sums[name] for name in names], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(values)
    return dict(zip(names, values.tolist(), strict=True))


def _summarise(totals: Mapping[str, float]) -> Evaluation:
    counts = BatchCounts(int(totals["tokens"]), int(totals["sentences"]))
    means: dict[str, dict[str, float]] = {"loss": {}, "structure": {}}
    nats: dict[str, float] = {}
    for key, value in totals.items():
        if key not in _COUNTS:
            kind, name, per = key.split("/")
            means[kind][name] = value / max(1, getattr(counts, per))
            if kind == "loss":
                nats[name] = value
    joint = (nats["token"] + nats.get("type", 0.0)) / counts.tokens
    return Evaluation(
        num_contexts=int(totals["contexts"]),
        num_tokens=counts.tokens,
        num_sentences=counts.sentences,
        losses=means["loss"],
        structure=means["structure"],
        token_perplexity=_exp(nats["token"] / counts.tokens),
        type_perplexity=_exp(nats["type"] / counts.actions) if "type" in nats else None,
        joint_nats_per_token=joint,
        bits_per_byte=(
            joint * counts.tokens / math.log(2) / totals["bytes"] if totals["bytes"] else None
        ),
    )


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def unigram_perplexity(
    train: ContextSource, held_out: ContextSource, *, max_contexts: int | None = None
) -> float:
    """Perplexity of held-out contexts under the frequencies of the training tokens.

    p(x) = (count(x) + 1) / (tokens + vocabulary size): add-one smoothing. The contexts are those
    that `evaluate_model` takes, so that the numbers stand side by side.
    """
    counts = token_counts(train) + 1
    log_p = np.log(counts / counts.sum())
    seen = np.zeros_like(counts)
    for context in evaluation_contexts(held_out, max_contexts):
        seen += np.bincount(held_out.batch([context]).tokens.numpy(), minlength=len(counts))
    return _exp(-float(seen @ log_p) / int(seen.sum()))


def token_counts(source: ContextSource) -> NDArray[np.int64]:
    """How often each token occurs in a split: (vocab_size,), read in chunks."""
    vocab_size = source.datasets[0].manifest.vocab_size
    counts = np.zeros(vocab_size, np.int64)
    for dataset in source.datasets:
        for shard in dataset.shards(source.split):
            for start in range(0, shard.tokens.size, _CHUNK_TOKENS):
                chunk = shard.tokens[start : start + _CHUNK_TOKENS]
                counts += np.bincount(chunk, minlength=vocab_size)
    return counts


def token_bytes(source: ContextSource) -> NDArray[np.float64] | None:
    """Bytes of text that each token stands for: (vocab_size,).

    Exact for a byte-level BPE, whose tokens spell every byte as one character and whose special
    tokens stand for nothing. Otherwise every token counts as the mean over the dataset, where the
    manifest has the size of the text; None where it has not.
    """
    manifest = source.datasets[0].manifest
    path = source.datasets[0].tokenizer_path / "tokenizer.json"
    if manifest.tokenizer.kind == "byte_bpe" and path.exists():
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        sizes = np.zeros(manifest.vocab_size)
        for token, number in tokenizer["model"]["vocab"].items():
            sizes[number] = len(token)
        for token in tokenizer.get("added_tokens", []):
            sizes[token["id"]] = 0 if token["special"] else len(token["content"].encode())
        return sizes
    text_bytes = manifest.counters.get("text_bytes")
    if text_bytes is None:
        return None
    return np.full(manifest.vocab_size, text_bytes / sum(manifest.num_tokens.values()))
