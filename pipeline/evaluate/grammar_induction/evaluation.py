"""Grammar induction (paper 4.3): unlabelled F1 of the model's trees against a treebank's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.evaluate.grammar_induction.baselines import baseline_scores
from pipeline.evaluate.grammar_induction.f1 import (
    LABELS,
    LENGTHS,
    Span,
    TreeScores,
    mean_scores,
    score_trees,
)
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.options import Options
from pipeline.evaluate.grammar_induction.predicted import predicted_spans
from pipeline.evaluate.results import ResultsFolder, fingerprint, mean_std, table
from pipeline.treebank import GoldTree, tree_files

SUMMARY = "unlabelled F1 of the trees that a model induces"


def run(options: Options) -> int:
    """Evaluates and returns the exit code.

    Raises:
        ConfigError, DataError, CheckpointError: what a user can act on, in one line.
    """
    assert options.trees is not None
    folder = ResultsFolder.at(options.output)
    gold, dropped = _gold(options.trees, options)
    results: dict[str, Any] = {
        "task": "grammar_induction",
        "options": asdict(options),
        "protocol": "sentence-level unlabelled F1 of Kim et al. 2019 (docs/reproduce.md)",
        "data": {
            "path": options.trees,
            "sha256": fingerprint(tree_files(Path(options.trees))),
            "trees": len(gold),
            "one_word": sum(len(tree.words) == 1 for tree in gold),
            "no_words": dropped,
        },
    }
    scores, random_f1 = baseline_scores(gold, options.num_random)
    results["baselines"] = {name: asdict(score) for name, score in scores.items()}
    results["random_f1"] = random_f1
    rows: dict[str, TreeScores] = dict(scores)
    stds: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
    if options.predictions:
        spans = {"predictions": predicted_spans(options.predictions, gold, options)}
        rows |= {name: score_trees(gold, trees) for name, trees in spans.items()}
        results["scores"] = {name: asdict(rows[name]) for name in spans}
        lines = list(prediction_lines(gold, spans))
    elif options.model:
        means, of_models, lines = _of_models(options, gold)
        rows, results = rows | means, results | of_models
        stds = of_models["f1_over_models"] if len(of_models["runs"]) > 1 else {}
    else:
        results["scores"] = {}
        lines = list(prediction_lines(gold, {}))
    folder.write(results, lines)
    print(report(rows, results["data"], stds))
    print(f"results: {folder.path / 'results.json'}")
    return 0


def _of_models(
    options: Options, gold: Sequence[GoldTree]
) -> tuple[dict[str, TreeScores], dict[str, Any], list[dict[str, Any]]]:
    """(mean scores by parser, parts of results.json, lines of predictions.jsonl)."""
    from pipeline.evaluate.grammar_induction.models import induce

    models = induce(options, gold)
    runs, lines = [], []
    by_parser: dict[str, list[TreeScores]] = {name: [] for name in options.parsers}
    for model in models:
        scores = {name: score_trees(gold, spans) for name, spans in model.spans.items()}
        for name, score in scores.items():
            by_parser[name].append(score)
        runs.append({"model": model.about, "scores": {n: asdict(s) for n, s in scores.items()}})
        path = next(iter(model.about.values()))["path"] if len(models) > 1 else None
        lines += prediction_lines(gold, model.spans, path)
    means = {name: mean_scores(scores) for name, scores in by_parser.items()}
    parts: dict[str, Any] = {
        "scores": {name: asdict(score) for name, score in means.items()},
        "f1_over_models": {
            name: mean_std([score.sentence_f1 for score in scores])
            for name, scores in by_parser.items()
        },
        "runs": runs,
    }
    return means, parts | ({"model": runs[0]["model"]} if len(runs) == 1 else {}), lines


def _gold(path: str, options: Options) -> tuple[list[GoldTree], int]:
    return gold_trees(path, options.punctuation, options.lower, options.max_sentences)


def prediction_lines(
    gold: Sequence[GoldTree],
    predicted: Mapping[str, Sequence[Sequence[Span]]],
    model: str | None = None,
) -> Iterator[dict[str, Any]]:
    """A line a sentence of predictions.jsonl; spans by parser; the model where there are more."""
    of_model = {} if model is None else {"model": model}
    for number, tree in enumerate(gold):
        trees = {name: spans[number] for name, spans in predicted.items()}
        yield {**of_model, "words": tree.words, "gold": sorted(tree.spans()), "spans": trees}


def report(
    rows: Mapping[str, TreeScores],
    data: Mapping[str, Any],
    stds: Mapping[str, Mapping[str, Any]],
) -> str:
    """The tables for the terminal.

    Args:
        stds: of the F1 over several models, by parser; the rows are means then.
    """
    counts = next(iter(rows.values())).gold_by_label
    several = ["deviation"] * bool(stds)
    header = ["trees", "F1", *several, "corpus F1", *(f"<= {n} words" for n in LENGTHS), *LABELS]
    body: list[list[str | float | None]] = [
        [
            name,
            score.sentence_f1,
            *[stds[name]["deviation"] if name in stds else None for _ in several],
            score.corpus_f1,
            *score.f1_by_length.values(),
            *score.recall_by_label.values(),
        ]
        for name, score in rows.items()
    ]
    blank = [""] * (len(several) + 1 + len(LENGTHS))
    body.append(["gold spans", "", *blank, *map(str, counts.values())])
    total = data["trees"] + data["no_words"]
    return (
        f"{total} trees: {data['one_word']} of one word and {data['no_words']} without words are "
        "not scored. F1: mean of the sentences'; labels: recall.\n" + table(header, body)
    )
