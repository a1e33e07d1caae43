"""Options that the commands on exported models share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

EXIT_OUTPUT, EXIT_USAGE, EXIT_DATA, EXIT_INTERRUPTED = 1, 2, 3, 130
EXAMPLES = {
    "parse": "launch/parse.sh --model runs/demo/exported --format svg sentences.txt > trees.svg",
    "generate": 'launch/generate.sh --model runs/demo/exported --prompt "We must" --trees',
    "surprisal": "launch/surprisal.sh --model runs/demo/exported sentences.txt > bits.tsv",
}
_MODEL_HELP = (
    "exported by launch/convert.sh to-hf (needed); launch/ and gpst-* take a run or checkpoint, too"
)
_EXIT_CODES = (
    "exit codes: 0 done, 1 the output cannot be written, 2 wrong usage or model folder, "
    "3 unfit text, 130 interrupted"
)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with the exit code of a wrong usage."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see --help)\n")


def command_parser(name: str, summary: str) -> Parser:
    """With an example and the exit codes."""
    parser = Parser(
        name,
        description=summary,
        epilog=f"example:\n  bash {EXAMPLES[name]}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    return parser


def model_argument(parser: argparse.ArgumentParser) -> None:
    """--model and --device."""
    parser.add_argument("--model", help=_MODEL_HELP)
    parser.add_argument(
        "--device", type=_device, help="cpu or cuda; by default a GPU when there is one"
    )


def options_of(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options; a missing --model is a wrong usage."""
    options = parser.parse_args(argv)
    if not options.model:
        parser.error("--model is missing: name a folder that launch/convert.sh to-hf has made")
    return options


def _device(text: str) -> str:
    from gpst.model.device import usable_device

    try:
        return str(usable_device(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --device, --dtype and --quiet."""
    model_argument(parser)
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="of matrix products (fp32)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def beam_argument(parser: argparse.ArgumentParser) -> None:
    """--beam."""
    parser.add_argument("--beam", type=positive, default=20, help="hypotheses kept (20)")


def lines_arguments(parser: argparse.ArgumentParser) -> None:
    """--on-error and the file."""
    parser.add_argument(
        "--on-error",
        choices=("skip", "stop"),
        default="skip",
        help="at a line that is too long: name it and go on, exit code 3 at the end (skip)",
    )
    parser.add_argument("file", nargs="?", default="-", help="text, or - for standard input")


def positive(text: str) -> int:
    """An option's number."""
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value
