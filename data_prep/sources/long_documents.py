"""Documents that are too long are cut into several, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from data_prep.text.batch import RawBatch, Recorder

MAX_DOCUMENT_BYTES = 8 << 20


def cut_long_documents(batch: RawBatch, recorder: Recorder) -> Iterator[RawBatch]:
    """The batch itself, or batches of pieces when it has documents that are too long."""
    sizes = batch.ends - batch.starts
    if not (sizes > MAX_DOCUMENT_BYTES).any():
        yield batch
        return
    for number, size in enumerate(sizes.tolist()):
        first, stop = int(batch.starts[number]), int(batch.ends[number])
        place = batch.places[number : number + 1]
        if size > MAX_DOCUMENT_BYTES:
            recorder.count("documents_cut_too_long")
        while stop - first > MAX_DOCUMENT_BYTES:
            window = batch.data[first : first + MAX_DOCUMENT_BYTES + 4].tobytes()
            last = first + cut_point(window)
            yield RawBatch(batch.data, np.array([first]), np.array([last]), batch.file, place)
            first = last
        yield RawBatch(batch.data, np.array([first]), np.array([stop]), batch.file, place)


def cut_while_reading(pieces: Iterable[bytes], recorder: Recorder) -> Iterator[tuple[int, bytes]]:
    """A document that comes in pieces, cut like the above: (offset in it, bytes)."""
    chunks: list[bytes] = []
    length = offset = 0
    for data in pieces:
        chunks.append(data)
        length += len(data)
        if length > MAX_DOCUMENT_BYTES and not offset:
            recorder.count("documents_cut_too_long")
        while length > MAX_DOCUMENT_BYTES:
            joined = b"".join(chunks)
            cut = cut_point(joined)
            document, chunks = joined[:cut], [joined[cut:]]
            del joined  # free it before yielding
            yield offset, document
            length, offset = length - cut, offset + cut
    yield offset, b"".join(chunks)


def cut_point(data: bytes, limit: int | None = None) -> int:
    """Where to cut too long a document: after a blank line, a line, a space, any character."""
    limit = MAX_DOCUMENT_BYTES if limit is None else limit
    for mark in (b"\n\n", b"\n", b" "):
        place = data.rfind(mark, limit // 2, limit)
        if place > 0:
            return place + len(mark)
    place = limit
    while place > limit - 4 and data[place] & 0xC0 == 0x80:
        place -= 1
    return place
