"""Exact duplicates over the whole corpus, by the hash of the documents' text, in bounded memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from data_prep.build.job import Job
from data_prep.build.unit_files import DOCUMENT, PLACE, PLACES, names_file, record_lines, unit_file
from data_prep.format.manifest import SPLITS

# documents looked at in one pass; a pass takes about 100 bytes a document
PASS_DOCUMENTS = 2_000_000
REASON = "duplicate_document"
# for (unit, split), the sorted numbers of documents whose text came earlier in the corpus
Duplicates = dict[tuple[str, str], np.ndarray]


def find_duplicates(
    job: Job, records: Iterable[dict[str, Any]], pass_documents: int = PASS_DOCUMENTS
) -> Duplicates:
    """See ``Duplicates``.

    The hashes are cut into ranges, and each pass looks at one range; the tables are read again in
    every pass. Duplicates have one hash, so they are in one split and in one range.
    """
    dropped: Duplicates = {}
    for split in SPLITS:
        units = [(r["key"], r["sizes"][split]["documents"]) for r in records if split in r["sizes"]]
        total = sum(count for _, count in units)
        passes = -(-total // pass_documents)
        repeated: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        for number in range(passes):
            for unit, documents in _pass(job, split, units, number, passes):
                repeated[unit].append(documents)
        for unit, parts in repeated.items():
            dropped[unit, split] = np.sort(np.concatenate(parts))
    return dropped


def quarantined(job: Job, key: str, dropped: Duplicates) -> bytes:
    """The lines of quarantine.jsonl for a unit's duplicates."""
    return record_lines(_entries(job, key, dropped))


def _entries(job: Job, key: str, dropped: Duplicates) -> Iterator[dict[str, str | int]]:
    for split in SPLITS:
        numbers = dropped.get((key, split))
        if numbers is None:
            continue
        if not names_file(job, key).exists():  # work of an earlier version of this program
            for number in numbers.tolist():
                yield {"reason": REASON, "file": f"unit {key} of {split}", "offset": number}
            continue
        names = json.loads(names_file(job, key).read_text(encoding="utf-8"))
        places = np.fromfile(unit_file(job, key, split, PLACES), PLACE)[numbers]
        for file, place in places.tolist():
            yield {"reason": REASON, "file": names[file], "offset": place}


def _pass(
    job: Job, split: str, units: list[tuple[str, int]], number: int, passes: int
) -> list[tuple[str, np.ndarray]]:
    """(unit, documents) that repeat an earlier one, among the hashes of one range."""
    hashes, places = [], []
    for order, (unit, _) in enumerate(units):
        table = np.fromfile(unit_file(job, unit, split, "documents"), DOCUMENT)
        # the second word decides: the first one has decided the split
        chosen = np.flatnonzero(table["hash"][:, 1] % np.uint64(passes) == number)
        hashes.append(table["hash"][chosen])
        place = np.empty((len(chosen), 2), np.int64)
        place[:, 0], place[:, 1] = order, chosen
        places.append(place)
    keys, place = np.concatenate(hashes), np.concatenate(places)
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: equal texts stay in corpus order
    keys, place = keys[order], place[order]
    again = np.flatnonzero((keys[1:] == keys[:-1]).all(axis=1)) + 1
    repeated = place[again]
    return [
        (unit, repeated[repeated[:, 0] == n, 1])
        for n, (unit, _) in enumerate(units)
        if (repeated[:, 0] == n).any()
    ]
