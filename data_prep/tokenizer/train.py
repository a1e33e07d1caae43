"""Train a vocabulary on a sample of the corpus: byte-level BPE or WordPiece."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers

from data_prep.errors import SourceError, UsageError
from data_prep.tokenizer.load import (
    BERT_SPECIALS,
    END_OF_TEXT,
    byte_bpe_tokenizer,
    wordpiece_tokenizer,
)

KINDS = ("bpe", "wordpiece")
SMALLEST = {"bpe": 257, "wordpiece": 64}
CONTINUES = "##"
MOST_LETTERS = 1000
"""Letters of a WordPiece vocabulary: the most frequent ones, as in `tokenizers`."""
LARGEST = 1 << 22  # the trainers reserve memory for all of it, and abort when there is none


def train_tokenizer(
    texts: Callable[[], Iterable[str]], *, kind: str, vocab_size: int, lowercase: bool = True
) -> str:
    """Train on texts; returns the text of a tokenizer.json, the same for the same texts.

    ``bpe``: the one special token is ``<|endoftext|>`` (id 0). ``wordpiece``: BERT's five are ids
    0 to 4, and the texts are gone through twice. A small text may give fewer than ``vocab_size``
    tokens. Raises UsageError for an unknown kind or a size below the alphabet's, SourceError when
    the texts hold nothing.
    """
    if kind not in KINDS:
        raise UsageError(f"tokenizer kind {kind!r} does not exist; choose from {', '.join(KINDS)}")
    if vocab_size < SMALLEST[kind]:
        raise UsageError(
            f"--vocab-size {vocab_size} is too small for {kind}: at least {SMALLEST[kind]}"
        )
    if vocab_size > LARGEST:
        raise UsageError(f"--vocab-size {vocab_size} is too large: at most {LARGEST}")
    if kind == "bpe":
        return _train_bpe(texts(), vocab_size)
    return _train_wordpiece(texts, vocab_size, lowercase)


def _train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_special(END_OF_TEXT)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer = byte_bpe_tokenizer()
    characters = 0

    def counted() -> Iterable[str]:
        nonlocal characters
        for text in texts:
            characters += len(text)
            yield text

    tokenizer.train_from_iterator(counted(), trainer)
    _check_any(characters)
    return tokenizer.to_str()


def _train_wordpiece(texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool) -> str:
    """The trainer numbers the letters inside words in the order of a hash table, another one each
    time, and breaks ties by these numbers; so they are given to it, as special tokens, in order.
    """
    tokenizer = wordpiece_tokenizer(None, lowercase)
    letters = _letters(texts(), tokenizer)
    inside = [CONTINUES + letter for letter in letters if _continues(letter, tokenizer)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[_special(token) for token in (*BERT_SPECIALS, *inside)],
        initial_alphabet=letters,
        limit_alphabet=MOST_LETTERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    values = json.loads(tokenizer.to_str())
    values["added_tokens"] = [t for t in values["added_tokens"] if t["content"] in BERT_SPECIALS]
    return Tokenizer.from_str(json.dumps(values)).to_str()


def _letters(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """The most frequent characters of the texts, normalised, in the order of their numbers."""
    counts = np.zeros(0x110000, np.int64)
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        found = np.bincount(codes)
        counts[: len(found)] += found
    _check_any(int(counts.sum()))
    normalised: Counter[str] = Counter()
    for code in counts.nonzero()[0].tolist():
        for letter in tokenizer.normalizer.normalize_str(chr(code)):
            if not letter.isspace():
                normalised[letter] += int(counts[code])
    ranked = sorted(normalised, key=lambda letter: (-normalised[letter], letter))
    return sorted(ranked[:MOST_LETTERS])


def _continues(letter: str, tokenizer: Tokenizer) -> bool:
    """Whether a word goes on with a character, or ends before it (as before a comma)."""
    text = tokenizer.normalizer.normalize_str("a" + letter)
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def _check_any(characters: int) -> None:
    if not characters:
        raise SourceError("the input holds no text to train a tokenizer on")


def _special(token: str) -> AddedToken:
    return AddedToken(token, special=True, normalized=False)
