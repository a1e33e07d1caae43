"""Wrong input to the command: one clear line on stderr, the right exit code, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.checkpoint.files import publish, step_name
from pipeline.checkpoint.trainer_state import first_state
from pipeline.cli.commands import COMMANDS
from pipeline.config.run import load_config
from pipeline.train.preflight import check_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pretrain(capsys, monkeypatch, toy_config):
    """pretrain(*arguments) -> (exit code, stdout, stderr); one rank, in this process."""
    before = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: object) -> tuple[int, str, str]:
        config = [] if "--config" in arguments else ["--config", str(toy_config)]
        code = main(["pretrain", *config, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    yield run
    os.environ.clear()
    os.environ.update(before)


def refused(result, code, *names):
    found, out, err = result
    assert (found, out) == (code, ""), err
    assert err.startswith("pretrain: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for name in names:
        assert str(name) in err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--config", "no/such.yaml"], ["no/such.yaml"]),
        (
            ["--config", "configs/model/gpst_tiny.yaml"],
            ["configs/model/gpst_tiny.yaml: describes a model (kind: gpst)", "configs/run/"],
        ),
        (["--config", "configs/finetune/glue_cola.yaml"], ["glue_cola.yaml: unknown field seeds"]),
        (["model.dim=3", "--print-config"], ["model: unknown field dim", "ffn_dim"]),
        (["train.num_stepz=3"], ["train.num_stepz", "train.num_steps"]),
        (["train.num_steps=many"], ["train.num_steps", "many"]),
        (["data.path=no/such/dataset"], ["no/such/dataset", "data_prep build"]),
        (["train.global_batch_contexts=9"], ["9", "micro_batch_contexts_per_rank 2", "1 rank "]),
        (["model.vocab_size=65"], ["model.vocab_size 65", "64"]),
        (["model.hidden_dim=31"], ["hidden_dim", "31"]),
        (["engine.zero_stage=0", "engine.precision=bf16"], ["engine.zero_stage", "bf16"]),
        (["engine.deepspeed={zero_optimisation: {}}"], ["zero_optimisation"]),
        (["--dry-runs"], ["--dry-runs", "--help"]),
        (["--local_rank"], ["--local_rank"]),
    ],
    ids=lambda value: value[0] if value and isinstance(value, list) else "",
)
def test_wrong_configuration_is_one_line(pretrain, arguments, names):
    refused(pretrain(*arguments), 2, *names)


def test_missing_config_option_is_one_line(capsys):
    assert main(["pretrain"]) == 2
    assert "--config is missing" in capsys.readouterr().err


def test_unknown_task_is_one_line(capsys):
    assert main(["pretrian"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "pretrian" in err
    assert "pretrain" in err


def test_an_interruption_while_modules_load_is_one_line():
    script = (
        "import pipeline.cli.commands as commands, os, signal\n"
        "commands.resolve_name = lambda name: os.kill(os.getpid(), signal.SIGINT)\n"
        "commands.COMMANDS['report'].run([])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "report: interrupted\n")


def test_help_names_every_task(capsys):
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(f"\n  {task} " in out for task in COMMANDS)


def test_no_task_is_one_line(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("pipeline: no task is given; known are pretrain, ")


def test_damaged_dataset_is_one_line(pretrain, toy_dataset, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(toy_dataset, damaged)
    shard = damaged / "shard-00000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:-2])
    refused(pretrain(f"data.path={damaged}"), 3, shard.name)


def test_empty_config_file_is_one_line(pretrain, tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.touch()
    refused(pretrain("--config", empty), 2, empty, "empty")


def test_resume_never_refuses_a_run_with_checkpoints(pretrain, tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-000000002").mkdir(parents=True)
    refused(pretrain("checkpoint.resume=never"), 2, "checkpoint.resume", tmp_path / "run")


def test_a_checkpoint_that_is_not_there_is_one_line(pretrain):
    refused(pretrain("checkpoint.resume=no/such/run"), 2, "no/such/run")


def test_another_model_than_the_checkpoints_is_one_line(pretrain, toy_config, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    (folder / ".saving").mkdir(parents=True)
    config = check_run(load_config(toy_config), 1).config
    state = replace(first_state(config, "f" * 64, 1), step=2)
    publish(folder / ".saving", folder / step_name(2), state)
    refused(pretrain("model.composition.dim=32"), 2, "model.composition.dim", 32, 16)


def test_sentences_need_a_tokenizer(pretrain, toy_dataset, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(toy_dataset, bare, ignore=shutil.ignore_patterns("tokenizer"))
    refused(pretrain(f"data.path={bare}", "monitor.sentences=[w1 w2]"), 2, "monitor.sentences")


def test_full_disk_is_said_before_training(pretrain, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refused(pretrain(), 3, "run_dir", "free")


def test_dry_run_prints_the_plan_and_trains_nothing(pretrain, tmp_path):
    code, out, err = pretrain("--dry-run", "engine.zero_stage=2")
    assert (code, err) == (0, "")
    assert "8 contexts a step = 2 a micro-batch x 4 accumulated x 1 rank" in out
    assert "ZeRO 2, fp32" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", [[], ["data.path=not/there/yet"]], ids=["data", "no data"])
def test_dry_run_refuses_a_best_metric_that_is_not_measured(pretrain, data):
    wrong = ["evaluate.every_steps=2", "checkpoint.best_metric=eval/loss"]
    refused(pretrain("--dry-run", *wrong, *data), 2, "checkpoint.best_metric", "eval/loss/token")


def test_dry_run_refuses_a_treebank_that_cannot_be_read(pretrain, tmp_path):
    wrong = ["evaluate.every_steps=2", f"evaluate.treebank={tmp_path / 'none'}"]
    refused(pretrain("--dry-run", *wrong), 3, tmp_path / "none")


def test_printed_config_is_one_that_loads(pretrain, tmp_path):
    code, out, _ = pretrain("--print-config", "train.num_steps=5")
    assert code == 0
    assert yaml.safe_load(out)["train"]["num_steps"] == 5
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert pretrain("--config", again, "--print-config")[1] == out


def test_help_names_the_ways_to_start(pretrain):
    code, out, _ = pretrain("--help")
    assert code == 0
    assert "deepspeed launch/pretrain.sh" in out
    assert "--dry-run" in out
