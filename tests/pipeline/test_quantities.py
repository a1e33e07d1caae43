"""Bytes in words: never 0.0 of a unit for what is there."""

from __future__ import annotations

import pytest

from pipeline.quantities import in_words


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023.4 * 1024, "1023 KiB"),
        (1023.6 * 1024, "1 MiB"),
        (99.94 * 2**20, "99.9 MiB"),
        (99.96 * 2**20, "100 MiB"),
        (9.996 * 2**20, "10 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (1.25 * 2**30, "1.25 GiB"),
        (80 * 2**30, "80 GiB"),
        (73.6 * 2**30, "73.6 GiB"),
        (5000 * 2**30, "5000 GiB"),
    ],
)
def test_three_digits_in_the_largest_unit(num_bytes, words):
    assert in_words(num_bytes) == words
