"""Numba's njit, with its cache on disk where one can be written; also for data_prep.

Imports nothing of gpst but its cache, and no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

from gpst.jit.cache import own_cache


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL.

    What it calls, and constants it uses, may come from files of its package with compiled
    functions only: these are the ones that the cache is keyed by.

    Args:
        options: of numba.njit.
    """
    with own_cache(_package_of(function)) as cached:
        try:
            return numba.njit(cache=cached, nogil=True, **options)(function)
        except RuntimeError:  # a source that numba cannot find (in a .zip)
            return numba.njit(nogil=True, **options)(function)


def compiled_uncounted(function: Callable[..., Any]) -> Any:
    """``compiled`` for a function that makes no array, without numba's counting of references.

    A small function that is called for every word spends more time on the counts of the arrays
    that it gets than on its work.
    """
    return compiled(function, _nrt=False)


def _package_of(function: Callable[..., Any]) -> Path:
    """The folder of the function's top package: gpst, data_prep, pipeline; of a wheel all gpst."""
    package = sys.modules[function.__module__.partition(".")[0]]
    return Path(package.__path__[0]).resolve()


def without_extensions() -> None:
    """Keep numba from loading what other packages extend it with, in a process of our own.

    Where awkward is installed its extension takes 0.2 s and 50 MiB at the first compiled call.
    """
    with suppress(ImportError):
        from numba.core import entrypoints

        entrypoints._already_initialized = True
