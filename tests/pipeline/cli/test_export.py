"""Checkpoints of every ZeRO stage become exported models: memory, card, and a run that goes on."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from episodes import play, python
from safetensors.torch import load_file

from gpst import GPST
from gpst.export.huggingface import open_model
from gpst.model.build import build_model
from pipeline.checkpoint.files import list_checkpoints, whole_checkpoint
from pipeline.checkpoint.manager import load_init_weights, load_model_weights
from pipeline.cli import convert, model_commands
from pipeline.config.run import load_config
from pipeline.evaluate.load_model import find_model, load_model

BIG = ("hidden_dim=384", "ffn_dim=1536", "num_token_layers=3")
PEAK = """
import ctypes, gc, re, sys
from pathlib import Path
from pipeline.cli import convert

def bytes_of(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

tokenizer, small, *big = sys.argv[1:]
given = ["--tokenizer", tokenizer]
assert convert.main(["to-hf", small, small + "-exported", *given]) == 0  # all that is imported
for run in big:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the run before left would hide what this one takes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = bytes_of("VmRSS")
    assert convert.main(["to-hf", run, run + "-exported", *given]) == 0
    print(bytes_of("VmHWM") - before)
"""


@pytest.fixture
def tokenizer(toy_dataset, tmp_path) -> Path:
    """The toy tokenizer with a token that begins and ends a document."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(toy_dataset / "tokenizer", folder)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "w0", "eos_token": "w0"}')
    return folder


@pytest.mark.slow
@pytest.mark.dist
def test_every_stage_is_exported_in_little_memory(toy_config, tokenizer, tmp_path):
    big = [f"model.{change}" for change in BIG] + ["train.stop_at_step=1"]
    runs = [tmp_path / f"stage{stage}" for stage in (2, 3)]
    given: list[dict[str, Any]] = [
        {
            "overrides": ["train.stop_at_step=1", f"engine.zero_stage={stage}",
                          f"run_dir={tmp_path / name}"],
        }
        for name, stage in (("small", 1), ("plain", 0))
    ]  # fmt: skip
    for stage, run in enumerate(runs, 2):
        own = [f"engine.zero_stage={stage}", f"run_dir={run}"]
        given.append({"ranks": 2, "overrides": big + own})
    seen = play(tmp_path, toy_config, given)
    assert {code for one in seen for code in one["codes"]} == {0}, seen
    peaks = python(["-c", PEAK, str(tokenizer), str(tmp_path / "small"), *map(str, runs)]).split()
    for run, peak in zip(runs, peaks, strict=True):
        weights = load_model_weights(run)[1]
        exported = load_file(f"{run}-exported/model.safetensors")
        assert exported.keys() == {"gpst." + name for name in weights}
        assert all(torch.equal(exported["gpst." + n], w) for n, w in weights.items())
        size = sum(w.numel() * w.element_size() for w in weights.values())
        assert size > 25e6
        # The weights read, the pages of the checkpoint that hold them, and what was written,
        # read back; Adam's moments alone would be twice the size more.
        assert int(peak) < 3 * size + 10e6, (run.name, int(peak) / size)
    plain = tmp_path / "plain"
    assert (
        convert.main(["to-hf", f"{plain}", f"{plain}-exported", "--tokenizer", f"{tokenizer}"]) == 0
    )
    half = tmp_path / "bf16"
    given = ["to-hf", f"{plain}", f"{half}", "--tokenizer", f"{tokenizer}", "--dtype", "bf16"]
    assert convert.main(given) == 0
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    weights = load_model_weights(plain)[1]
    rounded = open_model(half).weights()  # read back in fp32
    for stored, value in load_file(half / "model.safetensors").items():
        name = stored.removeprefix("gpst.")
        assert value.dtype == torch.bfloat16
        assert torch.equal(rounded[name], weights[name].bfloat16().float())
    for run in (tmp_path / "small", plain):
        exported = load_file(f"{run}-exported/model.safetensors")
        weights = load_model_weights(run)[1]
        assert all(torch.equal(exported["gpst." + n], w) for n, w in weights.items())


def check_pointers(run: Path, tokenizer: Path, tmp_path: Path, capsys) -> None:
    """`latest` and `best` stand wherever a checkpoint, a run or a model can."""
    earlier, last = list_checkpoints(run / "checkpoints")
    best, latest = run / "checkpoints" / "best", run / "checkpoints" / "latest"
    best.write_text(earlier.name + "\n")
    expected = load_model_weights(earlier)[1]

    def same(weights: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(weights[name], value) for name, value in expected.items())

    given = ["to-hf", str(best), str(tmp_path / "best"), "--tokenizer", str(tokenizer)]
    assert convert.main(given) == 0
    assert same(open_model(tmp_path / "best").weights())
    capsys.readouterr()
    for pointer, named in ((best, earlier), (latest, last)):
        assert convert.main(["inspect", str(pointer)]) == 0
        assert f"checkpoint: {named} (whole)" in capsys.readouterr().out
    data = yaml.safe_load(Path(run / "config.yaml").read_text())["data"]["path"]
    given = ["from-hf", str(best), str(tmp_path / "best.yaml"), "--data", data]
    assert convert.main([*given, "--run-dir", str(tmp_path / "next")]) == 0
    source = load_config(tmp_path / "best.yaml").checkpoint.init_from
    assert source == str(earlier.resolve())
    for path in (best, earlier):
        model = build_model(find_model(path).config)
        load_init_weights(model, str(path))
        assert same(model.state_dict())
        assert same(load_model(path, "cpu").model.state_dict())
    # Commands on models: the run's dataset has their tokenizer.
    shutil.copy(tokenizer / "tokenizer_config.json", Path(data) / "tokenizer")
    (tmp_path / "text").write_text("w1 w2 w3\n")
    capsys.readouterr()
    outputs = {}
    for path in (tmp_path / "best", best, earlier, latest, run):
        for name, more in (
            ("parse", ["--format", "bracket", str(tmp_path / "text")]),
            ("generate", ["--prompt", "w1", "--max-new-tokens", "3"]),
            ("surprisal", [str(tmp_path / "text")]),
        ):
            assert model_commands.main([name, "--model", str(path), *more]) == 0
            outputs[path, name] = capsys.readouterr().out
            one = tmp_path / "best" if path in (best, earlier) else path
            assert outputs[path, name] == outputs[one, name] != ""
    assert outputs[latest, "surprisal"] == outputs[run, "surprisal"]
    assert outputs[latest, "surprisal"] != outputs[best, "surprisal"]
    served: list[GPST] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "gpst.web.server.create_app", lambda models, limits: served.extend(models.values())
        )
        patch.setattr("uvicorn.Server.run", lambda *_, **__: None)
        # Of this process: a library's own configuration of logging would close it.
        patch.setattr(other := logging.StreamHandler(), "close", lambda: pytest.fail("closed"))
        assert model_commands.main(["demo", "--model", str(best), "--port", "0"]) == 0
    other.close()
    assert same(served[0].model.state_dict())
    best.write_text("step-000000099\n")
    assert convert.main(["inspect", str(best)]) == 2
    assert "step-000000099: no such folder" in capsys.readouterr().err
    best.unlink()
    assert convert.main(["inspect", str(best)]) != 0
    error = capsys.readouterr().err
    assert "no best checkpoint is kept" in error
    assert str(latest) in error
    (Path(data) / "tokenizer" / "tokenizer_config.json").unlink()


