"""Long documents of byte-level BPE in pieces that are encoded one by one, to bound memory.

Pieces end where words begin, so that their ids are those of the whole document.
"""

from __future__ import annotations

import json
from itertools import product

import numpy as np

from data_prep.tokenizer.load import LoadedTokenizer
from gpst.jit.compiled import compiled

PIECE_BYTES = 1 << 17  # documents of up to twice as much are encoded whole
LONGEST_WORD = 2 << 20  # bytes; a longer run without a place to cut is cut all the same
# what may stand before and after a cut
_LEFT = ("word", "A1", "x.", "x'", "é", "日本", "x)", "x\u0301", "x\u00a0")
_RIGHT = ("word", "Xy", "s", "1", ".x", "'s", "日本", "_", "é", "\u0301", "م")


@compiled
def _begins_word(data, i):
    """Whether every usual tokenizer starts a new word at ``data[i]``: " x", or a line's start.

    Not after or before more white space, of which patterns take more at an end of text; nor before
    "/", which some take with the line end before it.
    """
    byte, before = data[i], data[i - 1]
    if byte == 32:
        small = data[i + 1] | 32
        return before > 32 and 97 <= small <= 122
    if before != 10 or byte <= 32 or byte == 47 or data[i - 2] <= 32:
        return False
    if data[i - 2] >= 0x80:  # white space, or a letter that its last bytes do not tell from it
        lead, second = data[i - 4], data[i - 3]
        space = lead == 0xE3 and second == 0x80 and data[i - 2] == 0x80
        if space or second == 0xC2 or 0xE1 <= lead <= 0xE2:
            return False
    return byte != 0xC2 and not 0xE1 <= byte <= 0xE3  # what other white space begins with


@compiled
def _piece_ends(data, document_ends, limit, longest, cuttable, out):
    """Ends of pieces of about ``limit`` bytes, cut where words begin; returns (count, forced cuts).

    A text without such a place (or all, where not ``cuttable``) is cut at a character after
    ``longest`` bytes.
    """
    count = forced = start = 0
    for d in range(len(document_ends)):
        end = document_ends[d]
        while end - start > 2 * limit:
            i, last = start + limit, min(start + longest, end - 1)
            while i < last and not (cuttable and _begins_word(data, i)):
                i += 1
            if i == last:
                if end - start <= longest:
                    break
                forced += 1
                while data[i] & 0xC0 == 0x80:
                    i -= 1
            out[count] = start = i
            count += 1
        out[count] = start = end
        count += 1
    return count, forced


def cut_into_pieces(
    data: np.ndarray, document_ends: np.ndarray, cuttable: bool
) -> tuple[np.ndarray, int]:
    """(ends of pieces (P,) int64, how many are inside a word).

    data: (n,) uint8, clean UTF-8. document_ends: (D,) int64. cuttable: see ``cuts_are_safe``;
    otherwise documents stay whole up to LONGEST_WORD bytes.
    """
    room = len(document_ends) + len(data) // PIECE_BYTES + 1
    pieces = np.empty(room, np.int64)
    count, forced = _piece_ends(data, document_ends, PIECE_BYTES, LONGEST_WORD, cuttable, pieces)
    return pieces[:count], int(forced)


def cuts_are_safe(loaded: LoadedTokenizer) -> bool:
    """Whether a byte-level BPE starts words where pieces are cut: its own rules are asked.

    Some have words of several words, by their pattern or as added tokens.
    """
    added = (t["content"] for t in json.loads(loaded.json_text)["added_tokens"] if not t["special"])
    if any(
        " " in token.strip() or "\n" in token.strip() or _ends_in_space(token) for token in added
    ):
        return False
    splitter = loaded.reference().pre_tokenizer
    assert splitter is not None  # it would be of another kind
    places = [(left, " " + right) for left, right in product(_LEFT, _RIGHT[:3])]
    places += [(left + "\n", right) for left, right in product(_LEFT[:-1], _RIGHT)]

    def words(text: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    return all(words(left) + words(right) == words(left + right) for left, right in places)


def _ends_in_space(token: str) -> bool:
    return bool(token.strip()) and token != token.rstrip()
