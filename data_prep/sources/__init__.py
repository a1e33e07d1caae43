"""Sources of documents by name, and the files that an ``--input`` stands for."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterable
from pathlib import Path

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, Source

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


def find_input(source: Source, inputs: Iterable[str]) -> list[InputFile]:
    """The files of an ``--input`` for a source; sources that take names get them as they are."""
    inputs = list(inputs)
    if not getattr(source, "takes_names", False):
        return find_files(inputs, source.suffixes)
    found = []
    for name in inputs:
        files = _files_below(name, ()) if os.path.exists(name) else []
        found.append(InputFile(name, sum(file.num_bytes for file in files)))
    return found


def find_files(inputs: Iterable[str], suffixes: tuple[str, ...]) -> list[InputFile]:
    """The files of paths, folders (searched to the bottom) and glob patterns, sorted by path.

    Sorted, so that the result does not depend on the file system. Raises UsageError when something
    is not there, a folder or pattern holds no fitting file, or all files are empty.
    """
    found: dict[str, InputFile] = {}
    for given in inputs:
        matches = [given] if os.path.exists(given) else sorted(glob.glob(given, recursive=True))
        if not matches:
            raise UsageError(f"input {given} does not exist")
        files = [file for match in matches for file in _files_below(match, suffixes)]
        if not files:
            raise UsageError(f"input {given} holds no file that ends in {' '.join(suffixes)}")
        found.update((file.path, file) for file in files)
    listed = [found[path] for path in sorted(found)]
    if not any(file.num_bytes for file in listed):
        names = listed[0].path if len(listed) == 1 else f"all {len(listed)} files"
        raise UsageError(f"input is empty: {names} of 0 bytes")
    return listed


def _files_below(path: str, suffixes: tuple[str, ...]) -> list[InputFile]:
    if not os.path.isdir(path):
        return [_input_file(path)]
    return [
        _input_file(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
        if name.endswith(suffixes) or not suffixes
    ]


def _input_file(path: str) -> InputFile:
    try:
        with open(path, "rb"):
            return InputFile(path, Path(path).stat().st_size)
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None
