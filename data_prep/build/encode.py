"""Clean documents to tokens with sentence ends: segmenter, engine and layout put together.

A sentence gets the tokens that begin in it. For byte-level BPE whole documents are encoded, and the
places of the tokens follow from their byte lengths, whose sum is checked against the text; so the
tokens of a document are those of the plain tokenizer on its whole text, whatever the segmenter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from data_prep.errors import TokenizerError
from data_prep.format.manifest import dtype_for
from data_prep.segment.segmenters import Segmenter
from data_prep.tokenizer.load import BYTE_BPE, WORDPIECE, LoadedTokenizer
from data_prep.tokenizer.pieces import cut_into_pieces, cuts_are_safe
from data_prep.tokenizer.reference import Engine
from gpst.jit.compiled import compiled

# what a token begins with
INSIDE, CHARACTER, WORD = range(3)
_SPACE_CHARACTERS = "ĠĊĉč▁"  # space, LF, tab, CR as byte-level BPE writes them; Metaspace


@dataclass(frozen=True)
class TokenBatch:
    """Documents as tokens. document d holds the next document_sentences[d] sentences.

    tokens: (T,). sentence_ends: (S,) int64, in tokens. document_sentences, document_tokens:
    (D,) int64; both 0 for a document that was not chosen or has no tokens. num_cut: sentences cut
    at a word's start because they were too long; num_cut_words: the same inside a word.
    """

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_sentences: np.ndarray
    document_tokens: np.ndarray
    num_cut: int
    num_cut_words: int


@dataclass(frozen=True)
class EncodedBatch:
    """Ids of the documents and where sentences end, before sentences are cut to length.

    ids: (T,) uint32. sentence_ends: (S,) int64, in tokens. document_ends: (D,) int64, in sentences.
    """

    ids: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray


@compiled
def _assign(ids, piece_tokens, piece_bytes, sentence_bytes, lengths, out):
    """Exclusive token end of each sentence; returns the first wrong piece, or -1.

    piece_bytes: ends of the encoded pieces; piece_tokens: their ends in tokens. sentence_bytes:
    ends of the sentences. lengths: bytes of each token of the vocabulary.
    """
    place = t = s = 0
    for p in range(len(piece_bytes)):
        while t < piece_tokens[p]:
            while sentence_bytes[s] <= place:  # the next token begins in a later sentence
                out[s] = t
                s += 1
            place += lengths[ids[t]]
            t += 1
        if place != piece_bytes[p]:
            return p
    while s < len(sentence_bytes):
        out[s] = t
        s += 1
    return -1


@compiled
def _cut_at(ids, start, limit, begins):
    """Where to cut a sentence that starts at ``start`` and is too long: (place, at a word)."""
    character = start + limit
    for i in range(start + limit, start, -1):
        if begins[ids[i]] == WORD:
            return i, True
        if begins[ids[i]] == CHARACTER and begins[ids[character]] == INSIDE:
            character = i
    return character, False


@compiled
def _layout(ids, sentence_ends, document_ends, chosen, begins, limit, end_id, out, ends, sizes):
    """Write the chosen documents' tokens, and an end-of-document sentence after each.

    out: tokens; ends: ends of their sentences; sizes: (D, 2) sentences and tokens. Returns
    (tokens, sentences, cuts at words, cuts inside words).
    """
    at = count = cuts = word_cuts = start = s = 0
    for d in range(len(document_ends)):
        first_at, first_count = at, count
        while s < document_ends[d]:
            stop = sentence_ends[s]
            s += 1
            while chosen[d] and start < stop:
                cut = stop
                if stop - start > limit:
                    cut, whole = _cut_at(ids, start, limit, begins)
                    cuts += whole
                    word_cuts += not whole
                for i in range(start, cut):
                    out[at + i - start] = ids[i]
                at += cut - start
                ends[count] = at
                count += 1
                start = cut
            start = stop
        if count > first_count:
            out[at] = end_id
            at += 1
            ends[count] = at
            count += 1
        sizes[d, 0], sizes[d, 1] = count - first_count, at - first_at
    return at, count, cuts, word_cuts


class Encoder:
    """Turns clean documents into tokens and sentences.

    max_sentence_tokens: longer sentences are cut at word starts.
    """

    def __init__(
        self,
        loaded: LoadedTokenizer,
        engine: Engine,
        segmenter: Segmenter,
        max_sentence_tokens: int,
    ):
        self.loaded, self.engine, self.segmenter = loaded, engine, segmenter
        self.limit = max_sentence_tokens
        self.dtype = np.dtype(dtype_for(loaded.vocab_size))
        self._lengths, self._begins = token_tables(loaded)
        self._reference: Tokenizer | None = None
        self._cuttable = loaded.kind == BYTE_BPE and cuts_are_safe(loaded)
        self.num_forced = 0  # cuts inside words of more than LONGEST_WORD bytes

    def encode(self, data: np.ndarray, document_ends: np.ndarray) -> EncodedBatch:
        """Segment and encode documents; data: (n,) uint8, document_ends: (D,) int64.

        Documents must not be empty. Raises TokenizerError when tokens do not give the text back.
        """
        ends, document_sentences = self.segmenter.cut(data, document_ends)
        if self.loaded.kind == BYTE_BPE:
            ids, tokens = self._byte_level(data, document_ends, ends)
        elif self.loaded.kind == WORDPIECE:
            ids, tokens = self.engine.encode(data, ends)
        else:
            ids, tokens = self._with_offsets(data, document_ends, ends, document_sentences)
        return EncodedBatch(ids, tokens, document_sentences)

    def _byte_level(
        self, data: np.ndarray, document_ends: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        pieces, forced = cut_into_pieces(data, document_ends, self._cuttable)
        self.num_forced += forced
        ids, piece_tokens = self.engine.encode(data, pieces)
        out = np.empty(len(ends), np.int64)
        wrong = _assign(ids, piece_tokens, pieces, ends, self._lengths, out)
        if wrong >= 0:
            start = int(pieces[wrong - 1]) if wrong else 0
            text = bytes(data[start : start + 60]).decode(errors="replace")
            raise TokenizerError(
                f"tokenizer {self.loaded.name} ({self.engine.name}): the tokens of {text!r}..."
                " do not give the text back; use another tokenizer or --engine tokenizers"
            )
        return ids, out

    def _with_offsets(
        self,
        data: np.ndarray,
        document_ends: np.ndarray,
        ends: np.ndarray,
        document_sentences: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Any other tokenizer: whole documents through the reference, with its offsets."""
        if self._reference is None:
            self._reference = self.loaded.reference()
        ids: list[np.ndarray] = []
        tokens = np.empty(len(ends), np.int64)
        start = first = total = 0
        for end, last in zip(document_ends.tolist(), document_sentences.tolist(), strict=True):
            raw = data[start:end]
            encoding = self._reference.encode(raw.tobytes().decode(), add_special_tokens=False)
            # bytes to characters: the number of bytes before it that begin a character
            begins = np.cumsum((raw & 0xC0) != 0x80)
            sentence_ends = begins[ends[first:last] - start - 1]
            places = np.fromiter((o[0] for o in encoding.offsets), np.int64, len(encoding))
            places = np.maximum.accumulate(places) if len(places) else places
            tokens[first:last] = total + np.searchsorted(places, sentence_ends)
            ids.append(np.array(encoding.ids, np.uint32))
            total += len(encoding)
            start, first = end, last
        return np.concatenate(ids) if ids else np.empty(0, np.uint32), tokens

    def layout(self, batch: EncodedBatch, chosen: np.ndarray) -> TokenBatch:
        """Cut long sentences and add end-of-document sentences. chosen: (D,) bool."""
        num_documents = len(batch.document_ends)
        room = len(batch.ids) + num_documents
        out = np.empty(room, self.dtype)
        # a cut leaves at least one token on each side
        ends = np.empty(len(batch.sentence_ends) + room, np.int64)
        sizes = np.zeros((num_documents, 2), np.int64)
        at, count, cuts, word_cuts = _layout(
            batch.ids,
            batch.sentence_ends,
            batch.document_ends,
            chosen,
            self._begins,
            self.limit,
            self.loaded.end_of_document_id,
            out,
            ends,
            sizes,
        )
        return TokenBatch(out[:at], ends[:count], sizes[:, 0], sizes[:, 1], cuts, word_cuts)


