"""launch/convert.sh: an exported model starts a run, the authors' weights become ours, inspect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from reference_layout import HEADS, V, layout, random_tensors

from gpst import GPST
from gpst.config import config_from_dict
from gpst.export.huggingface import export, open_model
from gpst.model.build import build_model
from pipeline.checkpoint.manager import load_init_weights
from pipeline.cli import convert
from pipeline.config.run import load_config

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def exported(tmp_path, toy_dataset, toy_run):
    config = config_from_dict(
        toy_run(tmp_path / "run")["model"] | {"vocab_size": 64, "bos_token_id": 0}
    )
    torch.manual_seed(0)
    export(
        tmp_path / "exported",
        config,
        build_model(config).state_dict(),
        toy_dataset / "tokenizer",
        None,
    )
    return tmp_path / "exported"


def run(capsys, *argv) -> tuple[int, str, str]:
    code = convert.main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_exported_model_starts_a_run(tmp_path, exported, toy_dataset, capsys):
    arguments = ("--data", toy_dataset, "--run-dir", tmp_path / "new", "--context-tokens", 64)
    code, out, err = run(capsys, "from-hf", exported, tmp_path / "run.yaml", *arguments)
    assert (code, err) == (0, "")
    assert "launch/pretrain.sh" in out
    config = load_config(str(tmp_path / "run.yaml"), [])
    values = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert values["data"]["context_tokens"] == 32  # no more than the model takes
    model = build_model(config_from_dict(values["model"]))
    load_init_weights(model, config.checkpoint.init_from)
    for name, tensor in open_model(exported).weights().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    code, _, err = run(capsys, "from-hf", exported, tmp_path / "run.yaml", *arguments)
    assert code == 2
    assert "run.yaml exists" in err
    (exported / "model.safetensors").write_bytes(b"no weights")
    code, _, err = run(capsys, "from-hf", exported, tmp_path / "b.yaml", *arguments)
    assert code == 3
    assert "model.safetensors" in err
    assert err.count("\n") == 1


def test_the_authors_weights_become_a_model_with_a_report(tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(V - 1)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "tokenizer").mkdir()
    words.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    special = json.dumps({"bos_token": "w3", "eos_token": "w3"})
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(special)
    given = ("--tokenizer", tmp_path / "tokenizer", "--bos-token-id", 3, "--num-heads", *HEADS)
    torch.save(random_tensors(), tmp_path / "model.bin")
    code, out, err = run(
        capsys, "from-reference", tmp_path / "model.bin", tmp_path / "ours", *given
    )
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["theirs", "shape", "ours", "how"]
    assert {row[0] for row in rows[1:]} == set(layout())
    assert ["down_scale.bias", "8", "scaling.down.bias", "copied"] in rows
    assert "w4" in GPST.from_pretrained(tmp_path / "ours").parse("w4 w1 w7").words
    part = dict(list(random_tensors().items())[5:])
    torch.save(part, tmp_path / "part.bin")
    for name, message in (("part.bin", "is missing"), ("none.bin", "is no file")):
        code, out, err = run(capsys, "from-reference", tmp_path / name, tmp_path / "x", *given)
        assert (code, out) == (3, "")
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "x").exists()


def test_inspect_says_what_is_there(tmp_path, exported, capsys):
    code, out, _ = run(capsys, "inspect", exported, "--tensors")
    weights = open_model(exported).weights()
    assert code == 0
    assert f"parameters: {sum(t.numel() for t in weights.values()):,}" in out
    assert "kind: gpst" in out
    assert "not finite: none" in out
    assert "embedding.weight\t64x32\ttorch.float32" in out
    for path, expected, message in (
        (tmp_path / "none", 2, "no such folder"),
        (tmp_path, 3, "no checkpoint"),
    ):
        code, out, err = run(capsys, "inspect", path)
        assert (code, out) == (expected, "")
        assert message in err
    values = json.loads((exported / "config.json").read_text())
    (exported / "config.json").write_text(json.dumps(values | {"model_type": "bert"}))
    code, out, err = run(capsys, "inspect", exported)
    assert (code, out) == (3, "")
    assert "'bert'" in err


def test_a_reader_that_stops_is_no_fault(exported):
    script = f'exec "{sys.executable}" -m pipeline convert inspect "{exported}" --tensors'
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
