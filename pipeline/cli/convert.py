"""`launch/convert.sh`: checkpoints, exported models and the authors' weights into each other."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.files import write_atomically
from gpst.cli.process import load_torch
from pipeline.arguments import Parser
from pipeline.checkpoint.trainer_state import tokenizer_folder
from pipeline.config import yaml_text
from pipeline.config.run import load_config, read_model
from pipeline.errors import ConfigError, DataError, report
from pipeline.export.model_card import model_card

_EXAMPLES = {
    "to-hf": "runs/demo runs/demo/exported",
    "from-hf": "runs/demo/exported next.yaml --data data/other --run-dir runs/next",
    "from-reference": "model.bin converted --tokenizer /raw/gpt2",
    "inspect": "runs/demo",
}
_CODES = "exit codes: 0 done, 2 wrong usage, 3 damaged data or checkpoint, 130 interrupted"


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="convert",
        description="Converts models; COMMAND --help says what a command takes.",
        epilog=f"example:\n  bash launch/convert.sh to-hf {_EXAMPLES['to-hf']}\n\n{_CODES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    to_hf = commands.add_parser(
        "to-hf", help="a checkpoint to a folder that transformers and our commands load"
    )
    to_hf.add_argument("checkpoint", help="a checkpoint, or a run (its newest one)")
    to_hf.add_argument("output", help="folder to write")
    to_hf.add_argument("--tokenizer", help="folder of tokenizer.json (default: the dataset's)")
    to_hf.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="of the weights (fp32)"
    )
    to_hf.set_defaults(run=_to_hf)
    from_hf = commands.add_parser("from-hf", help="a run's config that starts from an exported one")
    from_hf.add_argument("model", help="an exported model's folder, or a checkpoint's")
    from_hf.add_argument("output", help="YAML file to write")
    from_hf.add_argument("--data", required=True, help="dataset folder of data_prep")
    from_hf.add_argument("--run-dir", required=True, help="folder of the new run")
    from_hf.add_argument("--num-steps", type=int, default=1000, help="optimizer steps (1000)")
    from_hf.add_argument("--context-tokens", type=int, default=1024, help="of a context (1024)")
    from_hf.add_argument("--force", action="store_true", help="overwrite the file")
    from_hf.set_defaults(run=_from_hf)
    reference = commands.add_parser(
        "from-reference", help="the authors' model.bin to an exported model, with a report"
    )
    reference.add_argument("file", help="model.bin; only tensors are read from it")
    reference.add_argument("output", help="folder to write")
    reference.add_argument("--tokenizer", required=True, help="folder of its tokenizer.json")
    reference.add_argument("--bos-token-id", type=int, help="default: the end-of-document token")
    reference.add_argument(
        "--num-heads", type=int, nargs=3, metavar=("GENERATOR", "COMPOSITION", "PARSER"),
        help="attention heads, which shapes do not tell (default: those of the released sizes)",
    )  # fmt: skip
    reference.set_defaults(run=_from_reference)
    inspect = commands.add_parser("inspect", help="what a checkpoint or exported model holds")
    inspect.add_argument("path", help="a checkpoint, a run, or an exported model")
    inspect.add_argument("--tensors", action="store_true", help="list names and shapes")
    inspect.set_defaults(run=_inspect)
    for name, command in commands.choices.items():
        command.formatter_class = RawDescriptionHelpFormatter
        command.epilog = f"example:\n  bash launch/convert.sh {name} {_EXAMPLES[name]}\n\n{_CODES}"
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        options = _parser().parse_args(argv)
        load_torch("convert")
        options.run(options)
        sys.stdout.flush()
    except BaseException as error:
        return report(error, "convert")
    return 0


def _to_hf(options: Namespace) -> None:
    import torch

    from gpst.export.errors import ModelFolderError
    from gpst.export.huggingface import export, open_model
    from gpst.model.classifier import split_classifier
    from pipeline.checkpoint.files import whole_checkpoint
    from pipeline.checkpoint.manager import weights_in
    from pipeline.evaluate.load_model import end_token

    path, state = whole_checkpoint(Path(options.checkpoint))
    run = state.config
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    stored = {name: tensor.to(dtype) for name, tensor in weights_in(path).items()}
    weights, classifier = split_classifier(stored)
    config = read_model(run["model"])
    tokenizer = _tokenizer_folder(options.tokenizer, run)
    last = end_token(tokenizer)
    card = model_card(state, path, sum(tensor.numel() for tensor in weights.values()))
    try:
        export(options.output, config, weights, tokenizer, last, card, classifier)
        open_model(options.output).model()
    except ModelFolderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"cannot write {options.output}: {error.strerror or error}") from error
    print(f"{options.output}: {config.kind} model, weights, tokenizer and card", file=sys.stderr)


def _tokenizer_folder(option: str | None, run: dict[str, Any]) -> Path:
    if option is not None:
        return Path(option)
    folder = tokenizer_folder(run)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"the run's dataset {folder.parent} has no tokenizer here; name one with --tokenizer "
            "FOLDER"
        )
    return folder


def _from_hf(options: Namespace) -> None:
    """Writes a run's config that starts from an exported model."""
    from gpst.config import config_to_dict
    from pipeline.evaluate.load_model import find_model

    stored = find_model(options.model, "MODEL")
    stored.weights()  # to find a damaged file now, not when the ranks start
    model = config_to_dict(stored.config)
    context = min(model["max_context_tokens"], options.context_tokens)
    run: dict[str, Any] = {
        "run_dir": options.run_dir,
        "model": model,
        "data": {"path": options.data, "context_tokens": context},
        "train": {"num_steps": options.num_steps},
        "checkpoint": {"init_from": str(stored.path.resolve())},
    }
    file = Path(options.output)
    if file.exists() and not options.force:
        raise ConfigError(f"{file} exists; give another name, or --force")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, yaml_text.write(run).encode())
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror or error}") from error
    load_config(str(file), [])
    print(f"{file}: starts from {stored.path}. Next: deepspeed launch/pretrain.sh --config {file}")


