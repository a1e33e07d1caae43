"""Does GPST find the trees of a language whose trees are known?

    python benchmarks/synthetic_grammar.py --seeds 0 1 2

A probabilistic grammar of 30 words, nested and unambiguous, writes sentences; a tiny GPST is
trained on the words alone. The F1 of its trees stands beside that of left-branching, right-
branching, balanced and random trees. One JSON line a seed.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from gpst.batch import ContextBatch
from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.losses import total_loss
from gpst.model import GPST
from gpst.search.parse import search_text
from pipeline.tasks.grammar_induction.baselines import baseline_scores
from pipeline.tasks.grammar_induction.score import score_trees
from pipeline.treebank import Constituent, GoldTree

KINDS = range(5)
RULES: dict[str, list[tuple[float, tuple[str, ...]]]] = {
    "S": [(1.0, ("P", "Q"))],
    "Q": [(0.6, ("P",)), (0.4, ("P", "P"))],
    "P": [(1.0, (f"P{k}",)) for k in KINDS],
    **{f"P{k}": [(0.5, (f"O{k}", f"C{k}")), (0.5, (f"O{k}", "Q", f"C{k}"))] for k in KINDS},
}
"""Weighted rules; what is no left side is a class of words.

A phrase of one of five kinds has an opening and a closing word of its kind, and holds nothing, a
phrase or two: constituents are what belongs together, as in a dependency of a determiner and its
noun. Nothing says whether what a phrase holds goes with its opening or its closing word, so that
the gold tree has the three side by side (the best binary trees therefore stay below 100).
"""
CLASSES: dict[str, list[str]] = {
    f"{edge}{k}": [f"{edge.lower()}{k}{letter}" for letter in "xyz"] for k in KINDS for edge in "OC"
}
VOCABULARY = ["<bos>", *(word for words in CLASSES.values() for word in words)]
SHORTEST, LONGEST = 5, 14
_DEEPEST = 40


def sample(source: random.Random) -> GoldTree:
    """A sentence of 5 to 14 words with its tree."""
    while True:
        words: list[str] = []
        spans: list[Constituent] = []
        if _grow("S", source, words, spans, 0) and SHORTEST <= len(words) <= LONGEST:
            spans.sort(key=lambda c: (c.start, -c.end))
            return GoldTree(tuple(words), ("",) * len(words), tuple(spans))


def _grow(
    symbol: str, source: random.Random, words: list[str], spans: list[Constituent], depth: int
) -> bool:
    """Appends what the symbol stands for; False when it gets too long."""
    if len(words) > LONGEST or depth > _DEEPEST:
        return False
    if symbol not in RULES:
        words.append(source.choice(CLASSES[symbol]))
        return True
    rules = RULES[symbol]
    (_, right) = source.choices(rules, [weight for weight, _ in rules])[0]
    start = len(words)
    if not all(_grow(child, source, words, spans, depth + 1) for child in right):
        return False
    if len(right) > 1:
        spans.append(Constituent(start, len(words) - 1, symbol))
    return True


def num_trees(words: Sequence[str]) -> int:
    """How many trees the grammar has for a sentence (1: it is unambiguous)."""

    @cache
    def count(symbols: tuple[str, ...], i: int, j: int) -> int:
        """Ways in which the symbols, one after another, make the words i..j."""
        first, *rest = symbols
        if rest:
            return sum(
                count((first,), i, k) * count(tuple(rest), k + 1, j)
                for k in range(i, j + 1 - len(rest))
            )
        if first not in RULES:
            return int(i == j and words[i] in CLASSES[first])
        return sum(count(right, i, j) for _, right in RULES[first])

    return count(("S",), 0, len(words) - 1)


@dataclass(frozen=True)
class Settings:
    """How a model is trained; the defaults are those of the reported runs."""

    steps: int = 300
    batch_tokens: int = 1024
    context_tokens: int = 128
    learning_rate: float = 2e-3
    parser_learning_rate: float = 5e-3
    warmup_fraction: float = 0.02
    noise: float = 1.0
    noise_end: float = 1.0
    temperature: float = 1.0
    schedule: str = "score"
    window: int = 2
    gradient_stop: bool = True
    surrogate: bool = True
    dim: int = 32
    hidden_dim: int = 64
    layers: int = 1
    dropout: float = 0.0
    held_out: int = 400
    evaluate_every: int = 50


def make_model(settings: Settings) -> GPST:
    """A GPST of some hundred thousand parameters."""
    dim, hidden = settings.dim, settings.hidden_dim
    return GPST(
        GPSTConfig(
            vocab_size=len(VOCABULARY),
            bos_token_id=0,
            max_context_tokens=settings.context_tokens,
            hidden_dim=hidden,
            num_heads=4,
            ffn_dim=2 * hidden,
            num_type_layers=1,
            num_token_layers=1,
            dropout=settings.dropout,
            head_dropout=settings.dropout,
            gradient_stop=settings.gradient_stop,
            surrogate=settings.surrogate,
            composition=CompositionConfig(
                dim=dim,
                num_heads=4,
                ffn_dim=2 * dim,
                num_layers=settings.layers,
                score_dim=dim,
                window=settings.window,
                schedule=settings.schedule,
                dropout=settings.dropout,
                score_dropout=settings.dropout,
            ),
            parser=ParserConfig(
                dim=dim, num_heads=4, ffn_dim=2 * dim, num_layers=1, dropout=settings.dropout
            ),
        )
    )


def ids(tree: GoldTree) -> list[int]:
    """A sentence as token ids."""
    return [VOCABULARY.index(word) for word in tree.words]


def training_batches(settings: Settings, seed: int) -> Iterator[ContextBatch]:
    """New sentences without end, packed whole into contexts."""
    source = random.Random(f"train {seed}")
    while True:
        contexts: list[list[list[int]]] = [[]]
        total = 0
        while total < settings.batch_tokens:
            sentence = ids(sample(source))
            if sum(map(len, contexts[-1])) + len(sentence) > settings.context_tokens:
                contexts.append([])
            contexts[-1].append(sentence)
            total += len(sentence)
        yield ContextBatch.from_sentences(contexts)


def train(
    settings: Settings, seed: int, held_out: Sequence[GoldTree], log: bool = False
) -> tuple[GPST, list[dict[str, float]]]:
    """Trains a model on the grammar's words.

    Returns:
        (model, F1 of its trees by the composition model along the way).
    """
    torch.manual_seed(seed)
    model = make_model(settings)
    groups = model.parameter_groups()
    peaks = [
        settings.parser_learning_rate if name == "parser" else settings.learning_rate
        for name in groups
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups.values()])
    curve: list[dict[str, float]] = []
    warmup = max(1, int(settings.warmup_fraction * settings.steps))
    batches = training_batches(settings, seed)
    began = time.perf_counter()
    model.train()
    for step in range(1, settings.steps + 1):
        share = step / settings.steps
        scale = min(1.0, step / warmup) * (1.0 - share)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * scale
        batch = next(batches)
        noise = settings.noise + share * (settings.noise_end - settings.noise)
        output = model(batch, noise=noise, temperature=settings.temperature)
        loss = total_loss(output.losses, batch.counts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % settings.evaluate_every == 0 or step == settings.steps:
            scores = score_trees(held_out, inside_spans(model, held_out))
            point = {
                "step": step,
                "seconds": round(time.perf_counter() - began, 1),
                "f1": round(scores.sentence_f1, 2),
                **{
                    name: round(float(term.mean(batch.counts).detach()), 4)
                    for name, term in {**output.losses, **output.statistics}.items()
                },
            }
            curve.append(point)
            if log:
                print(json.dumps(point), flush=True)
    return model.eval(), curve


def inside_spans(model: GPST, trees: Sequence[GoldTree]) -> list[list[tuple[int, int]]]:
    """Spans of the composition model's trees."""
    found = model.induced_trees(ContextBatch.from_sentences([[ids(tree)] for tree in trees]))
    return [list(tree.internal_spans) for tree in found]


