"""Numba's njit, with its cache on disk where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL.

    Args:
        options: of numba.njit.
    """
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor one below the home can be written
        return njit(nogil=True, **options)(function)
