"""The C library's heap of a process."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h


def give_back_memory() -> None:
    """What loading left behind in the C library's heap, and from now on large arrays when freed.

    Each is some tens of MiB with GPT-2's vocabulary. A batch's own arrays stay in the heap: fresh
    pages for each would cost a tenth of the time. C libraries other than glibc are left alone.
    """
    gc.collect()
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        library.mallopt(_M_MMAP_THRESHOLD, 8 << 20)