def left_to_right_spans(
    model: GPST, trees: Sequence[GoldTree], beam: int = 20, sync: bool = True
) -> list[list[tuple[int, int]]]:
    """Spans of the trees of word-level search."""
    spans = []
    for tree in trees:
        result = search_text(model, [[ids(tree)]], beam=beam, sync=sync)[0]
        spans.append(list(result.parses[0].trees[0].internal_spans))
    return spans


def held_out_trees(count: int) -> list[GoldTree]:
    """The same test sentences for every seed of training."""
    source = random.Random("held out")
    return [sample(source) for _ in range(count)]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--search", type=int, default=0, help="sentences to parse by search too")
    parser.add_argument("--log", action="store_true", help="print the curve as it grows")
    for name, default in vars(Settings()).items():
        kind = type(default)
        if kind is bool:
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=int(default))
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    arguments = parser.parse_args()
    settings = Settings(
        **{
            name: type(default)(getattr(arguments, name))
            for name, default in vars(Settings()).items()
        }
    )
    held_out = held_out_trees(settings.held_out)
    baselines, _ = baseline_scores(held_out, 3)
    trivial = {name: round(score.sentence_f1, 2) for name, score in baselines.items()}
    f1 = []
    for seed in arguments.seeds:
        model, curve = train(settings, seed, held_out, arguments.log)
        f1.append(curve[-1]["f1"])
        line = {
            "benchmark": "synthetic_grammar",
            "seed": seed,
            "settings": vars(settings),
            "parameters": sum(p.numel() for p in model.parameters()),
            "trivial_f1": trivial,
            "f1": curve[-1]["f1"],
            "curve": curve,
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
        }
        if arguments.search:
            some = held_out[: arguments.search]
            line["inside_f1_some"] = score_trees(some, inside_spans(model, some)).sentence_f1
            line["left_to_right_f1_some"] = score_trees(
                some, left_to_right_spans(model, some)
            ).sentence_f1
        print(json.dumps(line), flush=True)
    print(json.dumps({"mean_f1": statistics.fmean(f1), "deviation": statistics.pstdev(f1)}))


if __name__ == "__main__":
    main()
