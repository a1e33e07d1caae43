"""Numba's njit, with its cache on disk where one can be written; also for data_prep.

numba is imported when the first function is called: that takes longer than a short sentence.
Imports nothing of gpst but its cache, and no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

from gpst.jit.cache import own_cache

_LOCK = RLock()
_uncompiled: list[Compiled] = []


class Compiled:
    """A function that is machine code from its first call on; numba's dispatcher in all else."""

    interpreted = False
    """Whether functions run as they are, see `interpreted`."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        self.function, self._options = function, options
        self._dispatcher: Any = None
        _uncompiled.append(self)

    @property
    def dispatcher(self) -> Any:
        """numba's; it takes the places of this object and of those of all other functions."""
        with _LOCK:
            if self._dispatcher is None:
                functions = _uncompiled[:]
                for each in functions:
                    each._dispatcher = each._make()
                for each in functions:
                    each._put_in_place()
                del _uncompiled[: len(functions)]
        return self._dispatcher

    def _make(self) -> Any:
        import numba

        with own_cache(_package_of(self.function)) as cached:
            try:
                return numba.njit(cache=cached, nogil=True, **self._options)(self.function)
            except RuntimeError:  # a source that numba cannot find (in a .zip)
                return numba.njit(nogil=True, **self._options)(self.function)

    def _put_in_place(self) -> None:
        """What the function calls is what numba can compile."""
        names = self.function.__globals__
        names |= {n: v._dispatcher for n, v in names.items() if isinstance(v, Compiled)}
        for cell in self.function.__closure__ or ():
            if isinstance(cell.cell_contents, Compiled):
                cell.cell_contents = cell.cell_contents._dispatcher

    def __call__(self, *arguments: Any) -> Any:
        called = self.function if Compiled.interpreted else self.dispatcher
        return called(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of numpy arrays and numbers to machine code; it releases the GIL.

    What it calls, and constants it uses, may come from files of its package with compiled
    functions only: these are the ones that the cache is keyed by.

    Args:
        options: of numba.njit.
    """
    return Compiled(function, options)


@contextmanager
def interpreted(wanted: bool) -> Iterator[None]:
    """Inside, functions run as Python if that is wanted and numba has not been imported."""
    Compiled.interpreted = wanted and "numba" not in sys.modules
    try:
        yield
    finally:
        Compiled.interpreted = False


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
