"""The options of sources: each is one field here, and an argument of the command line.

Imports nothing heavy, so that --help is fast.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from data_prep.errors import UsageError
from data_prep.text.encodings import AUTO, known_encoding


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class SourceOptions:
    """Options of all sources; each source reads those that concern it.

    Raises UsageError for an encoding that Python does not know.
    """

    text_field: str = _option("text", "field of the text (default: text)")
    split_blank_lines: bool = _option(False, "text: blank lines separate documents")
    detokenize: bool = _option(False, "wikitext: undo ' @-@ ' and spaced punctuation")
    encoding: str = _option(
        AUTO, "of text files that are not UTF-8, as cp1252 or utf-16 (default: auto, detected)"
    )
    hf_split: str = _option("train", "hf: (default: train)")
    hf_config: str | None = _option(None, "hf: configuration of the dataset")

    def __post_init__(self) -> None:
        known = known_encoding(self.encoding)
        if known is None:
            raise UsageError(
                f"--encoding {self.encoding!r} is not known; auto, or as cp1252, koi8-r, utf-16"
            )
        object.__setattr__(self, "encoding", known)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> SourceOptions:
        """The options of a parsed command line."""
        return cls(**{option.name: getattr(arguments, option.name) for option in fields(cls)})

    def identity(self) -> dict[str, Any]:
        """The options by name. ``encoding`` came later: its default is left out, as before it."""
        values = asdict(self)
        if self.encoding == AUTO:
            del values["encoding"]
        return values


def add_options(group: argparse._ArgumentGroup) -> None:
    """An argument of the command line for every option."""
    for option in fields(SourceOptions):
        form: dict[str, Any] = (
            {"action": "store_true"} if option.default is False else {"metavar": "NAME"}
        )
        flag = "--" + option.name.replace("_", "-")
        group.add_argument(flag, default=option.default, help=option.metadata["help"], **form)
