"""Words in bracketings: the Penn Treebank's -LRB- and the like for brackets."""

from __future__ import annotations

import re

_ESCAPED = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}
_SIGN = re.compile(r"-[LR][RSC]B-")


def escape(word: str) -> str:
    """A word as it stands in a bracketing.

    >>> escape("f(x)")
    'f-LRB-x-RRB-'
    """
    # White space would end the word.
    return "".join(_ESCAPED.get(sign, "_" if sign.isspace() else sign) for sign in word)


def unescape(word: str) -> str:
    """The word that stands in a bracketing.

    >>> unescape("f-LRB-x-RRB-")
    'f(x)'
    """
    return _SIGN.sub(lambda match: _PLAIN[match.group()], word)
