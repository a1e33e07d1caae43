"""The commands on exported models: parse, generate, surprisal. Results go to standard output."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpst.cli.arguments import (
    EXAMPLES,
    EXIT_DATA,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    EXIT_USAGE,
    beam_argument,
    command_parser,
    lines_arguments,
    model_arguments,
    options_of,
    positive,
)
from gpst.cli.lines import BOM, InputError, Line, Lines, NoInputError, standard_input
from gpst.cli.process import CLOSED_OUTPUT, load_torch, loading
from gpst.cli.threads import use_threads
from gpst.config_reader import ConfigError
from gpst.export.errors import ModelFolderError
from gpst.memory import allocation_failure

if TYPE_CHECKING:
    from gpst.api import GPST, GeneratedText, ParsedSentence
    from gpst.export.huggingface import ModelFolder

Opener = Callable[[str], "ModelFolder"]
_CPU_LINES, _GPU_LINES = 32, 512
"""Worked on at once: more make batches cheaper, and results come later."""
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _progress(total: int | None, quiet: bool, unit: str) -> Any:
    """A bar on standard error when that is a terminal and the results go elsewhere."""
    from tqdm import tqdm

    hidden = quiet or not sys.stderr.isatty() or sys.stdout.isatty()
    return tqdm(total=total, unit=unit, disable=hidden, leave=False, file=sys.stderr)


def _for_chunks(
    model: GPST, options: argparse.Namespace, work: Callable[[Sequence[Line]], None]
) -> int:
    """Works on the lines of the file, chunk by chunk, and shows how far it is; the exit code."""
    on_cpu = model.device.type == "cpu"
    lines = Lines(options.file, model, _CPU_LINES if on_cpu else _GPU_LINES)
    if options.on_error == "skip":
        lines.on_unfit = lambda message: say(options.command, message, EXIT_DATA)
    with _progress(lines.count(), options.quiet, " lines") as bar:
        for chunk in lines.chunks():
            work(chunk)
            sys.stdout.flush()
            bar.update(len(chunk))
    return EXIT_DATA if lines.num_skipped else 0


def _model(options: argparse.Namespace, opener: Opener) -> GPST:
    """What --model names, on its device."""
    from gpst.api import GPST

    with loading(options.command):
        model = GPST.from_pretrained(opener(options.model), options.device, options.dtype)
    use_threads(model.model.config.hidden_dim, model.device)
    return model


def parse_command(argv: Sequence[str], opener: Opener) -> int:
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
    lines_arguments(parser)
    options = options_of(parser, argv)
    if options.format == "png" and sys.stdout.isatty():
        parser.error("a png picture is not for a terminal: write it to a file with >")
    load_torch("parse")
    from gpst.render import TEXT_FORMATS, as_png, as_svg, as_text

    model = _model(options, opener)
    pictured: list[ParsedSentence] = []
    first = True

    def work(chunk: Sequence[Line]) -> None:
        nonlocal first
        trees = iter(
            model.parse_all(
                [line.text for line in chunk if line.text],
                options.method,
                beam=options.beam,
                sync=not options.no_sync,
            )
        )
        if options.format not in TEXT_FORMATS:
            pictured.extend(trees)
            return
        for line in chunk:
            if line.text:
                if options.format == "ascii" and not first:
                    print()
                print(as_text(next(trees), options.format, line.number))
                first = False
            elif options.format in ("bracket", "ptb"):
                print()  # so that lines of input and output have the same numbers

    try:
        return _for_chunks(model, options, work)
    finally:  # what was done before an interruption is not lost
        if pictured and options.format == "svg":
            print(as_svg(pictured))
        elif pictured:
            sys.stdout.buffer.write(as_png(pictured))


def generate_command(argv: Sequence[str], opener: Opener) -> int:
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
    load_torch("generate")
    from gpst.search.sampling import Sampling

    sampling = []
    if not options.search:
        try:
            sampling = [
                Sampling(options.temperature, options.top_k, options.top_p, options.seed + number)
                for number in range(options.samples)
            ]
        except ValueError as error:
            parser.error(str(error))
    prompt = standard_input().read() if options.prompt == "-" else options.prompt
    if "\0" in prompt:
        raise InputError("the prompt is no text: it holds a NUL character")
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):  # as Python reads such bytes
        raise InputError("the prompt is not UTF-8 text")
    prompt = prompt.removeprefix(BOM).strip() if options.prompt == "-" else prompt
    model = _model(options, opener)

    def write(generation: GeneratedText) -> None:
        if options.trees:
            print("", *(parsed.picture() for parsed in generation.sentences), sep="\n\n")
        print(flush=True)
        limit = model.model.config.max_context_tokens
        if sum(len(parsed.words) for parsed in generation.sentences) >= limit:
            say("generate", f"the text ends where the model's context does, at {limit} tokens", 0)

    common = {"max_new_tokens": options.max_new_tokens, "beam": options.beam}
    common["sync"] = not options.no_sync
    if options.search:
        found = model.generate(prompt, num_samples=options.samples, **common)
        for one in found:
            print(prompt + one.text)
            write(one)
        if len(found) < options.samples:
            wanted = f"--samples {options.samples}: the search has found {len(found)}"
            say("generate", f"{wanted}; a larger --beam finds more", 0)
    with _progress(len(sampling), options.quiet, " texts") as bar:
        for of_sample in sampling:
            begin = prompt  # with the first piece: a prompt that is refused is not shown

            def show(text: str) -> None:
                nonlocal begin
                print(begin + text, end="", flush=True)
                begin = ""

            [one] = model.generate(prompt, sampling=of_sample, on_text=show, **common)
            print(begin)
            write(one)
            bar.update()
    return 0


def surprisal_command(argv: Sequence[str], opener: Opener) -> int:
    """`python -m gpst surprisal`: a table of words and their surprisals."""
    parser = command_parser("surprisal", "Surprisal of each word in bits, as tab-separated values.")
    model_arguments(parser)
    beam_argument(parser)
    parser.add_argument(
        "--document", action="store_true", help="lines follow each other in one context"
    )
    lines_arguments(parser)
    options = options_of(parser, argv)
    load_torch("surprisal")
    model = _model(options, opener)
    document: list[Line] = []
    first = True

    def work(chunk: Sequence[Line]) -> None:
        nonlocal first
        lines = [line for line in chunk if line.text]
        texts = [line.text for line in lines]
        groups = [texts] if options.document else [[text] for text in texts]
        results = model.surprisals(groups, beam=options.beam) if lines else []
        if first and results:
            print("sentence\tposition\tword\tsurprisal_bits")
            first = False
        sentences = [sentence for group in results for sentence in group]
        for line, sentence in zip(lines, sentences, strict=True):
            for position, word in enumerate(sentence, 1):
                print(line.number, position, word.word, f"{word.bits:.4f}", sep="\t")

    code = _for_chunks(model, options, document.extend if options.document else work)
    if document:
        work(document)
    return code


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
    if sys.stdout is None:
        return say(argv[0], CLOSED_OUTPUT, EXIT_USAGE)
    try:
        code = COMMANDS[argv[0]](argv[1:], opener)
        sys.stdout.flush()
        return code
    except (ModelFolderError, NoInputError, ConfigError) as error:
        return say(argv[0], error, EXIT_USAGE)
    except ValueError as error:
        return say(argv[0], error, EXIT_DATA)
    except KeyboardInterrupt:
        return say(argv[0], "interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in _UNWRITTEN:
            raise
        # Python must not write what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0  # the reader has seen enough (| head)
        return say(argv[0], f"cannot write the output: {error.strerror}", EXIT_OUTPUT)
    except (RuntimeError, MemoryError) as error:
        if (failure := allocation_failure(error)) is None:
            raise
        return say(argv[0], f"{failure}; a smaller --beam or shorter lines take less", EXIT_DATA)


def say(command: str, problem: object, code: int) -> int:
    """Tells a problem in one line; returns the exit code."""
    print(f"{command}: {' '.join(str(problem).split())}", file=sys.stderr, flush=True)
    return code
