"""Arrays in files that are read range by range, never mapped.

What is mapped and then cut short (a copy that goes on, a full disk, a careless tool) ends a process
with a bus error. A read that ends early is an error with the file's name and both sizes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DatasetError

_OPEN = 128
"""Files held open at a time: a corpus may have thousands of shards."""
_BLOCK = 1 << 16
"""Elements read at a time for an iteration, or for indices that lie close together."""


class _Descriptor:
    """An open file; closed when nobody reads from it any more."""

    def __init__(self, path: Path):
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class StoredArray:
    """A one-dimensional array in a file; indexing it reads elements into a numpy array.

    Args:
        offset: bytes before the first element.
        count: elements.
        cure: of a file that can no longer be read, for the message.
    """

    def __init__(self, path: Path, dtype: Any, offset: int, count: int, cure: str):
        self.path, self.dtype, self.size = path, np.dtype(dtype), count
        self._offset, self._cure = offset, cure

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        """An element, a range (step 1), or the elements of rising indices."""
        if isinstance(key, slice):
            start, stop, step = key.indices(self.size)
            if step != 1:
                raise IndexError(f"{self.path}: ranges have step 1, not {step}")
            return self._read(start, max(start, stop))
        if isinstance(key, np.ndarray):
            return self._gather(key)
        index = int(key)
        if not -self.size <= index < self.size:
            raise IndexError(f"{self.path}: element {index} of {self.size}")
        return self._read(index % self.size, index % self.size + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All of it, a piece at a time."""
        for start in range(0, self.size, _BLOCK):
            yield self[start : start + _BLOCK]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self._read(0, self.size)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def _gather(self, indices: NDArray[Any]) -> NDArray[Any]:
        values = np.empty(len(indices), self.dtype)
        done = 0
        while done < len(indices):
            first = int(indices[done])
            end = max(int(np.searchsorted(indices, first + _BLOCK)), done + 1)
            near = indices[done:end].astype(np.int64)
            values[done:end] = self._read(first, int(near[-1]) + 1)[near - first]
            done = end
        return values

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        values = np.empty(stop - start, self.dtype)
        left = values.view(np.uint8).data
        place = self._offset + start * self.dtype.itemsize
        try:
            descriptor = _descriptor(self)
            while left:
                num_read = os.preadv(descriptor.number, [left], place)
                if not num_read:
                    raise self._cut_short()
                left, place = left[num_read:], place + num_read
        except OSError as error:
            raise DatasetError(
                f"{self.path} cannot be read ({error.strerror}); {self._cure}"
            ) from None
        return values

    def _cut_short(self) -> DatasetError:
        expected = self._offset + self.size * self.dtype.itemsize
        return DatasetError(
            f"{self.path} was cut short while it was read: it has {self.path.stat().st_size} "
            f"bytes, not {expected}; {self._cure}"
        )


@functools.lru_cache(maxsize=_OPEN)
def _descriptor(array: StoredArray) -> _Descriptor:
    return _Descriptor(array.path)
