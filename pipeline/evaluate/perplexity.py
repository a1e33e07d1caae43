"""Perplexity of held-out text: `launch/evaluate.sh perplexity --model DIR --data DATASET`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from data_prep.format.shard import Dataset, open_dataset
from gpst.config_reader import Count
from pipeline.config.paths import PathText
from pipeline.errors import ConfigError
from pipeline.evaluate.options import option
from pipeline.evaluate.result_cache import CACHE_FILE, ResultCache
from pipeline.terminal import say, shows_bars

if TYPE_CHECKING:
    from pipeline.evaluate.held_out import Evaluation

SUMMARY = (
    "Per-token perplexity on the same held-out contexts, one table: a unigram model, GPT-2, GPST "
    "given its induced trees, and GPST with its trees marginalised over a beam, which is the "
    "number that compares with GPT-2."
)


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    model: tuple[PathText, ...] = option((), "GPST: exported folders, runs or checkpoints (seeds)")
    gpt2: tuple[PathText, ...] = option((), "GPT-2 baselines to show beside it (seeds)")
    data: PathText | None = option(None, "dataset directory of data_prep")
    beam: Count = option(20, "hypotheses a context")
    histories: Count = option(
        1, "of them, those that go on into the next sentence with the weight of all"
    )
    max_contexts: Count | None = option(None, "a fixed choice of so many; by default all")
    context_tokens: Count | None = option(None, "by default what the model takes")
    output: PathText | None = option(None, "folder for results.json (by default the first model's)")
    device: str | None = option(None, "cpu, cuda, ...; the GPU if there is one")

    def __post_init__(self) -> None:
        for name in ("model", "data"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is missing (see --help)")
        if not Path(str(self.data)).is_dir():
            raise ConfigError(f"--data {self.data}: no such dataset directory")


def run(options: Options) -> int:
    """Evaluates and returns the exit code.

    Raises:
        ConfigError, DataError, CheckpointError: what a user can act on, in one line.
    """
    dataset = open_dataset(str(options.data))
    has_train = dataset.manifest.num_documents["train"] > 0
    if not has_train:
        missing = f"{dataset.path} has no training documents: the unigram model is left out"
        print(f"perplexity: {missing}", file=sys.stderr, flush=True)
    # What takes seconds to import comes after the checks.
    from pipeline.evaluate.held_out import unigram_perplexity
    from pipeline.evaluate.results import ResultsFolder

    if options.output:
        ResultsFolder.at(options.output)  # a wrong one is refused before the work
    _check_models(options)
    runs: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for path in options.model:
        runs.append(_one_gpst(options, path, dataset, lines))
    source = _source(options, dataset, "validation", runs[0]["limit"])
    values = {}
    if has_train:
        _say("unigram")
        train = _source(options, dataset, "train", runs[0]["limit"])
        values["unigram"] = [unigram_perplexity(train, source, max_contexts=options.max_contexts)]
    baselines = [_one_gpt2(options, path, dataset, source) for path in options.gpt2]
    values |= _by_size(baselines)
    for name in runs[0]["token_perplexity"]:
        values[name] = [run["token_perplexity"][name] for run in runs]
    results: dict[str, Any] = {
        "task": "perplexity",
        "options": asdict(options),
        "data": str(dataset.path),
        "data_fingerprint": dataset.manifest.fingerprint,
        "split": "validation",
        "beam": options.beam,
        "gpst": options.model[0],
        "num_contexts": runs[0]["num_contexts"],
        "num_tokens": runs[0]["num_tokens"],
        "token_perplexity": {name: fmean(of_models) for name, of_models in values.items()},
        "deviation": {name: pstdev(of_models) for name, of_models in values.items()},
        "runs": runs,
        "gpt2_runs": baselines,
    }
    ResultsFolder.at(options.output or options.model[0]).write(results, lines)
    print(_table(values, results))
    return 0


def _check_models(options: Options) -> None:
    """Says before the work which model is of the other kind, or takes no such contexts."""
    from pipeline.evaluate.load_model import find_model

    for name, kind, paths in (("model", "gpst", options.model), ("gpt2", "gpt2", options.gpt2)):
        other = "gpt2" if name == "model" else "model"
        for path in paths:
            config = find_model(path, f"--{name}").config
            if config.kind != kind:
                raise ConfigError(f"--{name} {path} is a {config.kind}; give it as --{other}")
            if (options.context_tokens or 0) > config.max_context_tokens:
                raise ConfigError(
                    f"--context-tokens {options.context_tokens}: {path} takes "
                    f"{config.max_context_tokens} (max_context_tokens)"
                )


def _source(options: Options, dataset: Dataset, split: Any, limit: int) -> Any:
    from pipeline.data.source import ContextSource

    return ContextSource([dataset], split, options.context_tokens or limit)


def _one_gpst(
    options: Options, path: str, dataset: Dataset, lines: list[dict[str, Any]]
) -> dict[str, Any]:
    """The results of one GPST; adds a line for each context to `lines`."""
    from pipeline.evaluate.load_model import load_model

    loaded = load_model(path, options.device)
    _check_tokenizer(loaded.tokenizer, dataset, path)
    config: Any = loaded.model.config
    limit = config.max_context_tokens
    results: dict[str, Any] = {
        "path": loaded.path, "fingerprint": loaded.fingerprint, "limit": limit
    }  # fmt: skip
    source = _source(options, dataset, "validation", limit)
    results["token_perplexity"] = _gpst(options, loaded, source, results)
    lines += [
        {"model": path, "context": number, "tokens": tokens, "nats": nats}
        for number, tokens, nats in results["marginal"].pop("contexts")
    ]
    return results


def _one_gpt2(options: Options, path: str, dataset: Dataset, source: Any) -> dict[str, Any]:
    from pipeline.evaluate.load_model import load_model

    _say("GPT-2")
    baseline = load_model(path, options.device)
    _check_tokenizer(baseline.tokenizer, dataset, path)
    evaluation = _teacher_forced(options, baseline, source)
    config: Any = baseline.model.config
    return {
        "path": baseline.path,
        "fingerprint": baseline.fingerprint,
        "size": f"{config.num_layers} layers of {config.hidden_dim}",
        "token_perplexity": evaluation.token_perplexity,
    }


def _by_size(baselines: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Perplexities of the GPT-2s; seeds have one row, other sizes one of their own."""
    values: dict[str, list[float]] = {}
    several = len({run["size"] for run in baselines}) > 1
    for run in baselines:
        name = f"GPT-2, {run['size']}" if several else "GPT-2"
        values.setdefault(name, []).append(run["token_perplexity"])
    return values