def token_tables(loaded: LoadedTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """(bytes of each token, what it begins with: INSIDE, CHARACTER or WORD), both (vocab_size,).

    A word begins with white space in BPE, and is any token without ``##`` in WordPiece. INSIDE is
    the inside of a character, in byte-level BPE.
    """
    lengths = np.zeros(loaded.vocab_size, np.int64)
    begins = np.full(loaded.vocab_size, CHARACTER, np.uint8)
    added = {t["content"] for t in json.loads(loaded.json_text)["added_tokens"]}
    for token, number in loaded.reference().get_vocab(with_added_tokens=True).items():
        # in byte-level BPE one character stands for one byte
        lengths[number] = len(token.encode()) if token in added else len(token)
        if loaded.kind == WORDPIECE:
            is_word = not token.startswith("##")
        else:
            is_word = token[:1] in _SPACE_CHARACTERS or token[:1].isspace()
        if is_word:
            begins[number] = WORD
        elif loaded.kind == BYTE_BPE and token not in added and token[:1] in _CONTINUATIONS:
            begins[number] = INSIDE
    return lengths, begins


def _byte_characters() -> dict[int, str]:
    """The characters that byte-level BPE writes bytes as (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + number) for number, byte in enumerate(others)}


_CONTINUATIONS = frozenset(_byte_characters()[byte] for byte in range(0x80, 0xC0))
