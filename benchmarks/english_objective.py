"""Which trees of English let the auto-encoding loss fall lowest: gold, right-branching or random?

    python benchmarks/english_objective.py --trees FOLDER      # with train.txt and valid.txt

A composition model of `tiny` alone (no parser, no generative model) is trained on the treebank's
words, without punctuation, on charts that hold one tree a sentence; then the loss on valid.txt is
measured with trees of the same kind. Where gold trees end lower, the objective asks for them, and
it is the search that does not find them. One JSON line a kind. synthetic_objective.py asks the same
of languages whose grammar is known.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from benchmarks.synthetic_objective import boundary_scores
from gpst.batch import ContextBatch
from gpst.chart.inside import inside
from gpst.chart.layout import build_layout
from gpst.chart.outside import outside
from gpst.config import CompositionConfig, GPSTConfig
from gpst.model.gpst import GPSTModel
from gpst.model.losses import vocabulary_loss
from pipeline.evaluate.grammar_induction.baselines import (
    balanced,
    best_binary,
    left_branching,
    random_tree,
    right_branching,
)
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.treebank import GoldTree

Sentence = tuple[GoldTree, list[int]]
Spans = Callable[[GoldTree], Sequence[tuple[int, int]]]
LONGEST = 60


def kinds(seed: int) -> dict[str, Spans]:
    """By name: the spans of a sentence."""
    source = random.Random(seed)
    return {
        "gold": best_binary,
        "right": lambda tree: right_branching(len(tree.words)),
        "left": lambda tree: left_branching(len(tree.words)),
        "balanced": lambda tree: balanced(len(tree.words)),
        "random": lambda tree: random_tree(len(tree.words), source),
    }


def make_model(vocab_size: int) -> GPSTModel:
    composition = CompositionConfig(
        dim=64, num_heads=4, ffn_dim=256, num_layers=2, score_dim=64, window=1, dropout=0.0
    )
    return GPSTModel(
        GPSTConfig(
            vocab_size=vocab_size, bos_token_id=0, hidden_dim=128, num_heads=4, ffn_dim=64,
            num_type_layers=1, num_token_layers=1, dropout=0.0, head_dropout=0.0,
            composition=composition,
        )
    )  # fmt: skip


def read(folder: str, vocab_size: int) -> tuple[list[Sentence], list[Sentence], int]:
    """Sentences of 2 to LONGEST words of train.txt, those of valid.txt, and the vocabulary."""
    files = [gold_trees(f"{folder}/{name}.txt", False, True)[0] for name in ("train", "valid")]
    trees = [[tree for tree in file if 2 <= len(tree.words) <= LONGEST] for file in files]
    counts = Counter(word for tree in trees[0] for word in tree.words)
    words = [word for word, count in counts.most_common(vocab_size - 1) if count > 1]
    index = {word: number for number, word in enumerate(words, 1)}
    train, valid = (
        [(tree, [index.get(word, 0) for word in tree.words]) for tree in part] for part in trees
    )
    return train, valid, len(words) + 1


def autoencoding(model: GPSTModel, sentences: Sequence[Sentence], spans: Spans) -> torch.Tensor:
    """Sum over the words, nats."""
    batch = ContextBatch.from_sentences([[ids] for _, ids in sentences])
    scores = [boundary_scores(spans(tree), len(ids)) for tree, ids in sentences]
    layout = build_layout(np.concatenate(scores), batch.sentence_ends, 1)
    leaves = model.scaling.down(model.embedding(batch.tokens))
    chart = inside(layout, model.composition, leaves)
    vectors = outside(layout, model.decomposition, chart.inside_ae)
    return vocabulary_loss(model.autoencoding_head(vectors), model.embedding.weight, batch.tokens)


def batches(sentences: list[Sentence], tokens: int, seed: int) -> Iterator[list[Sentence]]:
    source, batch, total = random.Random(seed), [], 0
    while True:
        for sentence in source.sample(sentences, len(sentences)):
            batch.append(sentence)
            total += len(sentence[1])
            if total >= tokens:
                yield batch
                batch, total = [], 0


def run(name: str, spans: Spans, arguments: argparse.Namespace) -> dict[str, object]:
    """Trains and measures with trees of one kind."""
    torch.manual_seed(arguments.seed)
    train, valid, vocab_size = read(arguments.trees, arguments.vocab_size)
    model = make_model(vocab_size)
    unused = ("generator", "parser")
    parameters = [p for n, p in model.named_parameters() if not n.startswith(unused)]
    optimizer = torch.optim.AdamW(parameters, arguments.rate, (0.9, 0.95))
    began, source = time.process_time(), batches(train, 1024, arguments.seed)
    for step in range(arguments.steps):
        scale = min(1, (step + 1) / 30) * (1 - 0.9 * step / arguments.steps)
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * scale
        batch = next(source)
        optimizer.zero_grad()
        (autoencoding(model, batch, spans) / sum(len(ids) for _, ids in batch)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    with torch.no_grad():
        total = sum(
            float(autoencoding(model, valid[i : i + 64], spans)) for i in range(0, len(valid), 64)
        )
    loss = total / sum(len(ids) for _, ids in valid)
    seconds = round(time.process_time() - began, 1)
    return {"trees": name, "autoencoding": round(loss, 4), "vocabulary": vocab_size,
            "steps": arguments.steps, "seconds": seconds}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trees", required=True, help="folder of train.txt and valid.txt")
    parser.add_argument("--kinds", nargs="+", default=["gold", "right", "random"])
    parser.add_argument("--steps", type=int, default=488, help="of 1,024 words")
    parser.add_argument("--vocab-size", type=int, default=6000)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.kinds:
        print(json.dumps(run(name, kinds(arguments.seed)[name], arguments)), flush=True)


if __name__ == "__main__":
    main()
