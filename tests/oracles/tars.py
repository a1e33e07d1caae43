"""Tar archives as the tests need them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable


def tar_of(members: Iterable[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar archive of (name, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
