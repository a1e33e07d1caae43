"""Units as tasks for the workers: planned ones, then those cut from streams while these are read.

A large compressed file cannot be entered in its middle. A thread of the leading process reads it
once, and puts pieces into files that the workers take up and remove; only a few exist at a time.
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
from data_prep.build.unit import done_file
from data_prep.executors.stop import STOP
from data_prep.files import write_atomically
from data_prep.sources.base import Fault, Part, Piece, StreamedSource, Unit
from data_prep.sources.registry import get_source
from data_prep.sources.streams import BrokenStreamError

MOST_READERS = 4  # each holds some tens of MiB
POLL_S = 0.1


class Feed:
    """The tasks of a build. width: how many workers there are.

    A run that goes on reads a stream again, but writes only the pieces that are not done.
    """

    def __init__(self, job: Job, units: Sequence[Unit], width: int):
        self._job, self._width = job, width
        self._units = [unit for unit in units if not unit.streamed]
        self._streams = [unit for unit in units if unit.streamed]
        self._folder = job.work / "spool"
        self._queue: Queue[Unit] = Queue(maxsize=2)
        self._stop = threading.Event()
        self.weight = sum(unit.weight for unit in units)
        self.given = 0
        self.complete = False  # all tasks were given out

    def tasks(self) -> Generator[tuple[Job, Unit], None, None]:
        """(job, unit), in an order of no meaning; ends early when a stop is requested."""
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was killed
        for unit in self._units:
            self.given += 1
            yield self._job, unit
        if self._streams:
            yield from self._streamed()
        self.complete = not STOP.requested

    def first_piece(self, stream: Unit) -> Unit:
        """The unit of a stream's first piece, as a sample of it."""
        with closing(self._pieces(stream.parts[0])) as pieces:
            return self._unit(stream.index, 0, next(pieces))

    def _streamed(self) -> Iterator[tuple[Job, Unit]]:
        threads = min(len(self._streams), self._width, MOST_READERS)
        with ThreadPoolExecutor(threads) as readers:
            try:
                running = [readers.submit(self._read, unit) for unit in self._streams]
                while not STOP.requested:
                    ended = _all_done(running)  # before the queue is looked at
                    try:
                        unit = self._queue.get(timeout=POLL_S)
                    except Empty:
                        if ended:
                            return
                        continue
                    self.given += 1
                    yield self._job, unit
            finally:
                self._stop.set()

    def _read(self, stream: Unit) -> None:
        """In a thread: cut one stream into units, and hand them on."""
        end = self._job.work / "units" / f"{stream.key}.end"
        if end.exists():
            pieces = range(json.loads(end.read_text()))
            found = [Unit(stream.index, (), number) for number in pieces]
            if all(done_file(self._job, unit.key).exists() for unit in found):
                for unit in found:
                    self._put(unit)  # its record is what is wanted
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
            fault: Fault = (error.reason, part.path, place, error.detail)
            yield Piece((), place, (fault,))

    def _unit(self, index: int, number: int, piece: Piece) -> Unit:
        """The unit of a piece, whose files are written unless it is done."""
        unit = Unit(index, (), number)
        folder = self._folder / unit.key
        if done_file(self._job, unit.key).exists():
            return unit
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for file in piece.files:
            path = folder / file.name
            path.write_bytes(file.data)
            where = {"origin": file.origin, "base": file.base, "decoded": file.decoded}
            parts.append(Part(str(path), file.weight, **where))
        return Unit(index, tuple(parts), number, piece.faults)

    def _put(self, unit: Unit) -> bool:
        """Hand a unit on, when there is room; False when the run is to end."""
        while not self._stop.is_set():
            try:
                self._queue.put(unit, timeout=POLL_S)
            except Full:
                continue
            return True
        return False


def _all_done(running: Sequence[Future[None]]) -> bool:
    """Whether all threads have ended; raises what one of them raised."""
    done = [future for future in running if future.done()]
    for future in done:
        future.result()
    return len(done) == len(running)
