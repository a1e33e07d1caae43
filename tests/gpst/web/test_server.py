"""The web page's interface by HTTP."""

from __future__ import annotations

import json
import math
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gpst.tree import Tree
from gpst.web.server import PAGE, Limits, create_app, main

ROOT = Path(__file__).parents[3]
TEXT = "Dogs <b> bark."


def ask(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status, and the events or the values of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            if "ndjson" in reply.headers["Content-Type"]:
                return reply.status, [json.loads(line) for line in reply]
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def tree_of(actions: str, text: dict[str, Any]) -> str:
    tree = Tree.from_actions(["gc".index(action) for action in actions])
    return tree.contract(text["word_of_piece"]).brackets(text["words"])


def test_an_analysis_is_what_the_commands_say(address, model, beam):
    code, events = ask(address, "/api/analyse", {"text": f"  {TEXT}", "model": 1})
    assert code == 200
    assert events[-1] == {"event": "end"}
    text, pieces = events[0], of_kind(events, "piece")
    assert text["words"] == ["Dogs", "<", "b", ">", "bark", "."]
    assert (len(text["pieces"]), text["sentence_lengths"]) == (len(pieces), [6])
    bits = [0.0] * 6
    for word, piece in zip(text["word_of_piece"], pieces, strict=True):
        bits[word] += piece["bits"]
        assert piece["bits"] == pytest.approx(-math.log2(piece["p"]), abs=1e-4)
        shown = [p for _, _, p in piece["expected"]]
        assert shown == sorted(shown, reverse=True)
        assert (piece["rank"] <= len(shown)) == (piece["p"] >= shown[-1])
    assert bits == pytest.approx(
        [word.bits for word in model.surprisal([TEXT], beam=beam)], abs=1e-3
    )
    [inside] = of_kind(events, "inside")
    assert tree_of(inside["actions"], text) == str(model.parse(TEXT))
    prefixes = of_kind(events, "prefix")
    assert [prefix["pieces"] for prefix in prefixes] == list(range(1, len(pieces) + 2))
    for prefix in prefixes:
        assert sum(p for p, _ in prefix["trees"]) == pytest.approx(1)
        assert all(a.count("g") == min(prefix["pieces"], len(pieces)) for _, a in prefix["trees"])
    best = prefixes[-1]["trees"][0][1]
    assert tree_of(best, text) == str(model.parse(TEXT, "left-to-right", beam=beam))
    [following] = of_kind(events, "next")
    assert 0 < sum(p for _, _, p in following["expected"]) <= 1


def test_sentences_follow_each_other(address, model, beam):
    _, events = ask(address, "/api/analyse", {"text": "A b. Cd."})
    assert events[0]["sentence_lengths"] == [3, 2]
    bits = sum(piece["bits"] for piece in of_kind(events, "piece"))
    both = model.surprisals([["A b.", "Cd."]], beam=beam)[0]
    assert bits == pytest.approx(sum(w.bits for s in both for w in s), abs=1e-3)
    assert of_kind(events, "prefix")[-1]["trees"][0][1].count("c") == 4 + 3


@pytest.mark.parametrize("text", ["A", "A b. C"])
def test_the_trees_of_a_last_sentence_of_one_token_are_finished(address, text):
    _, events = ask(address, "/api/analyse", {"text": text})
    pieces = len(of_kind(events, "piece"))
    prefixes = of_kind(events, "prefix")
    assert [prefix["pieces"] for prefix in prefixes] == list(range(1, pieces + 2))
    number = len(events[0]["sentence_lengths"])
    assert prefixes[-1]["trees"][0][1].count("c") == pieces - number


def test_continuations_stream(address, monkeypatch):
    monkeypatch.setattr("gpst.web.analysis._MAX_NEW_TOKENS", 12)
    found = [ask(address, "/api/continue", {"text": TEXT, "seed": seed})[1] for seed in (1, 1, 2)]
    texts = ["".join(event["text"] for event in of_kind(events, "written")) for events in found]
    assert len(of_kind(found[0], "written")) > 4
    assert texts[0] == texts[1] != texts[2]


def test_what_is_too_long_or_wrong_is_refused(address):
    for body, message in (
        ({"text": "a" * 400}, "the text has 401 word pieces, and at most 128 are read here"),
        ({"text": " \n"}, "write a sentence first"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"text": "a", "model": 2}, '"model" is 2; send a whole number from 0 to 1'),
        ({"text": "a", "seed": 2**64}, f'"seed" is {2**64}; send a whole number from 0 to'),
        ({"text": "a", "seed": math.nan}, '"seed" is NaN; send a whole number from 0 to'),
        ({"words": 3}, '"text" is missing; send for example'),
    ):
        for path in ("/api/analyse", "/api/continue"):
            code, found = ask(address, path, body)
            assert code == 422
            assert message in found["error"]
    code, found = ask(address, "/api/analyze", {"text": "a"})
    assert code == 404
    assert found["error"].startswith("POST /api/analyze is not here; there are GET /, ")
    assert ask(address, "/api/analyse")[0] == 404  # GET
    assert ask(address, "/api/models")[1]["models"] == ["first", "second"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address + "/../pyproject.toml", timeout=10)
    assert refused.value.code == 404
    refused.value.close()


def test_a_text_of_a_million_letters_is_refused_before_its_words_are_looked_for(
    address, model, monkeypatch
):
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("tokenised")

    monkeypatch.setattr(type(model.codec), "sentences", never)
    code, found = ask(address, "/api/analyse", {"text": "a " * 500_000})
    assert code == 422
    message = "the text has 1000000 characters, and at most 6400 are read here; shorten it"
    assert found["error"] == message


def test_a_client_that_hangs_up_frees_the_model(model, serving, free_port, monkeypatch):
    ended = Event()

    def endless(model: Any, sentences: Any, beam: int, emit: Any) -> None:
        try:
            while True:
                time.sleep(0.01)
                emit({"event": "step"})
        finally:
            ended.set()

    monkeypatch.setattr("gpst.web.analysis.analyse", endless)
    with serving(create_app({"one": model}, Limits(seconds=1e9)), free_port()) as url:
        body = json.dumps({"text": "a"}).encode()
        request = urllib.request.Request(
            url + "/api/analyse", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.loads(reply.readline()) == {"event": "step"}
        assert ended.wait(60)


def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--model", "nowhere", "--port", port]) == 2
    error = capsys.readouterr().err
    message = f"demo: --host 127.0.0.1 --port {port}: cannot listen there (Address already in use)"
    assert error == message + "\n"


def test_an_interruption_ends_it_with_one_line(exported, free_port):
    port = str(free_port())
    command = [sys.executable, "-W", "ignore", "-m", "launch.demo", "--model", exported]
    with subprocess.Popen(
        [*command, "--port", port], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"http://127.0.0.1:{port}\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "demo: interrupted\n"
    assert process.returncode == 130


def test_the_page_needs_nothing_from_elsewhere():
    page = PAGE.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=\"(?!data:)", page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "--port", "0"], "model nowhere does not exist"),
        ([], "--model is missing: name a folder that launch/convert.sh to-hf has made"),
        (["--model", "x", "--port", "99999"], "'99999' is not a port: a number from 0 to 65535"),
        (["--model", "x", "--port", "-1"], "'-1' is not a port"),
        (["--model", "x", "--max-tokens", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_a_wrong_call_is_one_line(capsys, arguments, message):
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
