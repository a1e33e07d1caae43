"""Perplexity of held-out text: `launch/evaluate.sh perplexity --model DIR --data DATASET`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from data_prep.shard import Dataset, open_dataset
from pipeline.errors import ConfigError, report


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message} (see --help)")


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="evaluate perplexity",
        description="Per-token perplexity on the same held-out contexts, one table: a unigram "
        "model, GPT-2, GPST given its induced trees, and GPST with its trees marginalised over a "
        "beam, which is the figure that compares with GPT-2.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="GPST: exported folder, run or checkpoint")
    parser.add_argument("--gpt2", help="a GPT-2 baseline to show beside it")
    parser.add_argument("--data", required=True, help="dataset directory of data_prep")
    parser.add_argument("--beam", type=int, default=20, help="hypotheses a context (20)")
    parser.add_argument(
        "--histories",
        type=int,
        default=1,
        help="of them, those that go on into the next sentence with the weight of all (1)",
    )
    parser.add_argument("--max-contexts", type=int, help="a fixed choice of so many; default all")
    parser.add_argument("--context-tokens", type=int, help="default: what the model takes")
    parser.add_argument("--output", help="folder for results.json (default: the model's)")
    parser.add_argument("--device", help="cpu or cuda; by default a GPU when there is one")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        _run(arguments)
    except BaseException as error:
        return report(error, "evaluate perplexity")
    return 0


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    for name in ("beam", "histories", "max_contexts", "context_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: it must be at least 1")
    if not Path(options.data).is_dir():
        raise ConfigError(f"--data {options.data}: no such dataset directory")
    dataset = open_dataset(options.data)
    # What takes seconds to import comes after the checks.
    from gpst.model import GPST
    from pipeline.data import ContextSource
    from pipeline.evaluate import unigram_perplexity
    from pipeline.tasks.loading import load_model
    from pipeline.tasks.outcome import Outcome

    loaded = load_model(options.model, options.device)
    if not isinstance(loaded.model, GPST):
        raise ConfigError(f"--model {options.model} is a GPT-2 baseline; give it as --gpt2")
    _check_tokenizer(loaded.tokenizer, dataset, options.model)
    limit = loaded.model.config.max_context_tokens
    source = ContextSource([dataset], "validation", options.context_tokens or limit)
    outcome = Outcome.at(options.output or options.model)
    rows: dict[str, float] = {}
    _say("unigram")
    train = ContextSource([dataset], "train", options.context_tokens or limit)
    rows["unigram"] = unigram_perplexity(train, source, max_contexts=options.max_contexts)
    results: dict[str, Any] = {"gpst": loaded.path, "gpst_fingerprint": loaded.fingerprint}
    if options.gpt2:
        rows["GPT-2"] = _gpt2(options, dataset, source, results)
    rows |= _gpst(options, loaded.model, loaded.device, source, results)
    results |= {
        "task": "perplexity",
        "data": str(dataset.path),
        "data_fingerprint": dataset.manifest.fingerprint,
        "split": "validation",
        "beam": options.beam,
        "token_perplexity": rows,
    }
    outcome.write(results, [])
    print(_table(rows, results))


def _gpt2(options: Any, dataset: Dataset, source: Any, results: dict[str, Any]) -> float:
    from pipeline.evaluate import evaluate_model
    from pipeline.tasks.loading import load_model

    _say("GPT-2")
    baseline = load_model(options.gpt2, options.device)
    _check_tokenizer(baseline.tokenizer, dataset, options.gpt2)
    results |= {"gpt2": baseline.path, "gpt2_fingerprint": baseline.fingerprint}
    found = evaluate_model(
        baseline.model, source, max_contexts=options.max_contexts, device=baseline.device
    )
    return found.token_perplexity


def _gpst(
    options: Any, model: Any, device: Any, source: Any, results: dict[str, Any]
) -> dict[str, float]:
    from tqdm import tqdm

    from pipeline.evaluate import evaluate_model, evaluation_contexts
    from pipeline.marginal import evaluate_marginal

    _say("GPST given its induced trees")
    found = evaluate_model(model, source, max_contexts=options.max_contexts, device=device)
    _say("GPST, trees marginalised")
    total = len(evaluation_contexts(source, options.max_contexts))
    with tqdm(total=total, unit="context", disable=None, file=sys.stderr) as bar:
        marginal = evaluate_marginal(
            model,
            source,
            max_contexts=options.max_contexts,
            beam=options.beam,
            histories=options.histories,
            on_done=lambda number: (bar.update(number), None)[1],
        )
    results |= {
        "num_contexts": marginal.num_contexts,
        "num_tokens": marginal.num_tokens,
        "given_trees": asdict(found),
        "marginal": asdict(marginal),
    }
    return {
        "GPST given its induced trees": found.token_perplexity,
        f"GPST, trees marginalised over a beam of {options.beam}": marginal.token_perplexity,
    }


def _table(rows: dict[str, float], results: dict[str, Any]) -> str:
    from pipeline.tasks.outcome import table

    text = table(["model", "perplexity per token"], [[name, ppl] for name, ppl in rows.items()])
    return (
        f"{results['num_tokens']} held-out tokens in {results['num_contexts']} contexts of "
        f"{results['data']}\n\n{text}\n\nGiven its trees, GPST's figure leaves out what the trees "
        "cost and knows what they saw of the\nfuture; marginalised it compares with "
        "GPT-2's (a wider beam can only lower it)."
    )


def _say(step: str) -> None:
    print(f"evaluating: {step}", file=sys.stderr, flush=True)


def _check_tokenizer(own: Tokenizer, dataset: Dataset, model: str) -> None:
    """The model's tokenizer must be the dataset's: otherwise the tokens mean something else."""
    path = dataset.tokenizer_path / "tokenizer.json"
    if not path.is_file():
        return
    if Tokenizer.from_file(str(path)).get_vocab() != own.get_vocab():
        raise ConfigError(
            f"model {model} has another tokenizer than the data set {dataset.path}: evaluate it "
            "on data built with the model's tokenizer"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
