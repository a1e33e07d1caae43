"""The page of error messages: what the code can say, by families that docs/messages.yaml explains.

A message is a `SomeError(text)` in the three packages, with `...` for what is filled in. Each
message must belong to one family, and each family must have a message: a test checks both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ROOT / "docs" / "messages.yaml"
_NO_MESSAGES = ("AttributeError", "OSError", "IndexError", "BrokenStreamError", "SystemExit")
"""Raised for the interpreter or for other code, never shown."""
_MAKERS = ("fault", "_fault")


class Message(NamedTuple):
    """One thing that the code can say."""

    file: str
    error: str
    text: str
    """With `...` for each value."""


class Family(NamedTuple):
    """Messages with one meaning and one cure."""

    title: str
    matches: re.Pattern[str]
    meaning: str
    cure: str


def messages() -> list[Message]:
    """All messages, by file and line."""
    found = []
    for package in ("data_prep", "gpst", "pipeline"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            found += _messages_of(name, ast.parse(path.read_text(encoding="utf-8")))
    return list(dict.fromkeys(found))


def _messages_of(file: str, tree: ast.AST) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        error = getattr(node.func, "id", getattr(node.func, "attr", ""))
        # `self.fault(text)` makes an error that begins with the place.
        if (error.endswith("Error") and error not in _NO_MESSAGES) or error in _MAKERS:
            text = " ".join(_text(node.args[0]).split())
            if re.search("[a-z]", text):  # else it passes on what another message says
                yield Message(file, error, text)


def _text(node: ast.expr) -> str:
    """The constant parts of a string expression; `...` stands for the others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.IfExp):
        return _text(node.body)
    return "..."


def families() -> list[Family]:
    """What docs/messages.yaml says, in its order."""
    entries = yaml.safe_load(FAMILIES.read_text(encoding="utf-8"))
    return [
        Family(
            entry["title"], re.compile("|".join(entry["matches"])), entry["meaning"], entry["cure"]
        )
        for entry in entries
    ]


def family_of(message: Message, known: list[Family]) -> Family | None:
    """The first family whose pattern is found in "file: text"."""
    place = f"{message.file}: {message.text}"
    return next((family for family in known if family.matches.search(place)), None)


def page() -> str:
    """docs/reference/messages.md."""
    known = families()
    of: dict[str, list[Message]] = {family.title: [] for family in known}
    for message in messages():
        family = family_of(message, known)
        if family is not None:
            of[family.title].append(message)
    parts = [
        "# Error messages\n"
        "<!-- Written by `python docs/generate`; change docs/messages.yaml or the code. -->",
        "Every error is one line on standard error: the thing, its value, the cure. `...` stands "
        "for what is filled in. A traceback is a fault of this program: please report it.",
    ]
    for family in known:
        lines = "\n".join(f"{m.text}" for m in of[family.title])
        parts.append(
            f"## {family.title}\n\n**Meaning.** {family.meaning}\n\n**Cure.** {family.cure}\n\n"
            f"```text\n{lines}\n```"
        )
    return "\n\n".join(parts) + "\n"
