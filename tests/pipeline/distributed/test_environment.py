"""The environment's variables: what they may be, and that doctor and runs say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.cli.doctor import CHECKS
from pipeline.distributed import deepspeed_options, environment
from pipeline.distributed.placement import find_placement
from pipeline.errors import ConfigError

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"
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
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DEEPSPEED_ARGS", "CUDA_VISIBLE_DEVICES")
    names += tuple({name for name, _ in WRONG})
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
    assert environment.problems(environ) == []
    assert environment.threads(environ) == 3
    assert environment.timeout_minutes(environ) == 30
    assert environment.timeout_minutes({}) == 10
    assert (environment.local_size(environ), environment.local_size({})) == (2, None)


def test_the_kernels_are_those_of_the_model():
    from gpst.kernels.choice import CHOICES

    for name in CHOICES:
        assert environment.kernels({"GPST_KERNELS": name}) == name


LAUNCHER = [
    ("--hostfile {folder}/none", "--hostfile {folder}/none: no such file, and deepspeed would"),
    ("-H {folder}/none --num_gpus 2", "--hostfile {folder}/none: no such file"),
    ("--hostfile {folder}/empty", "Hostfile is empty"),
    ("--hostfile {folder}/zero", "--hostfile {folder}/zero: b slots=0, which deepspeed leaves out"),
    ("--hostfile {folder}/twice", "Hostfile contains multiple entries for a"),
    ("--hostfile {folder}/one", "--hostfile {folder}/one has one machine, elsewhere.invalid, and"),
    ("--hostfile {folder}/two", "no program pdsh here, with which deepspeed reaches a, b: install"),
    ("--hostfile {folder}/two --num_nodes 1", "--hostfile {folder}/two has one machine, a, and"),
    ("--hostfile {folder}/both", "--hostfile {folder}/both: 'a slots=2 b slots=2': write HOST slo"),
    ("--hostfile {folder}/mark", r"--hostfile {folder}/mark: '\ufeffa slots=2': write HOST slo"),
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
def test_wrong_options_of_deepspeed_are_one_line(tmp_path, monkeypatch, capfd, words, line):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.setattr("shutil.which", lambda program: None if program == "pdsh" else program)
    files = {
        "empty": "", "bad": "a slot=2", "zero": "a slots=2\nb slots=0\n",
        "two": "a slots=2\nb slots=2", "twice": "a slots=2\na slots=1",
        "one": "elsewhere.invalid slots=2", "both": "a slots=2 b slots=2",
        "mark": "\ufeffa slots=2",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environ = {"DEEPSPEED_ARGS": words.format(folder=tmp_path)}
    with pytest.raises(ConfigError) as caught:
        deepspeed_options.check_launcher(environ)
    assert str(caught.value).startswith("DEEPSPEED_ARGS: " + line.format(folder=tmp_path))
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("DEEPSPEED_ARGS", environ["DEEPSPEED_ARGS"])
    assert CHECKS["variables"](tmp_path) == ("FAIL", str(caught.value))
    assert capfd.readouterr() == ("", "")  # deepspeed repeats the file


def test_right_options_of_deepspeed_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    (tmp_path / "hosts").write_bytes(b"# two\n\ta slots=2\r\nb slots=2 max_slots=4 # b\n\n")
    (tmp_path / "here").write_text("localhost slots=2\n")
    (tmp_path / "there").write_text("elsewhere.invalid slots=2\n")
    for words in (
        "",
        "--master_port=29501 --no_ssh",
        "--include localhost:1",
        f"--hostfile {tmp_path}/hosts --include a:0@b",
        f"--hostfile {tmp_path}/hosts --num_nodes 2",
        f"--hostfile {tmp_path}/here",
        f"--hostfile {tmp_path}/there --force_multi",
        f"--hostfile {tmp_path}/there --no_ssh --node_rank 0",
    ):
        deepspeed_options.check_launcher({"DEEPSPEED_ARGS": words})


PODS = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
"""What Kubeflow's PyTorchJob sets in the first of two pods."""


def test_variables_that_count_machines_start_no_rank_and_no_deepspeed():
    with pytest.raises(ConfigError) as caught:
        find_placement(PODS)
    line = str(caught.value)
    assert line.startswith("RANK=0 and WORLD_SIZE=2 are set and LOCAL_RANK is not")
    assert "start torchrun --nnodes $WORLD_SIZE --node-rank $RANK" in line
    with pytest.raises(ConfigError) as caught:
        deepspeed_options.check_launcher({"DEEPSPEED_ARGS": "", **PODS})
    assert str(caught.value) == line
    # deepspeed replaces those of a single pod; those of a rank are right.
    deepspeed_options.check_launcher({"DEEPSPEED_ARGS": "", **PODS, "WORLD_SIZE": "1"})
    assert find_placement(PODS | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}).size == 2


