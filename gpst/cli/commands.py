"""The commands on exported models: parse, generate, surprisal. Results go to standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gpst.cli.arguments import (
    EXAMPLES,
    EXIT_DATA,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    beam_argument,
    command_parser,
    model_arguments,
    options_of,
    positive,
)
from gpst.config_reader import ConfigError
from gpst.export.errors import ModelFolderError

if TYPE_CHECKING:
    from gpst.export.huggingface import ModelFolder

Opener = Callable[[str], "ModelFolder"]
_CHUNK_LINES = 1024


class InputError(ValueError):
    """The text to work on cannot be used."""


class NoInputError(InputError):
    """There is no text to work on: no such file, or nothing in it."""


def _lines(path: str) -> Iterator[str]:
    """Sentences of a file (or of standard input, `-`), one a line; empty lines are left out."""
    try:
        with sys.stdin if path == "-" else open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if "\0" in line:
                    raise InputError(f"{path} is no text: line {number} holds a NUL character")
                if line.strip():
                    yield line.strip()
    except OSError as error:
        raise NoInputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from error


def _chunks(path: str) -> Iterator[list[str]]:
    lines = _lines(path)
    first = True
    while chunk := list(islice(lines, _CHUNK_LINES)):
        first = False
        yield chunk
    if first:
        raise NoInputError(f"{path} holds no sentence; give one a line")


def _progress(total: int, quiet: bool) -> Callable[[int], None]:
    """A bar on standard error when that is a terminal."""
    from tqdm import tqdm

    hidden = quiet or not sys.stderr.isatty()
    bar = tqdm(total=total, unit="sentence", disable=hidden, leave=False, file=sys.stderr)
    return lambda number: (bar.update(number), None)[1]


def parse_command(argv: Sequence[str], opener: Opener) -> None:
    """`python -m gpst parse`: trees of sentences."""
    parser = command_parser("parse", "Trees of sentences, one a line.")
    model_arguments(parser)
    parser.add_argument(
        "--method",
        choices=("inside", "left-to-right"),
        default="inside",
        help="the composition model's trees, which see the whole sentence, or the generator's",
    )
    beam_argument(parser)
    parser.add_argument(
        "--no-sync", action="store_true", help="compare hypotheses at equal numbers of actions"
    )
    formats = ("ascii", "bracket", "ptb", "json", "svg", "png")
    parser.add_argument("--format", choices=formats, default="ascii", help="of the trees (ascii)")
    parser.add_argument("file", nargs="?", default="-", help="text, or - for standard input")
    options = options_of(parser, argv)
    if options.format == "png" and sys.stdout.isatty():
        parser.error("a png picture is not for a terminal: write it to a file with >")
    from gpst.api import GPST
    from gpst.render import TEXT_FORMATS, as_png, as_svg, as_text

    model = GPST.from_pretrained(opener(options.model), options.device, options.dtype)
    pictured = []
    for chunk in _chunks(options.file):
        parsed = model.parse_all(
            chunk,
            options.method,
            beam=options.beam,
            sync=not options.no_sync,
            on_done=_progress(len(chunk), options.quiet),
        )
        if options.format in TEXT_FORMATS:
            between = "\n\n" if options.format == "ascii" else "\n"
            print(*(as_text(one, options.format) for one in parsed), sep=between, flush=True)
        else:
            pictured += parsed
    if options.format == "svg":
        print(as_svg(pictured))
    elif options.format == "png":
        sys.stdout.buffer.write(as_png(pictured))


def generate_command(argv: Sequence[str], opener: Opener) -> None:
    """`python -m gpst generate`: continuations with their trees."""
    parser = command_parser("generate", "Continues a text.")
    model_arguments(parser)
    parser.add_argument("--prompt", default="", help="text to continue, or - for standard input")
    parser.add_argument(
        "--max-new-tokens", type=positive, default=60, help="tokens written at most (60)"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="0.8; 0: the most probable")
    parser.add_argument(
        "--top-k", type=positive, default=40, help="draw from the k most probable tokens (40)"
    )
    parser.add_argument(
        "--top-p", type=float, help="draw from the likeliest tokens that hold this share, (0, 1]"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same text (0)")
    parser.add_argument("--samples", type=positive, default=1, help="continuations (1)")
    parser.add_argument("--search", action="store_true", help="beam search instead of sampling")
    parser.add_argument("--no-sync", action="store_true", help="action-level beam search")
    beam_argument(parser)
    parser.add_argument("--trees", action="store_true", help="show the trees of the text")
    options = options_of(parser, argv)
    from gpst.api import GPST
    from gpst.search.sampling import Sampling

    sampling = None
    if not options.search:
        try:
            sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
        except ValueError as error:
            parser.error(str(error))
    prompt = "\n".join(_lines("-")) if options.prompt == "-" else options.prompt
    model = GPST.from_pretrained(opener(options.model), options.device, options.dtype)
    streams = sampling is not None and options.samples == 1
    written = 0

    def show(text: str) -> None:
        nonlocal written
        print(prompt + text if written == 0 else text, end="", flush=True)
        written += 1

    generations = model.generate(
        prompt,
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        num_samples=options.samples,
        beam=options.beam,
        sync=not options.no_sync,
        on_text=show if streams else None,
    )
    for one in generations:
        print("" if written else prompt + one.text)
        if options.trees:
            print("", *(parsed.picture() for parsed in one.sentences), sep="\n\n")
        print()


def surprisal_command(argv: Sequence[str], opener: Opener) -> None:
    """`python -m gpst surprisal`: a table of words and their surprisals."""
    parser = command_parser("surprisal", "Surprisal of each word in bits, as tab-separated values.")
    model_arguments(parser)
    beam_argument(parser)
    parser.add_argument(
        "--document", action="store_true", help="lines follow each other in one context"
    )
    parser.add_argument("file", nargs="?", default="-", help="sentences, or - for standard input")
    options = options_of(parser, argv)
    from gpst.api import GPST

    model = GPST.from_pretrained(opener(options.model), options.device, options.dtype)
    before = 0
    for chunk in _chunks(options.file):
        groups = [chunk] if options.document else [[line] for line in chunk]
        progress = _progress(len(groups), options.quiet)
        results = model.surprisals(groups, beam=options.beam, on_done=progress)
        if before == 0:
            print("sentence\tposition\tword\tsurprisal_bits")
        for group in results:
            for sentence in group:
                before += 1
                for position, word in enumerate(sentence, 1):
                    print(before, position, word.word, f"{word.bits:.4f}", sep="\t")
        sys.stdout.flush()


COMMANDS = {
    "parse": parse_command,
    "generate": generate_command,
    "surprisal": surprisal_command,
}


def open_exported(path: str) -> ModelFolder:
    """The exported model in a folder."""
    from gpst.export.huggingface import open_model  # takes torch with it

    return open_model(path)


def main(argv: Sequence[str], opener: Opener = open_exported) -> int:
    """Runs a command; what the user can cure becomes one line on standard error.

    Args:
        opener: of what --model names.
    """
    if argv and argv[0] in ("-h", "--help"):
        print("usage: python -m gpst COMMAND ...; COMMAND --help says more\n\nexamples:")
        print("\n".join(f"  bash {example}" for example in EXAMPLES.values()))
        return 0
    if not argv or argv[0] not in COMMANDS:
        name = argv[0] if argv else "nothing"
        print(f"gpst: command {name!r}: known are {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        COMMANDS[argv[0]](argv[1:], opener)
        sys.stdout.flush()
    except (ModelFolderError, NoInputError, ConfigError) as error:
        return say(argv[0], error, EXIT_USAGE)
    except ValueError as error:
        return say(argv[0], error, EXIT_DATA)
    except KeyboardInterrupt:
        return say(argv[0], "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has seen enough (| head); Python must not write to the pipe when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def say(command: str, problem: object, code: int) -> int:
    """Tells a problem in one line; returns the exit code."""
    print(f"{command}: {' '.join(str(problem).split())}", file=sys.stderr, flush=True)
    return code
