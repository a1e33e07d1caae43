"""What every wrong use of a command gives: one line."""

from __future__ import annotations


def check(result: tuple[int, str, str], code: int, *messages: str) -> None:
    """The exit code, a single line of error, and what it says."""
    assert result[0] == code, result
    lines = result[2].splitlines()
    assert len(lines) == 1, result[2]
    assert lines[0].startswith("error: ")
    for message in messages:
        assert message in lines[0]
