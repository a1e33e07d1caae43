"""Which part of a model an operation belongs to, and which line called it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_HOME = str(Path(__file__).resolve().parents[2] / "gpst") + "/"
_PARTS = {
    "chart/decode.py": "decode",
    "chart/inside.py": "inside",
    "chart/outside.py": "outside",
    "model/losses.py": "losses",
    "model/statistics.py": "statistics",
    "model/parser.py": "parser",
    "model/generator.py": "generator",
    "model/gpt2.py": "generator",
    "model/gpst.py": "the rest",
}
"""The innermost of these files on the stack says which part it is."""
_LIKELIHOOD = ("split_loss", "_SplitLikelihood")


class Place(NamedTuple):
    """Where an operation comes from."""

    part: str
    line: str
    """file:line of the innermost line of ours."""
    known: bool
    """False in a backward pass that is none of ours: the forward operation says."""


def place_of() -> Place:
    """Of the operation that is under way."""
    frame: FrameType | None = sys._getframe(1)
    line = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_HOME):
            path = code.co_filename[len(_HOME) :]
            line = line or f"gpst/{path}:{frame.f_lineno}"
            part = _PARTS.get(path)
            if path == "chart/fused_passes.py":
                part = "inside" if code.co_qualname.startswith("FusedInside") else "outside"
            if part == "parser" and code.co_qualname.startswith(_LIKELIHOOD):
                part = "parser loss"
            if part is not None:
                return Place(part, line, True)
        frame = frame.f_back
    return Place("the rest", line or "PyTorch", False)
