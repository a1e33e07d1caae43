"""Every command: --help with an example and the exit codes, --quiet, no colours."""

from __future__ import annotations

import io
import sys

import pytest

from pipeline import terminal
from pipeline.config.run import REPOSITORY
from pipeline.monitor.monitor import Monitor

sys.path.insert(0, str(REPOSITORY / "docs" / "generate"))
import reference

COMMANDS = reference.command_list()
WITHOUT_QUIET = {
    "bash launch/evaluate.sh": "lists the evaluations",
    "python -m launch.demo": "says only the address",
    "python -m pipeline report": "prints only what it wrote",
    "python -m pipeline doctor": "prints only its findings",
    "python -m pipeline.treebank": "prints only trees",
    "bash launch/convert.sh": "prints only what it wrote",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_exit_codes_and_no_colours(name):
    _, main, before = COMMANDS[name]
    text = reference.help_of(main, before)
    assert "\033" not in text
    examples = text.lower().split("example:")[1].strip().splitlines()[0]
    assert examples.split()[0] in ("python", "bash", "deepspeed"), examples
    assert "exit codes" in text.lower()
    if not any(name.startswith(other) for other in WITHOUT_QUIET) or "evaluate.sh " in name:
        assert "--quiet" in text


def test_quiet_leaves_out_talk_and_bars(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert terminal.shows_bars()
    terminal.say("hello")
    assert capsys.readouterr().err == "hello\n"
    terminal.be_quiet()
    try:
        terminal.say("hello")
        assert not terminal.shows_bars()
        with terminal.stream() as stream:
            print("lost", file=stream)
        assert capsys.readouterr().err == ""
    finally:
        terminal.be_quiet(False)


def test_a_monitor_writes_lines_and_no_colours_where_it_is_told(tmp_path):
    stream = io.StringIO()
    with Monitor(tmp_path, num_steps=4, stream=stream) as monitor:
        monitor.log_step(1, tokens=8, samples=1, values={"loss": 1.5})
    assert "step 1/4" in stream.getvalue()
    assert "\033" not in stream.getvalue()
