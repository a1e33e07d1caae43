"""Between text and token ids: words of a sentence, sentences of a text, sentence-final tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Encoding, Tokenizer

_FINAL = re.compile(r"""[.!?…]["'”’»)\]}]*\s*$""")
_LOOK = 16
"""Characters looked at around a possible end of a sentence."""


@dataclass(frozen=True)
class Sentence:
    """A sentence as the model reads it."""

    tokens: list[int]
    words: list[str]
    """As the tokenizer cuts the text before it makes word pieces; punctuation is a word."""
    word_of_token: list[int]
    """The number of each token's word: 0, 0, 1, 2, ..."""

    @property
    def inside_word(self) -> list[bool]:
        """Whether the boundary after a token lies inside a word."""
        following = [*self.word_of_token[1:], -1]
        return [a == b for a, b in zip(self.word_of_token, following, strict=True)]


class Codec:
    """A tokenizer with what the model needs to know about its text.

    Args:
        definition: the text of tokenizer.json.
    """

    def __init__(self, definition: str):
        self.tokenizer = Tokenizer.from_str(definition)
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        pre = json.loads(definition).get("pre_tokenizer") or {}
        self._byte_level = "ByteLevel" in json.dumps(pre)

    @classmethod
    def load(cls, folder: str | Path) -> Codec:
        """From a folder with tokenizer.json."""
        return cls((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))

    def sentence(self, text: str) -> Sentence:
        """One sentence. It is read as if it stood inside a text, after a space.

        Raises:
            ValueError: there is no word in the text.
            TypeError: it is no text.
        """
        _check_text(text)
        text = " ".join(text.split())
        if not text:
            raise ValueError("a sentence is empty")
        # In a byte-level vocabulary the space belongs to the word after it.
        text = " " + text if self._byte_level else text
        encoding = self._encode(text)
        if not encoding.ids:
            raise ValueError(f"the tokenizer leaves nothing of {text[:60]!r}")
        return _with_words(text, encoding.ids, encoding.offsets, encoding.word_ids)

    def sentences(self, text: str, inside: bool = False) -> list[Sentence]:
        """The sentences of a text, with the tokens that the whole text has.

        A sentence ends after a token that may end one, before white space that no small letter
        follows. The corpus' own segmenter knows more; give sentences one by one where it matters.

        Args:
            inside: the text is read as if it stood inside another, after a space, like `sentence`.
        Raises:
            TypeError: it is no text.
        """
        _check_text(text)
        text = " " + text if inside and self._byte_level else text
        encoding = self._encode(text)
        ids, offsets, words = encoding.ids, encoding.offsets, encoding.word_ids
        cuts = [0]
        for k in range(len(ids) - 1):
            end = offsets[k][1]
            after = text[end : end + _LOOK]
            rest = after.lstrip()
            # Closing quotes are looked at together with what stands before them.
            final = _FINAL.search(text[max(0, end - _LOOK) : end])
            if final and after != rest and rest and not rest[0].islower():
                cuts.append(k + 1)
        cuts.append(len(ids))
        return [
            _with_words(text, ids[a:b], offsets[a:b], words[a:b])
            for a, b in pairwise(cuts)
            if a < b
        ]

    def _encode(self, text: str) -> Encoding:
        text.encode("utf-8")  # half a surrogate pair is a ValueError
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; special ones leave nothing."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def continuation(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of tokens that follow others: with the space that parts two words."""
        return self.decode([*before, *tokens])[len(self.decode(before)) :]

    def piece(self, token: int) -> tuple[str, str]:
        """What to show for a token, and what it adds to a text, its space included."""
        name = self.tokenizer.id_to_token(token) or str(token)
        text = self.decode([token])
        if not self._byte_level and text:
            text = name[2:] if name.startswith("##") else f" {text}"
        blank = "\N{RETURN SYMBOL}" if "\n" in text else "\N{OPEN BOX}"
        return text.strip() or (blank if text else name), text

    def final_tokens(self) -> list[int]:
        """Ids of the tokens whose text may end a sentence."""
        size = self.tokenizer.get_vocab_size()
        texts = self.tokenizer.decode_batch([[k] for k in range(size)], skip_special_tokens=True)
        return [k for k, text in enumerate(texts) if _FINAL.search(text)]


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"one text (str) is wanted, not {type(text).__name__}: {text!r:.60}")


def check_texts(texts: object) -> None:
    """Raises TypeError where several texts are wanted, and one or none is given.

    A string would be taken for texts of one letter each.
    """
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"several texts (a list of str) are wanted, not {type(texts).__name__}: {texts!r:.60}"
        )


def check_length(what: str, text: Sequence[Sentence], limit: int) -> None:
    """Raises ValueError, with the beginning, where sentences have more tokens than the model takes.

    Args:
        what: name of the whole.
    """
    number = sum(len(sentence.tokens) for sentence in text)
    if number > limit:
        start = " ".join(word for sentence in text for word in sentence.words[:20])[:60]
        raise ValueError(
            f"a {what} has {number} tokens, but the model takes {limit}: {start!r} ..."
        )


def _with_words(
    text: str,
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    word_ids: Sequence[int | None],
) -> Sentence:
    words: list[str] = []
    numbers: list[int] = []
    previous: int | None = None
    start = 0
    for (first, last), word in zip(offsets, word_ids, strict=True):
        if not numbers or word is None or word != previous:
            start = first
            words.append("")
            previous = word
        words[-1] = text[start:last].strip() or words[-1] or "\N{OPEN BOX}"
        numbers.append(len(words) - 1)
    return Sentence(list(ids), words, numbers)