@pytest.mark.dist
def test_what_a_run_exports_starts_another_run(toy_config, tokenizer, tmp_path, capsys):
    sentence = "w1 w2 w3 w1 w5"
    values = yaml.safe_load(toy_config.read_text())
    values["monitor"] |= {"sample_every_steps": 1, "sentences": [sentence]}
    toy_config.write_text(yaml.safe_dump(values))
    run, new = tmp_path / "run", tmp_path / "new"
    [seen] = play(
        tmp_path, toy_config,
        [{"ranks": 2, "overrides": ["engine.zero_stage=3", "train.stop_at_step=4"]}],
    )  # fmt: skip
    assert seen["codes"] == [0, 0], seen
    earlier, last = list_checkpoints(run / "checkpoints")
    for source, out in ((run, tmp_path / "out"), (earlier, tmp_path / "early")):
        given = ["to-hf", str(source), str(out)]
        assert convert.main([*given, "--tokenizer", str(tokenizer)]) == 0

    check_pointers(run, tokenizer, tmp_path, capsys)
    assert convert.main(["to-hf", str(run), str(tmp_path / "x")]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "has no bos_token that is known; name bos_token and eos_token in" in err
    assert "tokenizer_config.json" in err

    # The card says what the run wrote, as far as the checkpoint goes.
    card = (tmp_path / "out" / "README.md").read_text()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trees = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in metrics if "loss" in line}
    data = Path(values["data"]["path"]).name
    parameters = sum(w.numel() for w in load_model_weights(run)[1].values())
    assert f"{parameters:,} parameters, trained from scratch on `{data}`" in card
    assert "contexts of 32 tokens, 8 a step, planned for 8 steps" in card
    assert yaml.safe_load(card.split("---")[1])["license"] == "apache-2.0"
    early = (tmp_path / "early" / "README.md").read_text()
    for text, checkpoint in ((card, last), (early, earlier)):
        state = whole_checkpoint(checkpoint)[1]
        assert f"| step | {state.step} |" in text
        assert f"| tokens | {state.tokens:,} |" in text
        assert f"| loss | {losses[state.step]:.6g} |" in text
        [shown] = next(line["trees"] for line in trees if line["step"] == state.step)
        assert f"```\n{shown}\n```" in text
        assert set(re.findall(r"w\d+", shown)) == set(sentence.split())
    assert "w1" in GPST.from_pretrained(tmp_path / "out").parse(sentence).words

    # An exported model starts a run, which trains from its weights.
    arguments = ["--data", values["data"]["path"], "--run-dir", str(new), "--num-steps", "2",
                 "--context-tokens", "32"]  # fmt: skip
    following = tmp_path / "next.yaml"
    assert convert.main(["from-hf", str(tmp_path / "out"), str(following), *arguments]) == 0
    capsys.readouterr()
    still = "optim={learning_rate: 0.0, parser_learning_rate: 0.0}"
    quick = ["train.global_batch_contexts=4", "monitor.log_every_steps=1"]
    stays, moves = play(
        tmp_path, following,
        [{"overrides": [*quick, still, f"run_dir={tmp_path / 'still'}"]}, {"overrides": quick}],
    )  # fmt: skip
    assert (stays["codes"], moves["codes"]) == ([0], [0]), (stays, moves)
    begun, given = load_model_weights(tmp_path / "still")[1], load_model_weights(run)[1]
    assert all(torch.equal(begun[name], weight) for name, weight in given.items())
    assert whole_checkpoint(new)[1].step == 2
    after = load_model_weights(new)[1]
    assert not torch.equal(after["embedding.weight"], given["embedding.weight"])
