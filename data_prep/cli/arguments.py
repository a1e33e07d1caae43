"""The command line: arguments of every command. Imports nothing heavy, so that --help is fast."""

from __future__ import annotations

import argparse
import math
import os

from data_prep.sources.options import add_options

DESCRIPTION = "Turn raw text into verified token shards for training."
EXAMPLES = {
    "build": "python -m data_prep build --source text --input corpus/ --tokenizer tok/"
    " --output data/corpus --workers 8",
    "tokenizer": "python -m data_prep tokenizer --source text --input corpus/ --output tok/"
    " --vocab-size 30522",
    "verify": "python -m data_prep verify data/corpus",
    "merge": "python -m data_prep merge data/a data/b --output data/both",
    "inspect": "python -m data_prep inspect data/corpus --documents 2",
    "sources": "python -m data_prep sources",
}
EXIT_CODES = "exit codes: 0 done, 2 wrong usage, 3 wrong data, 130 interrupted (goes on when rerun)"


def _command(commands: argparse._SubParsersAction, name: str, summary: str):
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {EXAMPLES[name]}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no warnings")
    return parser


def _source_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument("--source", required=True, help="kind of input: see the command sources")
    group.add_argument(
        "--input", required=True, nargs="+", metavar="PATH", help="files, folders or patterns"
    )
    add_options(group)


def _count(text: str) -> int:
    """An integer, also as 100k, 10M, 1G."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        return round(float(digits) * scale)
    except (ValueError, OverflowError):  # OverflowError: infinity
        raise argparse.ArgumentTypeError(f"{text!r} is not a number (10000, 100k, 2M)") from None


def _finite(text: str) -> float:
    """A number, neither infinite nor nan."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number (0.5, 32)")
    return value


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    _source_arguments(parser)
    group = parser.add_argument_group("processing")
    group.add_argument(
        "--tokenizer", required=True, metavar="PATH",
        help="folder or file: tokenizer.json, vocab.txt (BERT), vocab.json + merges.txt (GPT-2)",
    )  # fmt: skip
    group.add_argument(
        "--end-of-document", metavar="TOKEN", help="token that ends a document (default: found)"
    )
    group.add_argument(
        "--segmenter",
        default="fast",
        help="of sentences: fast, none, punkt, nupunkt, sentencex (default: fast)",
    )
    group.add_argument(
        "--language", default="en", metavar="CODE",
        help="whose abbreviations the segmenter knows: ar de en es fr hi it ja nl pt ru zh; und: of"
        " no language (default: en)",
    )  # fmt: skip
    group.add_argument(
        "--max-sentence-tokens", type=_count, default=256, metavar="N",
        help="longer sentences are cut at word starts (default: 256)",
    )  # fmt: skip
    group.add_argument(
        "--on-bad-utf8", default="replace", choices=("replace", "skip", "fail"),
        help="what does not fit the encoding: U+FFFD (too much of it: left out), leave the "
        "document out, or stop (default: replace)",
    )  # fmt: skip
    group.add_argument(
        "--validation-fraction", type=float, default=0.005, metavar="F",
        help="held-out documents, by the hash of their text (default: 0.005)",
    )  # fmt: skip
    group.add_argument(
        "--deduplicate", action="store_true", help="keep the first of documents with equal text"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--output", required=True, metavar="DIR", help="the dataset directory")
    group.add_argument(
        "--shard-tokens", type=_count, default=1 << 28, metavar="N",
        help="tokens of a shard at most (default: 268M)",
    )  # fmt: skip
    group.add_argument(
        "--unit-mib", type=_finite, default=32, metavar="N",
        help="MiB of text that a worker does at a time, and that a kill loses (default: 32)",
    )  # fmt: skip
    group = parser.add_argument_group("running (the result does not depend on these)")
    group.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, metavar="N",
        help="worker processes, if there is more than --unit-mib of text (default: all cores)",
    )  # fmt: skip
    group.add_argument(
        "--backend", default="processes", choices=("processes", "mpi"), help="(default: processes)"
    )
    group.add_argument(
        "--engine", default="auto", choices=("auto", "tokenizers", "gigatoken", "tokie"),
        help="what encodes; all give the ids of tokenizers (default: auto, the fastest)",
    )  # fmt: skip
    _input_changed_argument(group)
    group.add_argument(
        "--dry-run", action="store_true",
        help="write nothing; estimate documents, tokens, disk and hours from a sample",
    )  # fmt: skip


def _input_changed_argument(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input-changed", default="refuse", choices=("refuse", "accept"),
        help="a rerun on input of the same size, start and end, but another time of modification: "
        "accept goes on, where it was only touched or copied (default: refuse)",
    )  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m data_prep``."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep",
        description=DESCRIPTION,
        epilog=f"example:\n  {EXAMPLES['build']}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _build_arguments(_command(commands, "build", "make a dataset directory, or go on with one"))
    train = _command(commands, "tokenizer", "train a vocabulary on (a sample of) the input")
    _source_arguments(train)
    group = train.add_argument_group("vocabulary")
    group.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    group.add_argument(
        "--kind", default="bpe", choices=("bpe", "wordpiece"),
        help="byte-level BPE (default) or BERT's WordPiece",
    )  # fmt: skip
    group.add_argument("--vocab-size", type=_count, default=30522, metavar="N", help="(30522)")
    group.add_argument("--cased", action="store_true", help="wordpiece: keep capital letters")
    group.add_argument(
        "--sample-mib", type=int, default=256, metavar="N",
        help="MiB of text that are looked at, spread over the input (default: 256)",
    )  # fmt: skip
    _input_changed_argument(group)
    verify = _command(commands, "verify", "recompute hashes and check what must hold")
    verify.add_argument("dataset", help="dataset directory")
    inspect = _command(commands, "inspect", "print a summary, and documents as text")
    inspect.add_argument("dataset", help="dataset directory")
    inspect.add_argument("--documents", type=int, default=1, metavar="N", help="how many (1)")
    inspect.add_argument("--first", type=int, default=0, metavar="N", help="from this one on (0)")
    inspect.add_argument("--split", default="train", choices=("train", "validation"))
    merge = _command(commands, "merge", "join datasets made with one tokenizer")
    merge.add_argument("datasets", nargs="+", metavar="DATASET", help="dataset directories")
    merge.add_argument("--output", required=True, metavar="DIR", help="the new dataset directory")
    _command(commands, "sources", "list the kinds of input")
    return parser
