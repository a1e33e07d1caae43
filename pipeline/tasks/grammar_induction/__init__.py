"""Grammar induction (paper 4.3): unlabelled F1 of the model's trees against a treebank's."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import ConfigError, DataError
from pipeline.strict import require
from pipeline.talk import shows_bars
from pipeline.tasks.grammar_induction.baselines import baseline_scores
from pipeline.tasks.grammar_induction.gold import gold_trees, tree_files
from pipeline.tasks.grammar_induction.score import LABELS, LENGTHS, Span, TreeScores, score_trees
from pipeline.tasks.options import add_options, option, read_options
from pipeline.tasks.outcome import Outcome, fingerprint, table
from pipeline.treebank import GoldTree, read_unlabelled

SUMMARY = "unlabelled F1 of the trees that a model induces"


@dataclass(frozen=True)
class Options:
    """See `add_arguments`."""

    trees: str | None = option(None, "gold trees: a tree a line, a .mrg file, or a folder of them")
    model: tuple[str, ...] = option((), "exported models, checkpoints or runs; none: baselines")
    select_on: str | None = option(
        None, "gold trees to choose the best of several models on, before it is tested on --trees"
    )
    predictions: str | None = option(
        None, "score these trees, '((the dog) barks)' a line, instead of a model's"
    )
    parser: Literal["inside", "left-to-right", "both"] = option(
        "both", "the composition model's trees, or those of word-level search"
    )
    beam: int = option(20, "hypotheses kept in the search")
    sync: bool = option(True, "compare hypotheses word by word; no: action by action")
    punctuation: bool = option(False, "keep punctuation, which is told by its tags")
    lower: bool = option(True, "lower-case the words")
    leading_space: bool = option(
        True, "read sentences as inside a text, after a space; no: as documents of their own"
    )
    max_sentences: int | None = option(None, "only the first so many trees, for a quick look")
    batch_tokens: int = option(2048, "tokens parsed at once")
    num_random: int = option(5, "random baselines, seeds 0, 1, ...")
    device: str | None = option(None, "cpu, cuda, ...; the GPU if there is one")
    output: str = option("runs/evaluate/grammar_induction", "folder for results.json and trees")

    def __post_init__(self) -> None:
        for name in ("beam", "batch_tokens", "num_random"):
            require(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        if self.trees is None:
            raise ConfigError("--trees is missing: give the gold trees to score against")
        if len(self.model) > 1 and self.select_on is None:
            raise ConfigError(
                "--model: several models need --select-on, trees to choose the best one on"
            )
        if self.model and self.predictions:
            raise ConfigError("give either --model or --predictions, not both")

    @property
    def parsers(self) -> tuple[Literal["inside", "left-to-right"], ...]:
        return ("inside", "left-to-right") if self.parser == "both" else (self.parser,)


def add_arguments(parser: ArgumentParser) -> None:
    """The task's arguments."""
    add_options(parser, Options)


def run(arguments: Namespace) -> int:
    """Evaluates and returns the exit code.

    Raises:
        PipelineError: an error that a user can act on.
    """
    options = read_options(Options, arguments)
    assert options.trees is not None
    outcome = Outcome.at(options.output)
    gold, dropped = _gold(options.trees, options)
    results: dict[str, Any] = {
        "task": "grammar_induction",
        "options": asdict(options),
        "protocol": "sentence-level unlabelled F1 of Kim et al. 2019 (docs: design/evaluation.md)",
        "data": {
            "path": options.trees,
            "sha256": fingerprint(tree_files(Path(options.trees))),
            "trees": len(gold),
            "one_word": sum(len(tree.words) == 1 for tree in gold),
            "no_words": dropped,
        },
    }
    scores, spread = baseline_scores(gold, options.num_random)
    results["baselines"] = {name: asdict(score) for name, score in scores.items()}
    results["random_f1"] = spread
    rows = dict(scores)
    predicted: dict[str, list[list[Span]]] = {}
    if options.predictions:
        predicted["predictions"] = _given_spans(options.predictions, gold)
    elif options.model:
        predicted, results["model"] = _model_spans(options, gold)
    for name, spans in predicted.items():
        rows[name] = score_trees(gold, spans)
    results["scores"] = {name: asdict(rows[name]) for name in predicted}
    outcome.write(results, prediction_lines(gold, predicted))
    print(report(rows, results["data"]))
    print(f"results: {outcome.folder / 'results.json'}")
    return 0


