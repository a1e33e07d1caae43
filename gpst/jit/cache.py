"""Where numba keeps a package's machine code: a folder named after the sources it comes from.

numba by itself looks at the file of a function only: machine code that calls into another file
stays in force when that one changes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_DECORATOR = Path(__file__).resolve().with_name("compiled.py")
_KEPT_S = 7 * 24 * 3600
"""How long the code of other sources stays after its last use: other branches, other versions."""


@contextmanager
def own_cache(package: Path) -> Iterator[bool]:
    """Inside, numba caches in a package's folder. Yields whether there is a place for one."""
    config = _numba().config
    folder, before = _folder(package), config.CACHE_DIR
    config.CACHE_DIR = folder or before
    try:
        yield folder is not None
    finally:
        config.CACHE_DIR = before


def _numba() -> Any:
    import numba

    return numba


@functools.cache
def _folder(package: Path) -> str | None:
    name = f"{package.name}-{_digest(os.fsencode(package))[:8]}"
    for parent in _parents(package):
        folder = parent / f"{name}-{sources_key(package)}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            os.utime(folder)
            _prune(parent, name)
            return str(folder)
    return None


def _parents(package: Path) -> list[Path]:
    """Where the folder may be, best first: as numba itself chooses."""
    stated = _numba().config.CACHE_DIR  # NUMBA_CACHE_DIR
    configured = [Path(stated)] if stated else []
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    user_cache = [] if home.startswith("~") else [Path(home, "numba")]
    return [*configured, package / "__pycache__", *user_cache]


def sources_key(package: Path) -> str:
    """Changes with numba, and with every source that has compiled functions or compiles them."""
    parts = [_numba().__version__.encode()]
    for path in [_DECORATOR, *sorted(package.rglob("*.py"))]:
        source = path.read_bytes()
        if b"compiled" in source:
            parts += [os.fsencode(os.path.relpath(path, package)), source]
    return _digest(*parts)[:16]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} ".encode() + part)
    return digest.hexdigest()


def _prune(parent: Path, name: str) -> None:
    for folder in parent.glob(f"{name}-*"):
        with suppress(OSError):  # another process is at it
            if time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder)
