"""Sources of documents by name, and the files that an ``--input`` stands for."""

from __future__ import annotations

import glob
import heapq
import importlib
import os
from collections.abc import Iterable
from itertools import chain, groupby

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, Source
from data_prep.sources.listing import FileList, Walk, facts_of_all, files_below, input_file

_SOURCES = {
    "hf": ("data_prep.sources.huggingface", "HuggingFaceSource"),
    "jsonl": ("data_prep.sources.jsonl", "JsonLinesSource"),
    "openwebtext": ("data_prep.sources.openwebtext", "OpenWebTextSource"),
    "parquet": ("data_prep.sources.parquet", "ParquetSource"),
    "treebank": ("data_prep.sources.treebank", "TreebankSource"),
    "wikitext": ("data_prep.sources.wikitext", "WikiTextSource"),
    "text": ("data_prep.sources.text", "TextSource"),
}
NAMES = tuple(sorted(_SOURCES))


def get_source(name: str) -> Source:
    """The source of a name. Raises UsageError for an unknown one."""
    if name not in _SOURCES:
        raise UsageError(f"source {name!r} does not exist; choose from {', '.join(NAMES)}")
    module, attribute = _SOURCES[name]
    return getattr(importlib.import_module(module), attribute)()


def find_input(
    source: Source, inputs: Iterable[str], output: str | os.PathLike[str] | None = None
) -> FileList:
    """The files of an ``--input`` for a source; sources that take names get them as they are.

    output: a folder whose files are excluded.
    """
    inputs, walk = list(inputs), Walk(output)
    if not getattr(source, "takes_names", False):
        return find_files(inputs, source.suffixes, walk)
    folders = []
    for name in inputs:
        files = files_below(name, (), walk) if os.path.exists(name) else ()
        folders.append(facts_of_all(name, files))
    return FileList(folders)


def find_files(
    inputs: Iterable[str], suffixes: tuple[str, ...], walk: Walk | None = None
) -> FileList:
    """The files of paths, folders (searched to the bottom) and glob patterns, sorted by path.

    Sorted, so that the result does not depend on the file system; each file once. Raises UsageError
    when a path does not exist, a folder or pattern has no matching file, or all files are empty.
    """
    walk = walk or Walk()
    listings = []
    for path in inputs:
        matches = [path] if os.path.exists(path) else _matches(path, walk)
        if not matches:
            raise UsageError(f"input {path} does not exist")
        folders = [files_below(match, suffixes, walk) for match in matches if os.path.isdir(match)]
        plain = (input_file(match) for match in matches if not os.path.isdir(match))
        files = heapq.merge(plain, *folders, key=_path)
        first = next(files, None)
        if first is None:
            raise UsageError(f"input {path} holds no file that ends in {' '.join(suffixes)}")
        listings.append(chain([first], files))
    merged = groupby(heapq.merge(*listings, key=_path), key=_path)
    listed = FileList((next(same) for _, same in merged), walk).once()
    if not listed.num_bytes:
        names = next(iter(listed)).path if len(listed) == 1 else f"all {len(listed)} files"
        raise UsageError(f"input is empty: {names} of 0 bytes")
    return listed


def _matches(pattern: str, walk: Walk) -> list[str]:
    matches = glob.glob(pattern, recursive=True)
    return sorted(match for match in matches if not walk.is_in_output(match))


def _path(file: InputFile) -> str:
    return file.path
