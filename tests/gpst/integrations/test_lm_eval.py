"""lm-evaluation-harness on a tiny local task, without a network."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

DEMO = Path(__file__).parents[3] / "launch" / "demo_model" / "gpst"
# The harness and what it imports are not as clean as this project.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(exported):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gpst.integrations.lm_eval import HarnessModel
    return HarnessModel(str(exported), beam=5, device="cpu")


def requests(kind: str, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


def test_likelihoods_add_up(model):
    text = "The old man sailed. She saw"
    pairs = requests(
        "loglikelihood",
        ("", text),
        ("The old man sailed.", " She saw"),
        ("The old man sailed. ", "She saw"),
    )  # fmt: skip
    (whole, _), (rest, _), (spaced, _) = model.loglikelihood(pairs, disable_tqdm=True)
    assert rest == pytest.approx(spaced, rel=1e-6)
    [rolled] = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)), True)
    assert rolled == pytest.approx(whole, abs=1e-4)
    # The first sentence's tokens, read in the whole text.
    bits = [word.bits for word in model.gpst.surprisal(text, beam=5)]
    assert whole == pytest.approx(-math.log(2.0) * sum(bits), abs=1e-4)
    words = len(model.gpst.codec.sentences("The old man sailed.")[0].words)
    assert whole - rest == pytest.approx(-math.log(2.0) * sum(bits[:words]), abs=1e-4)
    assert -200 < whole < rest < 0


def test_an_empty_continuation_is_certain_and_a_space_is_what_its_tokens_say(model):
    pairs = requests("loglikelihood", ("The man", ""), ("", ""), ("The man", " "), ("The", " man"))
    nothing, neither, (space, _), (word, _) = model.loglikelihood(pairs, disable_tqdm=True)
    assert nothing == neither == (0.0, True)
    [with_space, without] = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", ("The man ",), ("The man",)), True
    )
    assert space == pytest.approx(with_space - without, abs=1e-4)
    assert space < -1
    assert word < -1


@pytest.fixture
def wordpiece():
    from gpst.integrations.lm_eval import HarnessModel

    return HarnessModel(str(DEMO), beam=2, device="cpu")


def test_a_space_that_has_no_tokens_is_certain(wordpiece):
    pairs = requests("loglikelihood", ("We must", " "), ("We must", " act"))
    space, (word, _) = wordpiece.loglikelihood(pairs, disable_tqdm=True)
    assert space == (0.0, True)
    assert word < -1


def test_what_is_written_greedily_is_greedy(model):
    given = requests("generate_until", ("The man", {"until": [], "max_gen_toks": 6}))
    [text] = model.generate_until(given, disable_tqdm=True)
    assert text
    stop = text[2]
    [cut] = model.generate_until(
        requests("generate_until", ("The man", {"until": [stop], "max_gen_toks": 6})), True
    )
    assert cut == text[: text.index(stop)]
    from gpst.search.sampling import Sampling

    context = [*model._sentences("The man")]
    tokens = model._write(context, 3, Sampling(temperature=0.0))
    other = [tokens[0], (tokens[1] + 1) % 300, tokens[2]]
    greedy, not_greedy = model._scores(
        [[[*context[0], *tokens]], [[*context[0], *other]]], True, compare=True
    )
    assert greedy.most_probable[-3:].all()
    assert not_greedy.most_probable[-3:].tolist()[:2] == [True, False]


@pytest.mark.parametrize(("piece", "text"), [("##ly", "ly"), ("the", " the")])
def test_what_is_written_goes_on_from_the_context(monkeypatch, wordpiece, piece, text):
    """A piece that goes on with a word has no mark of that, and another word has its space."""
    token = wordpiece.gpst.codec.tokenizer.token_to_id(piece)
    monkeypatch.setattr(wordpiece, "_write", lambda *_: [token])
    assert wordpiece.generate_until(requests("generate_until", ("quick", {})), True) == [text]
    nothing = requests("generate_until", ("quick", {"max_gen_toks": 0}))
    assert wordpiece.generate_until(nothing, True) == [""]


def test_samples_of_one_request_differ_and_can_be_drawn_again(model):
    options = {"until": [], "max_gen_toks": 8, "do_sample": True}
    given = requests("generate_until", *[("The man", options)] * 3)
    torch.manual_seed(0)
    written = model.generate_until(given, True)
    assert len(set(written)) > 1
    torch.manual_seed(0)
    assert model.generate_until(given, True) == written


def test_more_tokens_than_a_context_has_are_said_to_be_too_many(model, capsys):
    given = ("The man", {"until": [], "max_gen_toks": model.limit + 7})
    model.generate_until(requests("generate_until", given, given), True)
    said = f"max_gen_toks {model.limit + 7}: the model takes {model.limit} tokens in all"
    assert capsys.readouterr().err.count(said) == 1


def test_long_texts(model):
    long = "The boats of the old man. " * 30
    [rolled] = model.loglikelihood_rolling(requests("loglikelihood_rolling", (long,)), True)
    assert np.isfinite(rolled)
    assert rolled < -100
    [(log_p, _)] = model.loglikelihood(requests("loglikelihood", (long, "boats")), True)
    assert -60 < log_p < 0
    with pytest.raises(ValueError, match="a continuation has"):
        model.loglikelihood(requests("loglikelihood", ("", long)), True)


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("pretrained=nowhere", 2, "model nowhere does not exist; give a folder that"),
        ("", 2, "model_args: pretrained=DIR is missing"),
        ("pretrained=MODEL,beams=3", 2, "model_args: 'beams' is not known; known are pretrained"),
        ("pretrained=MODEL,beam=0", 2, "model_args: beam=0 is no whole number of at least 1"),
        ("pretrained=MODEL,dtype=fp8", 2, "model_args: dtype: 'fp8' is not allowed"),
    ],
)
def test_bad_arguments_are_one_line(exported, monkeypatch, capsys, given, code, message):
    from lm_eval.api.registry import get_model

    from gpst.integrations import lm_eval

    def evaluate() -> None:  # what the harness' command does first
        arguments = given.replace("MODEL", str(exported))
        get_model("gpst").create_from_arg_string(
            arguments, {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
        )

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", evaluate)
    assert lm_eval.main() == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    given, message, code = "pretrained=MODEL,beam=3", "", 0
    assert lm_eval.main() == 0  # and nobody needs a GPU for what the harness asks for


def test_the_command_runs_and_says_what_is_missing(exported, tmp_path):
    root = Path(__file__).parents[3]
    blocked = "import runpy, sys; sys.modules['lm_eval'] = None; "
    start = "runpy.run_module('gpst.integrations.lm_eval', run_name='__main__', alter_sys=True)"
    for code, given, expected in (
        (blocked + start, [], (2, "harness: lm_eval is missing; pip install 'gpst[eval]'\n")),
        ("import runpy, sys; " + start, ["--help"], (0, "")),
    ):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *given],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == expected


def test_a_local_task_runs_from_end_to_end(model, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = [
        {"text": "The old man", "choices": [" sailed the boats", " qqqq zzzz xxxx"], "gold": 0},
        {"text": "They saw", "choices": [" !!!! ???? zzzz", " the cats"], "gold": 1},
    ]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "toy.yaml").write_text(
        "task: gpst_toy\n"
        "dataset_path: json\n"
        "dataset_kwargs:\n"
        f"  cache_dir: '{tmp_path}'\n"
        f"  data_files: {{test: '{tmp_path}/rows.json'}}\n"
        "test_split: test\n"
        "output_type: multiple_choice\n"
        "doc_to_text: '{{text}}'\n"
        "doc_to_choice: choices\n"
        "doc_to_target: gold\n"
        "target_delimiter: ''\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = simple_evaluate(model, tasks=["gpst_toy"], task_manager=tasks, bootstrap_iters=0)
    assert found["results"]["gpst_toy"]["acc,none"] == 1.0  # short ones are likelier
    assert found["n-samples"]["gpst_toy"]["effective"] == 2
