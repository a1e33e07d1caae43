"""How long a training step takes on an A100 and on an H100, and what it launches: without a GPU.

    python benchmarks/gpu_forecast.py --config configs/model/gpst_small.yaml --contexts 8

The real code goes through a micro-batch, forward and backward, on tensors without storage that
claim to be on a GPU (benchmarks/forecast). Beside GPST stands the GPT-2 of its size, whose GELU is
one kernel and whose attention is fused; a GPT-2's own configuration is forecast alone. How to read
it: docs/gpu_forecast.md. Prints a table by part and one JSON line.

Exit codes: 0 done, 1 the output cannot be written, 2 wrong usage or configuration, 3 the
measurement does not fit into memory, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable

from gpst.cli.arguments import EXIT_DATA, EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_USAGE, Parser
from gpst.config_reader import ConfigError

_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LARGEST = 2**30
"""Beyond any vocabulary or batch."""


def _whole(least: int) -> Callable[[str], int]:
    """Reads a whole number of at least `least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= _LARGEST:
            allowed = f"a whole number in [{least}, {_LARGEST}]"
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be {allowed}")
        return value

    return read


def command_parser() -> Parser:
    """The options; a mistake in them is one line and exit code 2."""
    parser = Parser(
        "gpu_forecast", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", default="configs/model/gpst_small.yaml", help="a model's: GPST or GPT-2"
    )
    parser.add_argument("--contexts", type=_whole(1), default=8)
    parser.add_argument("--vocab-size", type=_whole(2), default=30522)
    parser.add_argument("--trees", choices=["random", "right-branching"], default="random")
    parser.add_argument("--recompute", nargs="*", default=[], choices=["composition", "generator"])
    parser.add_argument("--top", type=_whole(0), default=0, help="lines of code that take longest")
    parser.add_argument("--measure", choices=["cuda", "cpu"], help="measure a step beside it")
    return parser


def run(args: argparse.Namespace) -> None:
    """Forecasts; what cannot be done is refused before."""
    from forecast.report import read_model_config, report

    from gpst.model.device import usable_device

    if args.measure:
        try:
            usable_device(args.measure)
        except ValueError as error:
            raise ConfigError(f"--measure {args.measure}: {error}") from None
    report(read_model_config(args.config, args.vocab_size), args)
    sys.stdout.flush()


def _refused(error: Exception) -> int:
    """The exit code of an error that the user can cure, told in one line; raises any other."""
    from gpst.cli.commands import say
    from gpst.memory import allocation_failure

    if isinstance(error, ConfigError):
        return say("gpu_forecast", error, EXIT_USAGE)
    if (failure := allocation_failure(error)) is None:
        raise error
    return say("gpu_forecast", f"{failure}; fewer --contexts take less", EXIT_DATA)


def _unwritten(error: OSError) -> int:
    # Python must not write what is left when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0  # the reader has seen enough (| head)
    print(f"gpu_forecast: cannot write the output: {error.strerror}", file=sys.stderr)
    return EXIT_OUTPUT


def main() -> int:
    """Runs the command; its exit code."""
    try:
        run(command_parser().parse_args())
        return 0
    except KeyboardInterrupt:
        print("gpu_forecast: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in _UNWRITTEN:
            raise
        return _unwritten(error)
    except (ConfigError, RuntimeError, MemoryError) as error:
        return _refused(error)


if __name__ == "__main__":
    sys.exit(main())
