"""``compiled``: numba's njit, with an on-disk cache where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL."""
    try:
        return numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    except RuntimeError:  # no folder that the cache could be written to
        return numba.njit(nogil=True, boundscheck=False)(function)
