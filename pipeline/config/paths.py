"""Paths in configurations: `~` and `$HOME` mean in a file what they mean to a shell."""

import os
import re
from typing import Annotated

from pydantic import AfterValidator


def expand(path: str) -> str:
    """The path with a leading `~` and all `$NAME` and `${NAME}` replaced.

    Raises:
        ValueError: a variable is not set, or nobody has that name.
    """
    expanded = os.path.expandvars(path)
    unset = re.search(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))", expanded)
    if unset:
        name = unset[1] or unset[2]
        raise ValueError(f"{path!r} names the variable {name}, which is not set: set it")
    home = os.path.expanduser(expanded)
    if home.startswith("~"):
        raise ValueError(f"{path!r}: nobody is called {home.split('/')[0]}; write ./~ for a name")
    return home


PathText = Annotated[str, AfterValidator(expand)]
"""A field that is a path."""