def _from_reference(options: Namespace) -> None:
    from gpst.export.errors import ModelFolderError
    from gpst.export.huggingface import export, open_model
    from gpst.integrations.released_weights.read import ReleasedWeightsError, convert, read_tensors
    from pipeline.evaluate.load_model import end_token

    tokenizer = Path(options.tokenizer)
    try:
        last = end_token(tokenizer)
        bos = last if options.bos_token_id is None else options.bos_token_id
        heads = None if options.num_heads is None else tuple(options.num_heads)
        converted = convert(read_tensors(options.file), bos_token_id=bos, heads=heads)
        card = _REFERENCE_CARD.format(file=Path(options.file).name)
        export(options.output, converted.config, converted.weights, tokenizer, last, card)
        open_model(options.output).model()
    except (ReleasedWeightsError, ModelFolderError) as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"cannot write {options.output}: {error.strerror or error}") from error
    print("theirs", "shape", "ours", "how", sep="\t")
    for line in converted.report:
        shape = "x".join(map(str, line.shape))
        print(line.source, shape, line.target or "-", line.how, sep="\t")
    unused = sum(not line.target for line in converted.report)
    print(
        f"{options.output}: {len(converted.report)} tensors read, {unused} of them not needed",
        file=sys.stderr,
    )


_REFERENCE_CARD = """---
license: apache-2.0
pipeline_tag: text-generation
tags: [gpst, syntax, language-model]
---
# Generative Pretrained Structured Transformer

Converted from `{file}`, weights that the authors of the paper released
(ACL 2024, arXiv 2403.08293).
Their sentences were tokenized one by one, without a space before the first word.
"""


def _inspect(options: Namespace) -> None:
    """One `name: value` line for each thing a user asks about a checkpoint or an exported model."""
    from gpst.config import config_to_dict
    from pipeline.checkpoint.files import named_folder, whole_checkpoint
    from pipeline.evaluate.load_model import find_model
    from pipeline.quantities import counted

    path = named_folder(options.path)
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoint, state = whole_checkpoint(path)
        engine = state.config["engine"]
        print(f"checkpoint: {checkpoint} (whole)")
        print(f"step: {state.step} of {state.config['train']['num_steps']}")
        print(f"tokens: {state.tokens:,}")
        print(f"written by: {counted(state.world_size, 'rank')}, ZeRO stage {engine['zero_stage']}")
        path, model = checkpoint, state.config["model"]
        from pipeline.checkpoint.manager import weights_in

        weights = weights_in(checkpoint)
    else:
        stored = find_model(path, "PATH")
        model, weights = config_to_dict(stored.config), stored.weights()
        print(f"exported model: {path}")
    print(f"kind: {model['kind']}")
    unique = {tensor.data_ptr(): tensor for tensor in weights.values()}
    print(f"parameters: {sum(tensor.numel() for tensor in unique.values()):,}")
    broken = [n for n, t in weights.items() if not bool(t.isfinite().all())]
    print(f"not finite: {', '.join(broken) or 'none'}")
    for name, value in model.items():
        print(f"  {name}: {json.dumps(value)}")
    if options.tensors:
        for name, tensor in weights.items():
            print(f"{name}\t{'x'.join(map(str, tensor.shape))}\t{tensor.dtype}")
