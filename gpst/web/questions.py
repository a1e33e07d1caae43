"""What a client asks, read from the JSON that it sends; what is wrong is one line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 1 << 24
"""Of a body; one that has more is not kept."""
_MAX_SEED = 2**63 - 1
_EXAMPLE = '{"text": "We must act."}'
_MAX_DIGITS = 100
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
_MOST_SHOWN = 40
"""Letters of a wrong value in a message."""


@dataclass(frozen=True)
class Question:
    """A text, the number of the model that reads it or writes on, and the seed of what it draws."""

    text: str
    model: int = 0
    seed: int = 0


def read_question(body: bytes, num_models: int) -> Question:
    """The question in a body.

    Raises:
        ValueError: one line that names what is wrong, its value and what to send instead.
    """
    values = _json_object(body)
    if "text" not in values:
        raise ValueError(f'"text" is missing; send for example {_EXAMPLE}')
    text = values["text"]
    if not isinstance(text, str):
        raise ValueError(f'"text" is {_shown(text)}; send a string, for example {_EXAMPLE}')
    if half := _HALF_A_PAIR.search(text):
        raise ValueError(
            f'"text" has U+{ord(half[0]):04X} as its character {half.start() + 1}, half of a'
            " surrogate pair and no character by itself; leave it out"
        )
    if "\0" in text:
        place = text.index("\0") + 1
        raise ValueError(f'"text" has a NUL character as its character {place}; leave it out')
    return Question(
        text, _whole(values, "model", num_models - 1), _whole(values, "seed", _MAX_SEED)
    )


def _json_object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BYTES:
        raise ValueError(
            f"the request has more than the {MAX_BYTES} bytes that are read; shorten the text"
        )
    try:
        values = json.loads(body.decode(), parse_int=_integer)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the body is not UTF-8: byte {error.start + 1} is 0x{body[error.start]:02x};"
            f" send JSON in UTF-8, for example {_EXAMPLE}"
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno},"
            f" of {_shown(error.doc[:_MOST_SHOWN])}; send for example {_EXAMPLE}"
        ) from error
    except RecursionError:
        start = _shortened(body[:99].decode(errors="ignore"))
        raise ValueError(
            f"the body, {start}, is nested too deeply; send for example {_EXAMPLE}"
        ) from None
    if not isinstance(values, dict):
        raise ValueError(f"the body is {_shown(values)}; send an object, for example {_EXAMPLE}")
    return values


def _integer(digits: str) -> float:
    # Python refuses to read thousands of digits; no number here needs as many.
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _whole(values: dict[str, Any], name: str, most: int) -> int:
    value = values.get(name, 0)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as some languages write 3
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        known = f"a whole number from 0 to {most}" if most else "0, the only one"
        raise ValueError(f'"{name}" is {_shown(value)}; send {known}')
    return value


def _shown(value: Any) -> str:
    return _shortened(json.dumps(value))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
