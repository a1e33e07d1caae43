"""Numba's njit, with its cache on disk where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from gpst.jit.cache import own_cache


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL.

    What it calls, and constants it uses, may come from files with compiled functions only: these
    are the ones that the cache is keyed by.

    Args:
        options: of numba.njit.
    """
    with own_cache() as cached:
        try:
            return numba.njit(cache=cached, nogil=True, **options)(function)
        except RuntimeError:  # a source that numba cannot find (in a .zip)
            return numba.njit(nogil=True, **options)(function)
