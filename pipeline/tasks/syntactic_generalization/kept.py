"""Surprisals that an earlier, interrupted evaluation has left, so that it goes on from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.tasks.syntactic_generalization.surprisal import (
    Progress,
    Surprisals,
    TokenSurprisals,
)

_CHUNK_TEXTS = 128


class KeptSurprisals:
    """A language model's surprisals, each text's written to a file as soon as it is known.

    Args:
        inner: the model.
        file: lines of {"key", "text", "spans", "bits"}; a line that a kill cut short is left out.
        key: says what the surprisals depend on besides the text; lines of other keys do not count.
        progress: called with the number of texts that were there already.
    """

    def __init__(
        self, inner: Surprisals, file: Path, key: str, progress: Progress = lambda done: None
    ):
        self._inner, self._file, self._key, self._progress = inner, file, key, progress
        self.num_kept = 0
        """Texts that were there already."""

    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        """See `Surprisals`."""
        known = self._read()
        missing = sorted({text for text in texts if text not in known}, key=lambda t: (len(t), t))
        self.num_kept = len({*texts}) - len(missing)
        self._progress(self.num_kept)
        with open(self._file, "a", encoding="utf-8") as lines:
            for start in range(0, len(missing), _CHUNK_TEXTS):
                chunk = missing[start : start + _CHUNK_TEXTS]
                for text, found in zip(chunk, self._inner(chunk), strict=True):
                    known[text] = found
                    entry = {"key": self._key, "text": text}
                    lines.write(
                        json.dumps({**entry, "spans": found.spans, "bits": found.bits}) + "\n"
                    )
                lines.flush()
        return [known[text] for text in texts]

    def _read(self) -> dict[str, TokenSurprisals]:
        if not self._file.is_file():
            return {}
        whole, known = [], {}
        content = self._file.read_text(encoding="utf-8", errors="replace")
        for line in content.splitlines(keepends=True):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if line.endswith("\n"):
                whole.append(line)
                if entry["key"] == self._key:
                    spans = tuple((start, end) for start, end in entry["spans"])
                    known[entry["text"]] = TokenSurprisals(spans, tuple(entry["bits"]))
        if "".join(whole) != content:
            self._file.write_text("".join(whole), encoding="utf-8")
        return known
