"""Units as tasks for the workers: first the known ones, then those cut from streams while reading.

A large compressed file has no random access. A thread of the main process reads it once and writes
pieces into files, which the workers read and remove; only a few exist at a time.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from queue import Empty, Full, Queue
from typing import cast

from data_prep.build.job import Job
from data_prep.build.unit_files import done_file
from data_prep.executors.stop import STOP
from data_prep.files import write_atomically
from data_prep.sources.base import DroppedRecord, Part, Piece, StreamedSource, Unit
from data_prep.sources.registry import get_source
from data_prep.sources.streams import BrokenStreamError

MOST_READERS = 4  # each holds some tens of MiB
POLL_S = 0.1


class TaskFeed:
    """The tasks of a build. width: how many workers there are.

    A continued run reads a stream again, but writes only the pieces that are not done.
    """

    def __init__(self, job: Job, units: Sequence[Unit], width: int):
        self._job, self._width = job, width
        self._units = [unit for unit in units if not unit.streamed]
        self._streams = [unit for unit in units if unit.streamed]
        self._folder = job.work / "spool"
        self._queue: Queue[Unit] = Queue(maxsize=2)
        self._stop = threading.Event()
        self.weight = sum(unit.weight for unit in units)
        self.num_tasks = 0
        self.complete = False  # all tasks were yielded

    def tasks(self) -> Generator[tuple[Job, Unit], None, None]:
        """Yield (job, unit) in no particular order; ends early when a stop is requested."""
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed run
        for unit in self._units:
            self.num_tasks += 1
            yield self._job, unit
        if self._streams:
            yield from self._streamed()
        self.complete = not STOP.requested

    def first_piece(self, stream: Unit) -> Unit:
        """The unit of a stream's first piece."""
        with closing(self._pieces(stream.parts[0])) as pieces:
            return self._unit(stream.index, 0, next(pieces))

    def _streamed(self) -> Iterator[tuple[Job, Unit]]:
        threads = min(len(self._streams), self._width, MOST_READERS)
        with ThreadPoolExecutor(threads) as readers:
            try:
                running = [readers.submit(self._read, unit) for unit in self._streams]
                while not STOP.requested:
                    ended = _all_done(running)  # checked before the queue
                    try:
                        unit = self._queue.get(timeout=POLL_S)
                    except Empty:
                        if ended:
                            return
                        continue
                    self.num_tasks += 1
                    yield self._job, unit
            finally:
                self._stop.set()

    def _read(self, stream: Unit) -> None:
        """In a thread: cut one stream into units and queue them."""
        end = self._job.work / "units" / f"{stream.key}.end"
        if end.exists():
            pieces = range(json.loads(end.read_text()))
            units = [Unit(stream.index, (), number) for number in pieces]
            if all(done_file(self._job, unit.key).exists() for unit in units):
                for unit in units:
                    self._put(unit)  # the worker returns its record
                return
        count = 0
        for piece in self._pieces(stream.parts[0]):
            if not self._put(self._unit(stream.index, count, piece)):
                return
            count += 1
        write_atomically(end, json.dumps(count).encode())

    def _pieces(self, part: Part) -> Generator[Piece, None, None]:
        source = cast("StreamedSource", get_source(self._job.arguments.source))
        place = 0
        try:
            for piece in source.pieces(part, self._job.arguments.options):
                place = piece.place
                yield piece
        except BrokenStreamError as error:
            record = DroppedRecord(error.reason, part.path, place, error.detail)
            yield Piece((), place, (record,))

    def _unit(self, index: int, number: int, piece: Piece) -> Unit:
        """The unit of a piece; writes its files unless the unit is done."""
        unit = Unit(index, (), number)
        folder = self._folder / unit.key
        if done_file(self._job, unit.key).exists():
            return unit
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for file in piece.files:
            path = folder / file.name
            path.write_bytes(file.data)
            origin = {"origin": file.origin, "base": file.base, "decoded": file.decoded}
            parts.append(Part(str(path), file.weight, **origin))
        return Unit(index, tuple(parts), number, piece.dropped)

    def _put(self, unit: Unit) -> bool:
        """Queue a unit when there is room; returns False when the run must end."""
        while not self._stop.is_set():
            try:
                self._queue.put(unit, timeout=POLL_S)
            except Full:
                continue
            return True
        return False


def _all_done(running: Sequence[Future[None]]) -> bool:
    """Whether all threads have ended; raises an exception that one of them raised."""
    done = [future for future in running if future.done()]
    for future in done:
        future.result()
    return len(done) == len(running)
