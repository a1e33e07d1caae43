"""`launch/convert.sh`: checkpoints to exported models."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from data_prep.tokenizer.load import load_tokenizer
from pipeline.errors import CheckpointError, ConfigError, DataError, report


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message} (see --help)")


def _parser() -> ArgumentParser:
    parser = _Parser(prog="convert", description="Converts models.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    to_hf = commands.add_parser(
        "to-hf", help="a checkpoint to a folder that transformers and our commands load"
    )
    to_hf.add_argument("checkpoint", help="a checkpoint's folder, or a run's (its newest one)")
    to_hf.add_argument("output", help="folder to write")
    to_hf.add_argument("--tokenizer", help="folder of tokenizer.json (default: the dataset's)")
    to_hf.set_defaults(run=_to_hf)
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        options = _parser().parse_args(argv)
        options.run(options)
    except BaseException as error:
        return report(error, "convert")
    return 0


def _to_hf(options: Namespace) -> None:
    checkpoint = Path(options.checkpoint)
    if not checkpoint.is_dir():
        raise CheckpointError(f"no checkpoint in {checkpoint}: there is no such folder")
    from gpst.classifier import split_classifier
    from gpst.config import config_from_dict
    from gpst.hf.files import ModelFolderError, export, open_model
    from pipeline.checkpoint import load_model_weights

    run, saved = load_model_weights(checkpoint)
    weights, classifier = split_classifier(saved)
    config = config_from_dict(run["model"])
    tokenizer = _tokenizer_folder(options.tokenizer, run)
    end_token = load_tokenizer(tokenizer).end_of_document_id
    card = model_card(run, checkpoint, sum(tensor.numel() for tensor in weights.values()))
    try:
        export(options.output, config, weights, tokenizer, end_token, card, classifier)
        open_model(options.output).model()
    except ModelFolderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"cannot write {options.output}: {error.strerror or error}") from error
    print(f"{options.output}: {config.kind} model, weights, tokenizer and card", file=sys.stderr)


def _tokenizer_folder(given: str | None, run: dict[str, Any]) -> Path:
    if given is not None:
        return Path(given)
    data = run["data"]
    path = Path(data.get("path") or data["datasets"][0]["path"])
    if not (path / "tokenizer" / "tokenizer.json").is_file():
        raise ConfigError(
            f"the run's dataset {path} has no tokenizer here; name one with --tokenizer FOLDER"
        )
    return path / "tokenizer"


def model_card(run: dict[str, Any], checkpoint: Path, num_parameters: int) -> str:
    """README.md of an exported model: what it is, its data, training and held-out figures."""
    kind = run["model"]["kind"]
    name = "Generative Pretrained Structured Transformer" if kind == "gpst" else "GPT-2 baseline"
    data = run["data"].get("path") or ", ".join(d["path"] for d in run["data"]["datasets"])
    train, last = run["train"], _last_metrics(checkpoint)
    # Only fine-tuning has such a file beside its data.
    how = "fine-tuned" if (Path(data) / "examples.json").is_file() else "trained from scratch"
    lines = [
        "---",
        "license: apache-2.0",
        "pipeline_tag: text-generation",
        f"tags: [{kind}, syntax, language-model]",
        "---",
        f"# {name}",
        "",
        f"{num_parameters:,} parameters, {how} on `{Path(data).name}` "
        f"(contexts of {run['data']['context_tokens']} tokens, {train['global_batch_contexts']} a "
        f"step, planned for {train['num_steps']} steps).",
        "",
    ]
    if last:
        lines += ["| measured last | |", "|---|---|"]
        lines += [f"| {key} | {value:.6g} |" for key, value in last.items()]
        lines.append("")
    trees = _last_trees(checkpoint)
    if trees:
        lines += ["Trees that it induced for the run's fixed sentences:", "```", *trees, "```", ""]
    use = (
        "from gpst import GPST\nmodel = GPST.from_pretrained(FOLDER)\n"
        'print(model.parse("The old man sails the boats."))\nprint(model.generate("The")[0].text)'
        if kind == "gpst"
        else "from transformers import GPT2LMHeadModel\n"
        "model = GPT2LMHeadModel.from_pretrained(FOLDER)"
    )
    lines += ["```python", use, "```", ""]
    return "\n".join(lines)


_CARD_METRICS = ("step", "tokens", "loss", "perplexity/token", "eval/perplexity/token",
                 "eval/joint_nats_per_token", "eval/bits_per_byte")  # fmt: skip


def _metrics(checkpoint: Path) -> list[dict[str, Any]]:
    """The run's metrics, if they lie where a run has them."""
    for folder in (checkpoint, checkpoint.parent.parent):
        file = folder / "metrics.jsonl"
        if file.is_file():
            lines = file.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
    return []


def _last_metrics(checkpoint: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in _metrics(checkpoint):
        found |= {key: line[key] for key in _CARD_METRICS if key in line}
    return {key: found[key] for key in _CARD_METRICS if key in found}


def _last_trees(checkpoint: Path) -> list[str]:
    found: dict[str, str] = {}
    for line in _metrics(checkpoint):
        found |= {k: v for k, v in line.items() if k.startswith("trees/") and isinstance(v, str)}
    return [found[key] for key in sorted(found)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
