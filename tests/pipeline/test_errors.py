"""Errors that a user can act on: one line and an exit code."""

from __future__ import annotations

import io

import pytest

from data_prep.errors import DataPrepError, UsageError
from pipeline.errors import CheckpointError, ConfigError, DataError, PipelineError, explain, report


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("a: b"), "a: b", 2),
        (DataError("a\n  b"), "a b", 3),
        (CheckpointError("x"), "x", 3),
        (PipelineError("x", exit_code=7), "x", 7),
        (DataPrepError("x"), "x", 3),
        (UsageError("x"), "x", 2),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error, line, code):
    assert explain(error) == (line, code)
    stream = io.StringIO()
    assert report(error, "pretrain", stream) == code
    assert stream.getvalue() == f"pretrain: {line}\n"


def test_an_unexpected_error_keeps_its_traceback():
    error = ZeroDivisionError("x")
    assert explain(error) is None
    with pytest.raises(ZeroDivisionError):
        report(error)