def _gold(path: str, options: Options) -> tuple[list[GoldTree], int]:
    return gold_trees(path, options.punctuation, options.lower, options.max_sentences)


def _given_spans(path: str, gold: list[GoldTree]) -> list[list[Span]]:
    """The trees of a file, which must be those of the gold trees' sentences."""
    trees = read_unlabelled(path)
    if len(trees) != len(gold):
        raise DataError(
            f"--predictions {path}: {len(trees)} trees, but there are {len(gold)} sentences"
        )
    for number, (mine, theirs) in enumerate(zip(trees, gold, strict=True), 1):
        if len(mine.words) != len(theirs.words):
            raise DataError(
                f"--predictions {path}: tree {number} has {len(mine.words)} words, the gold tree "
                f"{len(theirs.words)}; it must be over its words ({' '.join(theirs.words)})"
            )
    return [[c.span for c in tree.constituents] for tree in trees]


def _model_spans(
    options: Options, gold: list[GoldTree]
) -> tuple[dict[str, list[list[Span]]], dict[str, Any]]:
    """The model's trees by parser; of several models, those of each parser's best one."""
    from gpst.model import GPST
    from pipeline.tasks.loading import load_model

    chosen: dict[str, tuple[float, str]] = {}
    about: dict[str, Any] = {}
    predicted: dict[str, list[list[Span]]] = {}
    for path in options.model:
        loaded = load_model(path, options.device)
        if not isinstance(loaded.model, GPST):
            raise ConfigError(f"--model {path}: is no GPST and induces no trees")
        for parser in options.parsers:
            selection = 0.0
            if options.select_on:
                valid, _ = _gold(options.select_on, options)
                spans, _ = _parse(loaded, valid, parser, options)
                selection = score_trees(valid, spans).sentence_f1
            if parser in chosen and chosen[parser][0] >= selection:
                continue
            chosen[parser] = selection, path
            predicted[parser], seconds = _parse(loaded, gold, parser, options)
            about[parser] = {
                "path": path,
                "fingerprint": loaded.fingerprint,
                "selection_f1": selection if options.select_on else None,
                "sentences_per_second": len(gold) / seconds,
            }
    return predicted, about


def _parse(
    loaded: Any, gold: list[GoldTree], parser: Any, options: Options
) -> tuple[list[list[Span]], float]:
    """Spans over words for each sentence, and the seconds that it took."""
    from tqdm import tqdm

    from pipeline.tasks.grammar_induction.parse import parse, to_pieces

    sentences = [
        to_pieces(tree.words, loaded.tokenizer, f"sentence {number}", options.leading_space)
        for number, tree in enumerate(gold, 1)
    ]
    spans: list[list[Span]] = [[] for _ in gold]
    began = time.perf_counter()
    found = parse(
        loaded.model,
        sentences,
        parser=parser,
        beam=options.beam,
        sync=options.sync,
        batch_tokens=options.batch_tokens,
    )
    bar = tqdm(found, parser, len(gold), unit=" sentences", disable=not shows_bars())
    for number, tree in bar:
        spans[number] = list(tree.internal_spans)
    return spans, time.perf_counter() - began


def prediction_lines(
    gold: Sequence[GoldTree], predicted: Mapping[str, Sequence[Sequence[Span]]]
) -> Iterator[dict[str, Any]]:
    """A line a sentence of predictions.jsonl; spans by parser."""
    for number, tree in enumerate(gold):
        trees = {name: spans[number] for name, spans in predicted.items()}
        yield {"words": tree.words, "gold": sorted(tree.spans()), "spans": trees}


def report(rows: dict[str, TreeScores], data: dict[str, Any]) -> str:
    """The tables for the terminal."""
    counts = next(iter(rows.values())).gold_by_label
    header = ["trees", "F1", "corpus F1", *(f"<= {n} words" for n in LENGTHS), *LABELS]
    body = [
        [
            name,
            score.sentence_f1,
            score.corpus_f1,
            *score.f1_by_length.values(),
            *score.recall_by_label.values(),
        ]
        for name, score in rows.items()
    ]
    total = data["trees"] + data["no_words"]
    return (
        f"{total} trees: {data['one_word']} of one word and {data['no_words']} without words are "
        "not scored. F1: mean of the sentences'; labels: recall.\n"
        + table(header, [*body, ["gold spans", "", "", *[""] * len(LENGTHS), *_texts(counts)]])
    )


def _texts(counts: dict[str, int]) -> list[str]:
    return [str(count) for count in counts.values()]