def _cache(options: Options, loaded: Any, source: Any, *settings: int) -> ResultCache:
    """The results of an interrupted evaluation of this model on this data."""
    key = " ".join([loaded.fingerprint, source.fingerprint, *map(str, settings)])
    return ResultCache(Path(options.output or options.model[0]) / CACHE_FILE, key)


def _teacher_forced(options: Options, loaded: Any, source: Any) -> Evaluation:
    from pipeline.evaluate.held_out import Evaluation, evaluate_model

    cache, item = _cache(options, loaded, source), f"{options.max_contexts or 'all'} contexts"
    if item not in cache:
        evaluation = evaluate_model(
            loaded.model, source, max_contexts=options.max_contexts, device=loaded.device
        )
        cache.add({item: asdict(evaluation)})
    return Evaluation(**cache[item])


def _gpst(options: Options, loaded: Any, source: Any, results: dict[str, Any]) -> dict[str, float]:
    from tqdm import tqdm

    from pipeline.evaluate.held_out import evaluation_contexts
    from pipeline.evaluate.marginal import ContextSurprisal, evaluate_marginal

    _say("GPST given its induced trees")
    evaluation = _teacher_forced(options, loaded, source)
    _say("GPST, trees marginalised")
    cache = _cache(options, loaded, source, options.beam, options.histories)
    known = {int(item): ContextSurprisal(*value) for item, value in cache.entries.items()}
    numbers = evaluation_contexts(source, options.max_contexts).tolist()
    total = len(set(numbers) - set(known))
    with tqdm(total=total, unit="context", disable=not shows_bars(), file=sys.stderr) as bar:

        def on_done(fresh: dict[int, ContextSurprisal]) -> None:
            cache.add({str(number): [one.nats, one.closed_nats] for number, one in fresh.items()})
            bar.update(len(fresh))

        marginal = evaluate_marginal(
            loaded.model,
            source,
            max_contexts=options.max_contexts,
            beam=options.beam,
            histories=options.histories,
            known=known,
            on_done=on_done,
        )
    results |= {
        "num_contexts": marginal.num_contexts,
        "num_tokens": marginal.num_tokens,
        "given_trees": asdict(evaluation),
        "marginal": asdict(marginal),
    }
    return {
        "GPST given its induced trees": evaluation.token_perplexity,
        f"GPST, trees marginalised over a beam of {options.beam}": marginal.token_perplexity,
    }


def _table(values: dict[str, list[float]], results: dict[str, Any]) -> str:
    from pipeline.evaluate.results import table

    several = any(len(runs) > 1 for runs in values.values())
    rows = [
        [name, fmean(runs), *[pstdev(runs) if len(runs) > 1 else None] * several]
        for name, runs in values.items()
    ]
    text = table(["model", "perplexity per token", *["deviation"] * several], rows)
    return (
        f"{results['num_tokens']} held-out tokens in {results['num_contexts']} contexts of "
        f"{results['data']}\n\n{text}\n\nGiven its trees, GPST's figure leaves out what the trees "
        "cost and knows what they saw of the\nfuture; marginalised it compares with "
        "GPT-2's, whatever the beam."
    )


def _say(step: str) -> None:
    say(f"evaluating: {step}")


def _check_tokenizer(tokenizer: Tokenizer, dataset: Dataset, model: str) -> None:
    """The model's tokenizer must be the dataset's: otherwise the tokens mean something else."""
    path = dataset.tokenizer_path / "tokenizer.json"
    if not path.is_file():
        return
    if Tokenizer.from_file(str(path)).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"model {model} has another tokenizer than the data set {dataset.path}: evaluate it "
            "on data built with the model's tokenizer"
        )
