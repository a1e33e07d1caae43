"""What a client may send, and the line that refuses the rest."""

from __future__ import annotations

import re

import pytest

from gpst.web.questions import MAX_BYTES, Question, read_question

SEEDS = "; send a whole number from 0 to 9223372036854775807"


def test_a_question_has_a_text_and_may_have_more():
    assert read_question(b'{"text": "We"}', 1) == Question("We", 0, 0)
    body = '{"text": "\\ud83d\\ude00 é", "model": 1, "seed": 9223372036854775807, "more": []}'
    assert read_question(body.encode(), 2) == Question("😀 é", 1, 2**63 - 1)
    seed = read_question(b'{"text": "We", "seed": 3.0}', 1).seed
    assert (seed, type(seed)) == (3, int)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", 'the body is not JSON: Expecting value at line 1, column 1, of ""; send for example'),
        (b'{"text"', 'at line 1, column 8, of "{\\"text\\""; send for example'),
        (b"[3]", "the body is [3]; send an object, for example"),
        (b"[" * 100_000, "[[[[…, is nested too deeply; send for example"),
        (b'{"text": "\xff"}', "the body is not UTF-8: byte 11 is 0xff; send JSON in UTF-8"),
        (b"{}", '"text" is missing; send for example {"text": "We must act."}'),
        (b'{"text": 3}', '"text" is 3; send a string, for example'),
        (b'{"text": null}', '"text" is null; send a string, for example'),
        (b'{"text": "a\\u0000b"}', '"text" has a NUL character as its character 2; leave it out'),
        (b'{"text": "a\\ud800"}', '"text" has U+D800 as its character 2, half of a surrogate pair'),
        (b'{"text": "a", "model": 2}', '"model" is 2; send a whole number from 0 to 1'),
        (b'{"text": "a", "model": "gpst"}', '"model" is "gpst"; send a whole number from 0 to 1'),
        (b'{"text": "a", "seed": -1}', f'"seed" is -1{SEEDS}'),
        (b'{"text": "a", "seed": 9223372036854775808}', f'"seed" is 9223372036854775808{SEEDS}'),
        (b'{"text": "a", "seed": NaN}', f'"seed" is NaN{SEEDS}'),
        (b'{"text": "a", "seed": 1e400}', f'"seed" is Infinity{SEEDS}'),
        (b'{"text": "a", "seed": 2.5}', f'"seed" is 2.5{SEEDS}'),
        (b'{"text": "a", "seed": true}', f'"seed" is true{SEEDS}'),
        (b'{"text": "a", "seed": "1"}', f'"seed" is "1"{SEEDS}'),
        (b'{"text": "a", "seed": ' + b"9" * 5000 + b"}", f'"seed" is Infinity{SEEDS}'),
        (b'{"text": "a", "seed": ' + b"9" * 90 + b"}", f'"seed" is {"9" * 40}…{SEEDS}'),
        (b" " * (MAX_BYTES + 1), "the request has more than the 16777216 bytes that are read"),
    ],
    ids=range(22),
)
def test_what_is_wrong_is_one_line(body, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_question(body, 2)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 250
    assert "; " in str(refused.value)
