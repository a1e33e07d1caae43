"""Packages that are imported when something needs them, told from what else has their name.

A folder or a file of a package's name in the working folder is imported in its place, and
the failure comes later: as an attribute that is missing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


class PackageError(ImportError):
    """Why a package cannot be used, and the cure; follows on "the package NAME"."""


def import_package(name: str, needed: str) -> ModuleType:
    """The package with this name. ``needed`` is something in it, which tells it from others.

    Raises PackageError when it is not installed, broken, or hidden by something of its name.
    """
    cure = f"pip install {name}"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if error.name == name:
            raise PackageError(f"is not installed: {cure}") from None
        raise PackageError(f"cannot be imported ({error}): {cure}") from None
    if hasattr(module, needed):
        return module
    del sys.modules[name]
    if file := getattr(module, "__file__", None):
        raise PackageError(f"is hidden by {file}: rename that, or start in another folder")
    folder = next(iter(module.__path__))
    raise PackageError(f"is not installed ({folder} is a folder of that name): {cure}")
