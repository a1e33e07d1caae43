"""What Python, numpy and torch say when memory runs out, in one line."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(?:allocate|allocating) ([\d.]+) ?(bytes|[KMGTPE]i?B)?", re.IGNORECASE)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def allocation_failure(error: BaseException) -> str | None:
    """ "out of memory: 2.0 GiB asked for on a GPU"; None for any other error."""
    text = str(error)
    # torch is not imported for it: an error of torch's is a RuntimeError that says so.
    of_torch = isinstance(error, RuntimeError) and (
        "out of memory" in text.lower()
        or "can't allocate memory" in text
        or "_STATUS_ALLOC_FAILED" in text
    )
    if not (of_torch or isinstance(error, MemoryError)):
        return None
    where = "this machine" if isinstance(error, MemoryError) or "CPU" in text else "a GPU"
    if found := _SIZE.search(text):
        return f"out of memory: {_in_words(*found.groups())} asked for on {where}"
    return f"out of memory on {where}"


def _in_words(number: str, unit: str | None) -> str:
    if unit not in (None, "bytes"):
        return f"{number} {unit}"
    value, step = float(number), 0
    while value >= 1024 and step + 1 < len(_UNITS):
        value, step = value / 1024, step + 1
    return f"{value:.1f} {_UNITS[step]}" if step else f"{number} bytes"
