"""Does GPST find the trees of a language whose trees are known?

    python benchmarks/synthetic_grammar.py --seeds 0 1 2

A probabilistic grammar of 30 words, nested and unambiguous (synthetic_languages.py), writes
sentences; a tiny GPST is trained on the words alone. The F1 of its trees stands beside that of
left-branching, right-branching, balanced and random trees. One JSON line a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.hardware import describe
from benchmarks.synthetic_languages import LANGUAGES, Language
from gpst.batch import ContextBatch
from gpst.chart.layout import ChartLayout
from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.layers.transformer import init_linear
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss
from gpst.search.parse import search_text
from pipeline.evaluate.grammar_induction.baselines import baseline_scores
from pipeline.evaluate.grammar_induction.f1 import score_trees
from pipeline.treebank import GoldTree


@dataclass(frozen=True)
class Settings:
    """How a model is trained; the defaults are those of the reported runs."""

    language: str = "phrases"
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
    random_heads: bool = False
    """The prediction heads start as random MLPs, not as linear maps."""
    dim: int = 32
    hidden_dim: int = 64
    layers: int = 1
    dropout: float = 0.0
    held_out: int = 400
    evaluate_every: int = 50


def make_model(settings: Settings, language: Language) -> GPSTModel:
    """A GPST of some hundred thousand parameters."""
    dim, hidden = settings.dim, settings.hidden_dim
    model = GPSTModel(
        GPSTConfig(
            vocab_size=len(language.vocabulary),
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
            ),
            parser=ParserConfig(
                dim=dim, num_heads=4, ffn_dim=2 * dim, num_layers=1, dropout=settings.dropout
            ),
        )
    )
    if settings.random_heads:
        for head in (model.autoencoding_head, model.generator.token_head):
            init_linear(head.dense)
            init_linear(head.out)
    return model


@dataclass(frozen=True)
class Sentences:
    """Sentences with their trees, and as a batch of contexts."""

    trees: list[GoldTree]
    batch: ContextBatch


def training_batches(settings: Settings, language: Language, seed: int) -> Iterator[Sentences]:
    """New sentences without end, packed whole into contexts."""
    source = random.Random(f"train {seed}")
    while True:
        contexts: list[list[list[int]]] = [[]]
        trees: list[GoldTree] = []
        total = 0
        while total < settings.batch_tokens:
            trees.append(language.sample(source))
            sentence = language.ids(trees[-1])
            if sum(map(len, contexts[-1])) + len(sentence) > settings.context_tokens:
                contexts.append([])
            contexts[-1].append(sentence)
            total += len(sentence)
        yield Sentences(trees, ContextBatch.from_sentences(contexts))


def one_by_one(language: Language, trees: Sequence[GoldTree]) -> Sentences:
    """Every sentence in a context of its own."""
    return Sentences(
        list(trees), ContextBatch.from_sentences([[language.ids(tree)] for tree in trees])
    )


PlanFor = Callable[[GPSTModel, Sentences], ChartLayout | None]
"""The chart to train on; None: the model's own parser orders it."""


def own_plan(model: GPSTModel, sentences: Sentences) -> None:
    """As in pre-training: the parser decides."""


def train(
    settings: Settings,
    seed: int,
    held_out: Sequence[GoldTree],
    log: bool = False,
    plan_for: PlanFor = own_plan,
) -> tuple[GPSTModel, list[dict[str, float]]]:
    """Trains a model on the grammar's words.

    Args:
        held_out: sentences of the same language.
        plan_for: other charts than those of the model's parser.
    Returns:
        (model, F1 of its trees by the composition model along the way).
    """
    torch.manual_seed(seed)
    language = LANGUAGES[settings.language]()
    model = make_model(settings, language)
    groups = model.parameter_groups()
    peaks = [
        settings.parser_learning_rate if name.startswith("parser") else settings.learning_rate
        for name in groups
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups.values()])
    curve: list[dict[str, float]] = []
    warmup = max(1, int(settings.warmup_fraction * settings.steps))
    batches = training_batches(settings, language, seed)
    began = time.perf_counter()
    model.train()
    for step in range(1, settings.steps + 1):
        share = step / settings.steps
        scale = min(1.0, step / warmup) * (1.0 - share)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * scale
        sentences = next(batches)
        batch = sentences.batch
        noise = settings.noise + share * (settings.noise_end - settings.noise)
        layout = plan_for(model, sentences)
        output = model(batch, noise=noise, temperature=settings.temperature, layout=layout)
        loss = total_loss(output.losses, batch.counts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % settings.evaluate_every == 0 or step == settings.steps:
            scores = score_trees(held_out, inside_spans(model, language, held_out))
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


def inside_spans(
    model: GPSTModel, language: Language, trees: Sequence[GoldTree]
) -> list[list[tuple[int, int]]]:
    """Spans of the composition model's trees."""
    induced = model.induced_trees(one_by_one(language, trees).batch)
    return [list(tree.internal_spans) for tree in induced]


def search_f1(
    model: GPSTModel, language: Language, trees: Sequence[GoldTree], beam: int, sync: bool
) -> float:
    """F1 of the trees of word-level search, or without `sync` of action-level search."""
    spans = []
    for tree in trees:
        result = search_text(model, [[language.ids(tree)]], beam=beam, sync=sync)[0]
        spans.append(list(result.parses[0].trees[0].internal_spans))
    return round(score_trees(trees, spans).sentence_f1, 2)


def by_length_and_label(
    language: Language, trees: Sequence[GoldTree], predicted: Sequence[list[tuple[int, int]]]
) -> dict[str, dict[str, float | None]]:
    """F1 of sentences of at most so many words; share of each label's spans that were found."""
    labels = sorted({c.label for tree in trees for c in tree.constituents} - {"S"})
    lengths = range(language.shortest + 1, language.longest + 1, 2)
    scores = score_trees(trees, predicted, lengths, labels)
    return {"f1_by_length": scores.f1_by_length, "recall_by_label": scores.recall_by_label}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--search", type=int, default=0, help="sentences to parse by search too")
    parser.add_argument("--beams", type=int, nargs="+", default=[20, 5, 2], help="of the search")
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
    language = LANGUAGES[settings.language]()
    held_out = language.held_out(settings.held_out)
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
            **by_length_and_label(language, held_out, inside_spans(model, language, held_out)),
            "curve": curve,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "hardware": describe(),
        }
        if arguments.search:
            some = held_out[: arguments.search]
            line["inside_f1_some"] = score_trees(
                some, inside_spans(model, language, some)
            ).sentence_f1
            line["left_to_right_f1_some"] = [
                {"beam": beam, "sync": sync, "f1": search_f1(model, language, some, beam, sync)}
                for beam in arguments.beams
                for sync in (True, False)
            ]
        print(json.dumps(line), flush=True)
    print(json.dumps({"mean_f1": statistics.fmean(f1), "deviation": statistics.pstdev(f1)}))


if __name__ == "__main__":
    main()
