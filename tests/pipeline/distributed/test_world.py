"""Two real ranks (gloo): they meet, talk, fail together with one message, and end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("worker_world.py")
pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def results():
    """mode -> ((exit code, stderr) of rank 0, (exit code, stderr) of rank 1, seconds)."""
    done = subprocess.run(
        [sys.executable, str(WORKER)], capture_output=True, text=True, timeout=600, check=True
    )
    found = json.loads(done.stdout)
    return {
        mode: ((code_0, err_0), (code_1, err_1), max(s_0, s_1))
        for mode, ((code_0, err_0, s_0), (code_1, err_1, s_1)) in found.items()
    }


def test_ranks_talk_and_part(results):
    assert results["well"][:2] == ((5, ""), (5, ""))


def test_user_error_in_preparation_is_one_line_in_all(results):
    line = "pretrain: seed: -1 is not allowed\n"
    assert results["prepare"][:2] == ((2, line), (2, ""))


def test_user_error_of_a_later_rank_is_one_line_in_all(results):
    line = "pretrain (rank 1): shard-00000 is damaged\n"
    assert results["data"][:2] == ((3, ""), (3, line))


def test_bug_of_one_rank_shows_its_traceback_and_ends_the_other(results):
    rank_0, (code_1, err_1), _ = results["bug"]
    assert (rank_0, code_1) == ((1, ""), 1)
    assert "Traceback" in err_1
    assert err_1.endswith("pretrain (rank 1): KeyError: 'a bug'\n")


def test_killed_rank_is_noticed(results):
    (code_0, err_0), rank_1, _ = results["killed"]
    assert (code_0, rank_1) == (1, (-9, ""))
    assert err_0.startswith("pretrain: another rank died or lost its connection")
    assert err_0.count("\n") == 1


def test_rank_outside_of_collectives_is_ended_too(results):
    (code_0, err_0), (code_1, _), seconds = results["busy"]
    assert (code_0, err_0, code_1) == (3, "", 3)
    assert seconds < 30