VISIBLE = [
    (
        "cuda",
        "3",
        "--num_gpus 1",
        "CUDA_VISIBLE_DEVICES=3 is ignored by deepspeed beside --num_gpus",
    ),
    ("cuda", "2,3", "--include localhost:0", "beside --include localhost:0, which counts all GPUs"),
    ("cuda", "GPU-8932f937", "", "deepspeed takes it for numbers of GPUs: write 0 or 0,1"),
    ("cuda", "-1", "", "to train on the CPU: DS_ACCELERATOR=cpu"),
    ("cpu", "-1", "", "deepspeed takes it for numbers of GPUs"),
    ("cpu", "0", "", "CUDA_VISIBLE_DEVICES=0 and LOCAL_SIZE=2: deepspeed would start 1 ranks"),
    ("cuda", "2,3", "", None),
    ("cuda", "2,3", "--num_nodes 1 --master_port 29501", None),
    ("cuda", "", "--num_gpus 1", None),
    ("cpu", "0,1", "", None),
    ("cpu", "-1", "--num_gpus 2", None),
]


@pytest.mark.parametrize(("device", "visible", "words", "line"), VISIBLE)
def test_gpus_that_deepspeed_would_take_in_place_of_the_visible_ones(
    monkeypatch, device, visible, words, line
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: device == "cuda")
    environ = {"DEEPSPEED_ARGS": words, "CUDA_VISIBLE_DEVICES": visible}
    if device == "cpu":
        environ["LOCAL_SIZE"] = "2"
    if line is None:
        deepspeed_options.check_launcher(environ)
        return
    with pytest.raises(ConfigError) as caught:
        deepspeed_options.check_launcher(environ)
    assert line in str(caught.value)
    assert str(caught.value).startswith(f"CUDA_VISIBLE_DEVICES={visible}")


def test_a_port_is_given_once():
    environ = {"MASTER_PORT": "29501", "DEEPSPEED_ARGS": "--master_port=29501"}
    deepspeed_options.check_launcher(environ)
    with pytest.raises(ConfigError, match=r"^MASTER_PORT=29502, and DEEPSPEED_ARGS has --master_p"):
        deepspeed_options.check_launcher(environ | {"MASTER_PORT": "29502"})


INTERFACES = [
    ("cpu", "lo", True),
    ("cpu", "", True),
    ("cpu", "bond1", False),
    ("cpu", "lo,bond1", False),
    ("cpu", "^lo", False),  # NCCL's way of writing, which gloo does not know
    ("cuda", "lo", True),
    ("cuda", "l", True),
    ("cuda", "=lo", True),
    ("cuda", "=l", False),
    ("cuda", "ib,lo:1", True),
    ("cuda", "bond1", False),
    ("cuda", "^bond1", True),
    ("cuda", "^lo", False),
]


@pytest.mark.parametrize(("device", "text", "fits"), INTERFACES)
def test_network_interfaces_that_are_not_there_are_named(monkeypatch, device, text, fits):
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo")])
    name = "NCCL_SOCKET_IFNAME" if device == "cuda" else "GLOO_SOCKET_IFNAME"
    if fits:
        environment.check_interfaces({name: text}, device)
        return
    with pytest.raises(ConfigError) as caught:
        environment.check_interfaces({name: text}, device)
    assert str(caught.value).startswith(f"{name}={text!r}: ")
    assert "has no such network interface, only lo; set it" in str(caught.value)


@pytest.mark.dist
def test_ranks_say_a_wrong_interface_in_one_line(
    start_ranks, clean_environment, toy_config, monkeypatch
):
    monkeypatch.setitem(clean_environment, "GLOO_SOCKET_IFNAME", "bond1")
    results = start_ranks(2, PRETRAIN, "--config", toy_config).finish()
    assert [code for code, _, _ in results] == [2, 2]
    said = "".join(err for _, _, err in results)
    assert said.count("\n") == 1, said
    assert "GLOO_SOCKET_IFNAME='bond1': " in said


def test_an_option_given_twice_is_refused(toy_config, capsys, tmp_path):
    twice = ["--config", str(toy_config)] * 2
    assert main(["pretrain", *twice, "--print-config"]) == 2
    assert capsys.readouterr().err == (
        "pretrain: command line: --config is given twice: give it once (see --help)\n"
    )
    assert main(["finetune", *twice]) == 2
    assert "--config is given twice" in capsys.readouterr().err
    from pipeline.cli.evaluate import main as evaluate
    from pipeline.evaluate.registry import EVALUATIONS

    for task in EVALUATIONS:
        assert evaluate([task, *twice]) == 2
        assert "--config is given twice" in capsys.readouterr().err
