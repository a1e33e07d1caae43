"""Documents that are whole files: other encodings are decoded, what is no text is dropped."""

from __future__ import annotations

import numpy as np

from data_prep.text.batch import RawBatch, Recorder
from data_prep.text.encodings import AUTO, UTF8, decoded, detect_encoding, telling_part
from data_prep.text.normalise import CleanBatch, normalise

_IS_CONTROL = np.ones(256, np.bool_)
_IS_CONTROL[[9, 10, 11, 12, 13, *range(32, 127), *range(128, 256)]] = False


def clean_documents(
    raw: RawBatch, encoding: str, recorder: Recorder
) -> tuple[RawBatch, CleanBatch]:
    """The documents and their clean text. encoding: a declared one, or ``auto``.

    Valid UTF-8 is scanned only once.
    """
    clean = normalise(raw)
    if not raw.whole_files:
        return raw, clean
    if encoding not in (AUTO, UTF8):
        doubtful = np.arange(len(raw.starts))
    elif clean.num_controls or clean.num_bad.any():
        doubtful = np.flatnonzero(_has_controls(raw) | (clean.num_bad > 0))
    else:
        return raw, clean
    changed = _decode_files(raw, doubtful, encoding, recorder)
    return (raw, clean) if changed is None else (changed, normalise(changed))


def _has_controls(raw: RawBatch) -> np.ndarray:
    """(D,) bool."""
    first, last = int(raw.starts.min()), int(raw.ends.max())
    places = np.flatnonzero(_IS_CONTROL[raw.data[first:last]]) + first
    return np.searchsorted(places, raw.ends) > np.searchsorted(places, raw.starts)


def _decode_files(
    raw: RawBatch, doubtful: np.ndarray, declared: str, recorder: Recorder
) -> RawBatch | None:
    """The documents with other encodings decoded to UTF-8; None when all are UTF-8."""
    new: dict[int, bytes | None] = {}
    for number in doubtful.tolist():
        data = raw.data[raw.starts[number] : raw.ends[number]].tobytes()
        sample, whole = telling_part(data)
        detected = detect_encoding(sample, declared, whole)
        if detected.reason:
            recorder.drop(detected.reason, *raw.where(number), detected.detail)
            new[number] = None
        elif detected.encoding != UTF8:
            recorder.file_decoded(*raw.where(number), detected.encoding)
            new[number] = decoded(data, detected.encoding)
    if not new:
        return None
    remaining = [number for number in range(len(raw.starts)) if new.get(number, b"") is not None]
    documents = []
    for number in remaining:
        data = new.get(number)
        if data is None:
            data = raw.data[raw.starts[number] : raw.ends[number]].tobytes()
        documents.append(data)
    files = [raw.files[number] for number in remaining] if raw.files else ()
    return RawBatch.join(documents, raw.file, raw.places[remaining].tolist(), files)
