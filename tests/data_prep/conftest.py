"""Small corpora and tokenizers that the tests of data_prep make for themselves."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from data_prep.__main__ import main
from data_prep.sources.base import read_parts
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import find_input, get_source
from data_prep.text.batch import Recorder
from data_prep.text.decode import clean_documents
from data_prep.tokenizer.train import train_tokenizer

SAMPLE = (
    "Dr. Smith went to Washington. He didn't stay long!\n\nIt cost $3.50, i.e. little. "
    "“Really?” she asked. The U.S. economy grew… Then it fell.\n"
)


@pytest.fixture(scope="session")
def bpe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small byte-level BPE tokenizer."""
    folder = tmp_path_factory.mktemp("bpe")
    text = train_tokenizer(lambda: [SAMPLE] * 3, kind="bpe", vocab_size=320)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def wordpiece_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small WordPiece tokenizer."""
    folder = tmp_path_factory.mktemp("wordpiece")
    text = train_tokenizer(lambda: [SAMPLE] * 3, kind="wordpiece", vocab_size=120)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of text files, jsonl beside it with the same documents."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    documents = [f"Document {n}. {SAMPLE * (n % 3 + 1)} It ends here: {n * 17}." for n in range(12)]
    for number, document in enumerate(documents):
        (folder / f"{number:02d}.txt").write_text(document, encoding="utf-8")
    lines = [json.dumps({"text": document, "id": n}) for n, document in enumerate(documents)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run ``python -m data_prep`` in this process: (exit code, standard output, error).

    Also its builds, unless they ask for workers: a process takes seconds to start.
    """

    def run_main(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        if arguments[0] == "build" and "--workers" not in arguments:
            arguments = (*arguments, "--workers", 1)
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_main


@pytest.fixture(scope="session")
def build_command() -> Callable[..., list[str]]:
    """``data_prep build`` of text files, for a process of its own; ``more`` are further options."""

    def arguments(text: Path, tokenizer: Path, output: Path, workers: int, *more: str) -> list[str]:
        return [
            sys.executable, "-m", "data_prep", "build", "--source", "text", "--input", str(text),
            "--tokenizer", str(tokenizer), "--output", str(output), "--workers", str(workers),
            *more,
        ]  # fmt: skip

    return arguments


@pytest.fixture
def build_closed(
    corpus: Path, bpe_path: Path, tmp_path: Path, build_command: Callable[..., list[str]]
) -> Callable[[], tuple[int, str, str]]:
    """Build the corpus as somebody for whom file modes count: root reads everything otherwise."""

    def run_build() -> tuple[int, str, str]:
        rights = "--bounding-set=-dac_override,-dac_read_search"
        found = subprocess.run(
            [*(("setpriv", rights) if os.geteuid() == 0 else ()),
             *build_command(corpus, bpe_path, tmp_path / "out", 1)],
            capture_output=True, text=True,
        )  # fmt: skip
        return found.returncode, found.stdout, found.stderr

    return run_build


@pytest.fixture(scope="session")
def start_build() -> Callable[[Sequence[str], Path], subprocess.Popen[bytes]]:
    """Start a build and come back when one more unit is done, or it has ended."""

    def start(command: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        units = output / ".work" / "units"
        before = len(list(units.glob("*.done")))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 600
        while process.poll() is None and len(list(units.glob("*.done"))) == before:
            if time.monotonic() > limit:
                process.kill()
                raise AssertionError("no unit was done in ten minutes")
            time.sleep(0.002)
        return process

    return start


@pytest.fixture(scope="session")
def workers_of() -> Callable[[subprocess.Popen[bytes]], list[psutil.Process]]:
    """The worker processes of a build."""

    def found(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    return found


@pytest.fixture(scope="session")
def same_files() -> Callable[[Path, Path], bool]:
    """Whether two folders hold the same files with the same bytes."""

    def compare(one: Path, other: Path) -> bool:
        names = sorted(p.relative_to(one).as_posix() for p in one.rglob("*") if p.is_file())
        others = sorted(p.relative_to(other).as_posix() for p in other.rglob("*") if p.is_file())
        return names == others and not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])

    return compare


@pytest.fixture(scope="session")
def read() -> Callable[..., tuple[list[str], Recorder]]:
    """Read inputs as a source: (documents as it gives them, recorder)."""

    def read_all(name: str, inputs: list[Path], **options: object) -> tuple[list[str], Recorder]:
        source, recorder = get_source(name), Recorder()
        values = SourceOptions(**options)
        files = find_input(source, [str(path) for path in inputs])
        documents = []
        for raw in read_parts(source, source.parts(files, values), values, recorder):
            batch, _ = clean_documents(raw, values.encoding, recorder)
            assert len(batch.places) == len(batch.starts) == len(batch.ends)
            for start, end in zip(batch.starts.tolist(), batch.ends.tolist(), strict=True):
                documents.append(batch.data[start:end].tobytes().decode("utf-8", "replace"))
        return documents, recorder

    return read_all
