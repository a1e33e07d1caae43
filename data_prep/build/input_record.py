"""What the input of a build was, file by file, so that a later change of it is found and named.

``input.jsonl.gz`` in a dataset (and in the work folder of an unfinished one), and beside a trained
vocabulary, has a line a file: its path, size in bytes, time of modification in ns, and a hash of
its first and last 4 KiB. No file is read whole: an edit in the middle that keeps the size shows in
the time only.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from data_prep.errors import UsageError
from data_prep.files import write_atomically
from data_prep.sources.base import InputFile

NAME = "input.jsonl.gz"
ACCEPTED = "input_accepted.jsonl.gz"
"""The input with the times that ``--input-changed accept`` took, so that it is asked for once."""


@dataclass
class Change:
    """How an input differs from what it was."""

    count: int = 0
    """Files that differ."""
    first: str = ""
    """The first of them that says more than a time, and its difference, in words."""
    times_only: bool = True
    """All of them have the size, start and end that they had."""
    gone: InputFile | None = None
    new: InputFile | None = None
    """The first that was there and is not, and the first that was not."""

    def add(self, path: str, difference: str, time_only: bool = False) -> None:
        """One more file."""
        if not self.first or (self.times_only and not time_only):
            self.first = f"{path} {difference}"
        self.times_only &= time_only
        self.count += 1

    @property
    def renamed(self) -> str:
        """In words, that a file has another path than before: it moved, or is named otherwise."""
        if self.gone is None or self.new is None or self.gone[1:4] != self.new[1:4]:
            return ""
        return f"{self.gone.path} is {self.new.path} now"

    def __str__(self) -> str:
        if self.renamed:
            return self.renamed
        return self.first + (f" (and {self.count - 1} more)" if self.count > 1 else "")


def write_record(folder: Path, files: Iterable[InputFile], name: str = NAME) -> None:
    """Writes the record; the same bytes for the same facts."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 1, buffer, mtime=0) as packed,
        io.BufferedWriter(packed, 1 << 16) as lines,  # a corpus may be millions of files
    ):
        for path, num_bytes, modified_ns, ends, _ in files:
            lines.write(json.dumps([path, num_bytes, modified_ns, ends.hex()]).encode() + b"\n")
    write_atomically(folder / name, buffer.getvalue())


def _read_record(record: Path) -> Iterator[InputFile]:
    try:
        with gzip.open(record, "rt", encoding="utf-8") as lines:
            for line in lines:
                path, num_bytes, modified_ns, ends = json.loads(line)
                yield InputFile(path, num_bytes, modified_ns, bytes.fromhex(ends))
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{record} cannot be read ({error}); choose another output") from None


def change_since(record: Path, files: Iterable[InputFile]) -> Change | None:
    """How the files differ from those of a record, path by path; None when they do not."""
    change = Change()
    old, new = _read_record(record), iter(files)
    was, now = next(old, None), next(new, None)
    while was or now:
        if now is None or (was is not None and was.path < now.path):
            assert was is not None
            change.gone = change.gone or was
            change.add(was.path, "was in it and is not now")
            was = next(old, None)
        elif was is None or now.path < was.path:
            change.new = change.new or now
            change.add(now.path, "was not in it")
            now = next(new, None)
        else:
            _compare(was, now, change)
            was, now = next(old, None), next(new, None)
    return change if change.count else None


def check_unchanged(
    output: Path, folder: Path, files: Iterable[InputFile], accept_times: bool
) -> None:
    """Holds the input of a rerun against the record in a folder.

    accept_times: input whose times of modification alone have changed is what it was, from now on.

    Raises UsageError that names the first difference.
    """
    if not (folder / NAME).exists():
        print(
            f"warning: {output} has no {NAME} (it is of an earlier version): whether a "
            "file of the input has changed and kept its size is not known",
            file=sys.stderr,
        )
        return
    change = change_since(folder / NAME, files)
    if change is None or (change.times_only and _accepted(output, files, accept_times)):
        return
    cure = "choose another output, or remove it"
    if change.renamed:
        cure = f"name it as before, {cure}"
    if change.times_only:
        cure = f"if its text is the same, add --input-changed accept, else {cure}"
    raise UsageError(f"output {output} was built from other input: {change}; {cure}")


def _accepted(output: Path, files: Iterable[InputFile], now: bool) -> bool:
    """Whether these times are taken, now or before."""
    if not now:
        record = output / ACCEPTED
        return record.exists() and change_since(record, files) is None
    try:
        write_record(output, files, ACCEPTED)
    except OSError as error:
        print(
            f"warning: {output / ACCEPTED} cannot be written ({error.strerror}): give "
            "--input-changed accept the next time, too",
            file=sys.stderr,
        )
    return True


def _compare(was: InputFile, now: InputFile, change: Change) -> None:
    if was.num_bytes != now.num_bytes:
        change.add(now.path, f"had {was.num_bytes} bytes and has {now.num_bytes}")
    elif was.ends != now.ends:
        change.add(now.path, f"has other contents of the same {now.num_bytes} bytes")
    elif was.modified_ns != now.modified_ns:
        then, at = (
            datetime.fromtimestamp(ns / 1e9).isoformat(" ", "milliseconds")
            for ns in (was.modified_ns, now.modified_ns)
        )
        change.add(
            now.path, f"was modified at {at}, last at {then} before, its size is the same", True
        )
