"""What a benchmark ran on: it belongs to every result that is kept."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "numba", "tokenizers", "gigatoken", "tokie", "pyarrow", "datasets")


def describe() -> dict[str, object]:
    """Processor, cores, memory, Python, and versions of the packages that matter here."""
    processor = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions,
    }
