"""``compiled``: numba's njit, with an on-disk cache where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba

from data_prep.compile_cache import own_cache


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL.

    What it calls, and constants it uses, may come from files with compiled functions only: these
    are the ones that the cache is keyed by.
    """
    with own_cache() as cached:
        try:
            return numba.njit(cache=cached, nogil=True, boundscheck=False)(function)
        except RuntimeError:  # a source that numba cannot find (in a .zip)
            return numba.njit(nogil=True, boundscheck=False)(function)


def without_extensions() -> None:
    """Keep numba from loading what other packages extend it with, in a process of our own.

    Where awkward is installed its extension takes 0.2 s and 50 MiB at the first compiled call.
    """
    with suppress(ImportError):
        from numba.core import entrypoints

        entrypoints._already_initialized = True
