"""Syntactic generalization (paper 4.2.2): the SyntaxGym suites by surprisal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from tqdm import tqdm

from gpst.config_reader import Count
from pipeline.config.paths import PathText
from pipeline.errors import ConfigError
from pipeline.evaluate.options import option
from pipeline.evaluate.result_cache import CACHE_FILE, ResultCache
from pipeline.evaluate.results import ResultsFolder, fingerprint, table
from pipeline.evaluate.syntaxgym.suites import CIRCUITS, Suite, read_suites
from pipeline.terminal import shows_bars

SUMMARY = "accuracy on the SyntaxGym suites, by circuit"


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    model: tuple[PathText, ...] = option(
        (), "exported models, checkpoints or runs; of several (seeds): mean and deviation"
    )
    suites: PathText | None = option(None, "folder of SyntaxGym suites, or one suite's .json file")
    beam: Count = option(300, "hypotheses in GPST's prefix probabilities")
    batch_tokens: Count | None = option(
        None, "tokens read at once (by default 4096 for GPT-2; for GPST 76800 over all hypotheses)"
    )
    attach_punctuation: bool = option(
        False, "no space before punctuation, as in running text; the suites have one"
    )
    max_items: Count | None = option(None, "only the first items of each suite, for a quick look")
    device: str | None = option(None, "cpu, cuda, ...; the GPU if there is one")
    output: PathText = option("runs/evaluate/syntactic_generalization", "folder for results.json")

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("--model is missing: give an exported model, a checkpoint or a run")
        if self.suites is None:
            raise ConfigError("--suites is missing: give the folder of SyntaxGym's JSON files")


def run(options: Options) -> int:
    """Evaluates and returns the exit code.

    Raises:
        ConfigError, DataError, CheckpointError: what a user can act on, in one line.
    """
    assert options.suites is not None
    folder = ResultsFolder.at(options.output)
    suites = read_suites(options.suites, options.attach_punctuation)
    if options.max_items:
        suites = [first_items(suite, options.max_items) for suite in suites]
    runs, lines = [], []
    for path in options.model:
        about, predictions = _evaluate(path, suites, options)
        runs.append(about)
        lines += predictions
    results = {
        "task": "syntactic_generalization",
        "options": asdict(options),
        "protocol": "an item passes when all its suite's predictions hold; mean over items, then "
        "over the suites of a circuit, then over circuits (Hu et al. 2020)",
        "data": {"path": options.suites, "sha256": fingerprint(suite.path for suite in suites)},
        **over_models(runs),
        "runs": runs,
    }
    folder.write(results, lines)
    print(report(results))
    print(f"results: {folder.path / 'results.json'}")
    return 0


def over_models(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over models of the scores and circuits."""

    def mean_std(values: Sequence[float | None]) -> dict[str, float | None]:
        known = [value for value in values if value is not None]
        if not known:
            return {"mean": None, "deviation": None}
        return {"mean": fmean(known), "deviation": pstdev(known)}

    def both(get: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return {
            "score": mean_std([get(run)["score"] for run in runs]),
            "circuits": {
                name: mean_std([get(run)["circuits"][name] for run in runs]) for name in CIRCUITS
            },
        }

    return {**both(lambda run: run), "first_formula": both(lambda run: run["first_formula"])}


def first_items(suite: Suite, count: int) -> Suite:
    """The suite with its first items only."""
    return Suite(suite.name, suite.formulas, suite.items[:count], suite.path)


def _evaluate(
    path: str, suites: Sequence[Suite], options: Options
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A model's results, and its lines of predictions.jsonl."""
    from gpst.model.gpst import GPSTModel
    from pipeline.evaluate.load_model import load_model
    from pipeline.evaluate.syntaxgym import score
    from pipeline.evaluate.syntaxgym.result_cache import CachedSurprisals
    from pipeline.evaluate.syntaxgym.surprisal import ModelSurprisals

    loaded = load_model(path, options.device)
    searches = isinstance(loaded.model, GPSTModel)
    default = max(1, 76800 // options.beam) if searches else 4096
    began = time.perf_counter()
    with tqdm(desc="reading", unit=" texts", disable=not shows_bars()) as bar:
        surprisals = ModelSurprisals(
            loaded.model,
            loaded.tokenizer,
            beam=options.beam,
            batch_tokens=options.batch_tokens or default,
            progress=bar.update,
        )
        key = f"{loaded.fingerprint} {options.beam}"
        cache = ResultCache(Path(options.output) / CACHE_FILE, key)
        # A beam of 300 takes seconds a text on a CPU.
        cached = CachedSurprisals(surprisals, cache, 16 if searches else 1024, bar.update)
        items, crossing = score.evaluate_suites(suites, cached)
    seconds = time.perf_counter() - began
    by_suite = score.suite_scores(suites, items)
    circuits, first = score.circuit_scores(by_suite), score.circuit_scores(by_suite, True)
    about = {
        "model": {"path": loaded.path, "fingerprint": loaded.fingerprint},
        "score": score.overall(circuits),
        "circuits": circuits,
        "first_formula": {"score": score.overall(first), "circuits": first},
        "suites": {name: asdict(suite) for name, suite in by_suite.items()},
        "tokens_over_regions": crossing,
        "items_per_second": None if cached.num_cached else len(items) / seconds,
    }
    lines = [{"model": path, **asdict(item), "passes": item.passes} for item in items]
    return about, lines


def report(results: dict[str, Any]) -> str:
    """The tables for the terminal: suites (means over models), then circuits."""
    runs, first = results["runs"], results["first_formula"]
    suites = sorted(
        runs[0]["suites"].items(), key=lambda pair: (pair[1]["circuit"] or "~", pair[0])
    )
    rows: list[list[str | float | None]] = [
        [
            name,
            suite["circuit"] or "(alone)",
            str(suite["num_items"]),
            fmean(run["suites"][name]["score"] for run in runs),
        ]
        for name, suite in suites
    ]
    lines = [table(["suite", "circuit", "items", "passed %"], rows), ""]
    several = len(runs) > 1
    circuits: list[list[str | float | None]] = []
    for name in [*CIRCUITS, "mean over circuits"]:
        total = name not in CIRCUITS
        all_formulas = results["score"] if total else results["circuits"][name]
        first_only = first["score"] if total else first["circuits"][name]
        std = [all_formulas["deviation"]] if several else []
        circuits.append([name, all_formulas["mean"], *std, first_only["mean"]])
    header = ["circuit", "passed %", *["deviation"] * several, "first formula only %"]
    lines.append(table(header, circuits))
    if results["score"]["mean"] is None:
        lines.append("The mean needs suites of all circuits.")
    if crossing := sum(run["tokens_over_regions"] for run in runs):
        lines.append(
            f"{crossing} tokens reach over the end of a region and count where they begin."
        )
    return "\n".join(lines)
