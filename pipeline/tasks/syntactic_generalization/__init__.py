"""Syntactic generalization (paper 4.2.2): the SyntaxGym suites by surprisal."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.strict import require
from pipeline.tasks.options import add_options, option, read_options
from pipeline.tasks.outcome import Outcome, fingerprint, table
from pipeline.tasks.syntactic_generalization.suites import CIRCUITS, Suite, read_suites

SUMMARY = "accuracy on the SyntaxGym suites, by circuit"


@dataclass(frozen=True)
class Options:
    """See `add_arguments`."""

    model: str | None = option(None, "exported model, checkpoint or run")
    suites: str | None = option(None, "folder of SyntaxGym suites, or one suite's .json file")
    beam: int = option(300, "hypotheses in GPST's prefix probabilities")
    batch_tokens: int | None = option(
        None, "tokens read at once (by default 4096 for GPT-2; for GPST 76800 over all hypotheses)"
    )
    attach_punctuation: bool = option(
        False, "no space before punctuation, as in running text; the suites have one"
    )
    max_items: int | None = option(None, "only the first items of each suite, for a quick look")
    device: str | None = option(None, "cpu, cuda, ...; the GPU if there is one")
    output: str = option("runs/evaluate/syntactic_generalization", "folder for results.json")

    def __post_init__(self) -> None:
        for name in ("beam", "batch_tokens", "max_items"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, ">= 1")
        if self.model is None:
            raise ConfigError("--model is missing: give an exported model, a checkpoint or a run")
        if self.suites is None:
            raise ConfigError("--suites is missing: give the folder of SyntaxGym's JSON files")


def add_arguments(parser: ArgumentParser) -> None:
    """The task's arguments."""
    add_options(parser, Options)


def run(arguments: Namespace) -> int:
    """Evaluates and returns the exit code.

    Raises:
        PipelineError: an error that a user can act on.
    """
    options = read_options(Options, arguments)
    assert options.model is not None
    assert options.suites is not None
    outcome = Outcome.at(options.output)
    suites = read_suites(options.suites, options.attach_punctuation)
    if options.max_items:
        suites = [first_items(suite, options.max_items) for suite in suites]
    from pipeline.tasks.loading import load_model
    from pipeline.tasks.syntactic_generalization import score

    loaded = load_model(options.model, options.device)
    began = time.perf_counter()
    items, crossing = _evaluate(loaded, suites, options)
    seconds = time.perf_counter() - began
    by_suite = score.suite_scores(suites, items)
    circuits, first = score.circuit_scores(by_suite), score.circuit_scores(by_suite, True)
    results = {
        "task": "syntactic_generalization",
        "options": asdict(options),
        "protocol": "an item passes when all its suite's predictions hold; mean over items, then "
        "over the suites of a circuit, then over circuits (Hu et al. 2020)",
        "model": {"path": loaded.path, "fingerprint": loaded.fingerprint},
        "data": {"path": options.suites, "sha256": fingerprint(suite.path for suite in suites)},
        "score": score.overall(circuits),
        "circuits": circuits,
        "first_formula": {"score": score.overall(first), "circuits": first},
        "suites": {name: asdict(suite) for name, suite in by_suite.items()},
        "tokens_over_regions": crossing,
        "items_per_second": len(items) / seconds,
    }
    outcome.write(results, [asdict(item) | {"passes": item.passes} for item in items])
    print(report(results))
    print(f"results: {outcome.folder / 'results.json'}")
    return 0


def first_items(suite: Suite, count: int) -> Suite:
    """The suite with its first items only."""
    return Suite(suite.name, suite.formulas, suite.items[:count], suite.path)


def _evaluate(loaded: Any, suites: Sequence[Suite], options: Options) -> tuple[list[Any], int]:
    from tqdm import tqdm

    from gpst.model import GPST
    from pipeline.tasks.syntactic_generalization.score import evaluate_suites
    from pipeline.tasks.syntactic_generalization.surprisal import ModelSurprisals

    is_gpst = isinstance(loaded.model, GPST)
    default = max(1, 76800 // options.beam) if is_gpst else 4096
    with tqdm(desc="reading", unit=" texts", disable=not sys.stderr.isatty()) as bar:
        surprisals = ModelSurprisals(
            loaded.model,
            loaded.tokenizer,
            beam=options.beam,
            batch_tokens=options.batch_tokens or default,
            progress=bar.update,
        )
        return evaluate_suites(suites, surprisals)


def report(results: dict[str, Any]) -> str:
    """The tables for the terminal: suites, then circuits."""
    by_suite, first = results["suites"], results["first_formula"]
    rows: list[list[str | float | None]] = [
        [name, suite["circuit"] or "(alone)", str(suite["num_items"]), suite["score"]]
        for name, suite in sorted(
            by_suite.items(), key=lambda pair: (pair[1]["circuit"] or "~", pair[0])
        )
    ]
    lines = [table(["suite", "circuit", "items", "passed %"], rows), ""]
    circuits: list[list[str | float | None]] = [
        [circuit, results["circuits"][circuit], first["circuits"][circuit]] for circuit in CIRCUITS
    ]
    circuits.append(["mean over circuits", results["score"], first["score"]])
    lines.append(table(["circuit", "passed %", "first formula only %"], circuits))
    if results["score"] is None:
        lines.append("The mean needs suites of all circuits.")
    if results["tokens_over_regions"]:
        lines.append(
            f"{results['tokens_over_regions']} tokens reach over the end of a region and count "
            "where they begin."
        )
    return "\n".join(lines)
