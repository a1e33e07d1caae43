"""The environment's variables: what they may be, and that doctor and runs say the same."""

from __future__ import annotations

import pytest

from pipeline import environment
from pipeline.__main__ import main
from pipeline.doctor import CHECKS
from pipeline.errors import ConfigError

WRONG = [
    *[("OMP_NUM_THREADS", value) for value in ("", "0", "4,2", "abc", "-1", "1.0", " 2")],
    *[("DEEPSPEED_TIMEOUT", value) for value in ("30m", "", "0", "2.5", "-3")],
    *[("LOCAL_SIZE", value) for value in ("abc", "0", "", "2x")],
    *[("MASTER_PORT", value) for value in ("0", "65536", "http", "")],
    *[("DS_ACCELERATOR", value) for value in ("gpu", "", "CPU")],
    *[("GPST_KERNELS", value) for value in ("cuda", "")],
]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DEEPSPEED_ARGS", *{name for name, _ in WRONG})
    for name in names:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_variable_is_one_line_for_a_run_and_for_doctor(
    monkeypatch, capsys, toy_config, tmp_path, name, value
):
    monkeypatch.setenv(name, value)
    for question in ("--print-config", "--dry-run"):
        assert main(["pretrain", "--config", str(toy_config), question]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"pretrain: {name}={value!r}: ")
        assert "unset it" in err
    status, text = CHECKS["variables"](tmp_path)
    assert status == "FAIL"
    assert text == err.removeprefix("pretrain: ").rstrip("\n")


def test_right_variables_are_taken():
    environ = {
        "OMP_NUM_THREADS": "3", "DEEPSPEED_TIMEOUT": "30", "LOCAL_SIZE": "2",
        "MASTER_PORT": "65535", "DS_ACCELERATOR": "cpu", "GPST_KERNELS": "torch",
    }  # fmt: skip
    assert environment.faults(environ) == []
    assert environment.threads(environ) == 3
    assert environment.timeout_minutes(environ) == 30
    assert environment.timeout_minutes({}) == 10
    assert (environment.local_size(environ), environment.local_size({})) == (2, None)


def test_the_kernels_are_those_of_the_model():
    from gpst.kernels import CHOICES

    for name in CHOICES:
        assert environment.kernels({"GPST_KERNELS": name}) == name


LAUNCHER = [
    ("--hostfile {folder}/none", "--hostfile {folder}/none: no such file, and deepspeed would"),
    ("-H {folder}/none --num_gpus 2", "--hostfile {folder}/none: no such file"),
    ("--hostfile {folder}/empty", "Hostfile is empty"),
    ("--hostfile {folder}/bad", "Hostfile contains a bad entry: a slot=2"),
    ("--include localhost:a", "'localhost:a': write HOST, HOST:0,1 or HOST:0@HOST2:1"),
    ("--include localhost:", "'localhost:': write HOST"),
    ("--include nobody:0", "Hostname 'nobody' not found in hostfile"),
    ("--include localhost:7", "No slot '7' specified on host 'localhost'"),
    ("--exclude localhost", "'localhost' leaves no rank"),
    ("--include localhost --exclude localhost:0", "include_str and exclude_str are mutually"),
    ("--include localhost --num_gpus 1", "give --include or --exclude, or else --num_nodes"),
    ("--num_gpus two", "command line: argument --num_gpus: invalid int value: 'two'"),
    ("--include a:0 --include b:0", "command line: --include is given twice"),
]


@pytest.mark.parametrize(("words", "line"), LAUNCHER, ids=[words for words, _ in LAUNCHER])
def test_wrong_options_of_deepspeed_are_one_line(tmp_path, monkeypatch, words, line):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    (tmp_path / "empty").touch()
    (tmp_path / "bad").write_text("a slot=2\n")
    environ = {"DEEPSPEED_ARGS": words.format(folder=tmp_path)}
    with pytest.raises(ConfigError) as caught:
        environment.check_launcher(environ)
    assert str(caught.value).startswith("DEEPSPEED_ARGS: " + line.format(folder=tmp_path))
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("DEEPSPEED_ARGS", environ["DEEPSPEED_ARGS"])
    assert CHECKS["variables"](tmp_path) == ("FAIL", str(caught.value))


def test_right_options_of_deepspeed_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    (tmp_path / "hosts").write_text("# two\na slots=2\nb slots=2\n")
    for words in (
        "",
        "--master_port=29501 --no_ssh",
        "--include localhost:1",
        f"--hostfile {tmp_path}/hosts --include a:0@b",
        f"--hostfile {tmp_path}/hosts --num_nodes 2",
    ):
        environment.check_launcher({"DEEPSPEED_ARGS": words})


def test_an_option_given_twice_is_refused(toy_config, capsys, tmp_path):
    twice = ["--config", str(toy_config)] * 2
    assert main(["pretrain", *twice, "--print-config"]) == 2
    assert capsys.readouterr().err == (
        "pretrain: command line: --config is given twice: give it once (see --help)\n"
    )
    assert main(["finetune", *twice]) == 2
    assert "--config is given twice" in capsys.readouterr().err
    from pipeline.tasks.__main__ import TASKS
    from pipeline.tasks.__main__ import main as evaluate

    for task in TASKS:
        assert evaluate([task, *twice]) == 2
        assert "--config is given twice" in capsys.readouterr().err
