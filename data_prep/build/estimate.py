"""``build --dry-run``: documents, tokens, disk and hours, from a sample of the input."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.build.job import BuildArguments, Job
from data_prep.build.task_feed import TaskFeed
from data_prep.build.unit import run_unit
from data_prep.build.unit_files import DOCUMENT
from data_prep.errors import SourceError
from data_prep.format.manifest import dtype_for
from data_prep.segment.segmenters import get_segmenter
from data_prep.sources.base import MIB, Part, Unit, group_into_units
from data_prep.sources.registry import find_input, get_source
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import load_tokenizer

SAMPLE_BYTES = 32 * MIB
SAMPLE_UNIT_BYTES = 2 * MIB


@dataclass(frozen=True)
class Estimate:
    """Sizes of the whole build, scaled up from a sample of ``fraction`` of the input.

    work_bytes: temporary files, removed at the end.
    """

    fraction: float
    documents: float
    sentences: float
    tokens: float
    disk_bytes: float
    work_bytes: float
    cpu_s: float
    engine: str
    counters: dict[str, int]
    left_out: str | None = None

    def lines(self, workers: int, free_bytes: int) -> Iterator[str]:
        """What ``--dry-run`` prints."""
        yield f"sampled      {100 * self.fraction:.1f}% of the input, engine {self.engine}"
        yield f"documents    {self.documents:,.0f}"
        yield f"sentences    {self.sentences:,.0f}"
        yield f"tokens       {self.tokens:,.0f}"
        peak = self.disk_bytes + self.work_bytes
        yield f"disk         {self.disk_bytes / 1e9:.3f} GB, {peak / 1e9:.3f} GB while it is built"
        yield f"free         {free_bytes / 1e9:.3f} GB" + (" TOO LITTLE" * (free_bytes < peak))
        hours = self.cpu_s / workers / 3600
        yield f"time         {hours:.2f} hours with {workers} workers"
        for name, count in self.counters.items():
            yield f"  {name} in the sample: {count:,}"
        if self.left_out:
            yield self.left_out


def estimate(
    inputs: Sequence[str],
    tokenizer: str | Path,
    arguments: BuildArguments,
    engine: str = "auto",
    end_of_document: str | None = None,
    output: str | None = None,
) -> Estimate:
    """Run evenly spread units of the input in a temporary folder, and scale up by their weight.

    output: the build's output, which is excluded from the input; nothing is written there.
    """
    loaded = load_tokenizer(tokenizer, end_of_document=end_of_document)
    chosen = get_engine(engine, loaded)
    source = get_source(arguments.source)
    arguments = replace(arguments, segmenter=getattr(source, "segmenter", arguments.segmenter))
    get_segmenter(arguments.segmenter, arguments.language)
    files = find_input(source, inputs, output)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, arguments, chosen.name, loaded.end_of_document_token)
        loaded.save(job.tokenizer)
        (job.work / "units").mkdir()
        parts = source.parts(files, arguments.options)
        units = group_into_units(parts, SAMPLE_UNIT_BYTES)
        total = sum(unit.weight for unit in units)
        feed = TaskFeed(job, (), 1)
        chosen_units = _sample(units, total)
        sample = [feed.first_piece(unit) if unit.streamed else unit for unit in chosen_units]
        # warm up: loading code is not timed
        run_unit(job, Unit(len(units), _without_origin(sample[0].parts)))
        sizes, counters = Counter[str](), Counter[str]()
        start = time.process_time()
        for unit in sample:
            record = run_unit(job, unit)
            counters.update(record["counters"])
            for split_sizes in record["sizes"].values():
                sizes.update(split_sizes)
        seconds = time.process_time() - start
    if not sizes["documents"]:
        raise SourceError("the sample of the input holds no document that can be used")
    fraction = sum(unit.weight for unit in sample) / max(total, 1)
    itemsize = 2 if dtype_for(loaded.vocab_size) == "uint16" else 4
    disk = itemsize * sizes["tokens"] + 8 * (sizes["sentences"] + sizes["documents"])
    work = itemsize * sizes["tokens"] + 4 * sizes["sentences"]
    work += DOCUMENT.itemsize * sizes["documents"]
    scale = 1 / fraction
    return Estimate(
        fraction=fraction,
        documents=sizes["documents"] * scale,
        sentences=sizes["sentences"] * scale,
        tokens=sizes["tokens"] * scale,
        disk_bytes=disk * scale,
        work_bytes=work * scale,
        cpu_s=seconds * scale,
        engine=chosen.name,
        counters=dict(sorted(counters.items())),
        left_out=files.left_out,
    )


def _without_origin(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts without an origin: run_unit removes the files of parts that have one."""
    return tuple(part._replace(origin="") for part in parts)


def _sample(units: Sequence[Unit], total: int) -> list[Unit]:
    """Units spread evenly, SAMPLE_BYTES in all (at least one unit)."""
    count = max(1, min(len(units), round(len(units) * SAMPLE_BYTES / max(total, 1))))
    return [units[(2 * n + 1) * len(units) // (2 * count)] for n in range(count)]


def free_bytes(output: str | Path) -> int:
    """Free bytes on the disk of the output."""
    path = Path(output).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
