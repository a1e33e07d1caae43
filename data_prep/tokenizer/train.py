"""Train a vocabulary on a sample of the corpus: byte-level BPE or WordPiece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, pre_tokenizers, trainers

from data_prep.errors import SourceError, UsageError
from data_prep.tokenizer.load import (
    BERT_SPECIALS,
    END_OF_TEXT,
    byte_bpe_tokenizer,
    wordpiece_tokenizer,
)

KINDS = ("bpe", "wordpiece")
SMALLEST = {"bpe": 257, "wordpiece": 64}
LARGEST = 1 << 22  # the trainers reserve memory for all of it, and abort when there is none


def train_tokenizer(
    texts: Iterable[str], *, kind: str, vocab_size: int, lowercase: bool = True
) -> str:
    """Train on texts; returns the text of a tokenizer.json.

    ``bpe``: the one special token is ``<|endoftext|>`` (id 0). ``wordpiece``: BERT's five are ids
    0 to 4. A small text may give fewer than ``vocab_size`` tokens. Raises UsageError for an unknown
    kind or a size below the alphabet's, SourceError when the texts hold nothing.
    """
    if kind not in KINDS:
        raise UsageError(f"tokenizer kind {kind!r} does not exist; choose from {', '.join(KINDS)}")
    if vocab_size < SMALLEST[kind]:
        raise UsageError(
            f"--vocab-size {vocab_size} is too small for {kind}: at least {SMALLEST[kind]}"
        )
    if vocab_size > LARGEST:
        raise UsageError(f"--vocab-size {vocab_size} is too large: at most {LARGEST}")
    seen = _Counted(texts)
    if kind == "bpe":
        tokenizer = byte_bpe_tokenizer()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
    else:
        tokenizer = wordpiece_tokenizer(None, lowercase)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=[AddedToken(t, special=True, normalized=False) for t in BERT_SPECIALS],
            show_progress=False,
        )
    tokenizer.train_from_iterator(seen, trainer)
    if not seen.characters:
        raise SourceError("the input holds no text to train a tokenizer on")
    return tokenizer.to_str()


class _Counted:
    """Counts the characters that pass, and hands long texts on in pieces."""

    def __init__(self, texts: Iterable[str]):
        self._texts = texts
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.characters += len(text)
            yield text
