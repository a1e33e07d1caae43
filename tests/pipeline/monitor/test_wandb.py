"""Weights & Biases, with a module of our own in place of theirs."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from known_trees import right_branching

from pipeline.config.run import load_config
from pipeline.errors import ConfigError
from pipeline.monitor.monitor import Monitor
from pipeline.monitor.samples import Samples, SentenceTree
from pipeline.train.preflight import check_run


class FakeRun:
    def __init__(self, options):
        self.options, self.logged, self.metrics, self.finished = options, [], [], None
        self.fails = False

    def define_metric(self, name, **options):
        self.metrics.append((name, options))

    def log(self, values):
        if self.fails:
            raise ConnectionError("no route\nto host")
        self.logged.append(values)

    def finish(self, exit_code):
        self.finished = exit_code


@pytest.fixture
def runs(monkeypatch):
    """The runs that were started in the fake module."""
    started = []
    fake = ModuleType("wandb")

    def init(**options):
        if options["project"] == "forbidden":
            raise PermissionError("not\nlogged in")
        started.append(FakeRun(options))
        return started[-1]

    fake.init = init  # type: ignore[attr-defined]
    fake.util = SimpleNamespace(generate_id=lambda: f"id{len(started)}")  # type: ignore[attr-defined]
    fake.Image = lambda picture: ("image", picture.shape[-1])  # type: ignore[attr-defined]
    fake.Html = lambda text: ("html", text)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return started


def monitor(run_dir, **arguments):
    return Monitor(run_dir, num_steps=9, stream=io.StringIO(), wandb="trees", **arguments)


def log(watcher, step, loss):
    watcher.log_step(step, tokens=10 * step, samples=step, values={"loss": loss})


def test_the_same_numbers_go_there(runs, tmp_path):
    config = {"seed": 3, "optim": {"learning_rate": 0.1}}
    with monitor(tmp_path / "run", config=config) as watcher:
        log(watcher, 2, 0.5)
        watcher.log_evaluation(2, tokens=20, values={"eval/loss/token": 0.25})
    (run,) = runs
    assert (run.options["project"], run.options["name"]) == ("trees", "run")
    assert run.options["config"] == config
    assert run.metrics == [("step", {}), ("tokens", {}), ("*", {"step_metric": "step"})]
    training, evaluation = run.logged
    assert {"step": 2, "tokens": 20, "loss": 0.5}.items() <= training.items()
    assert evaluation == {"step": 2, "tokens": 20, "eval/loss/token": 0.25}
    assert run.finished == 0


def test_trees_are_pictures_and_continuations_text(runs, tmp_path):
    samples = Samples([SentenceTree(["a", "b"], right_branching(2))], ["<b> & so on"])
    with monitor(tmp_path) as watcher:
        watcher.log_samples(3, tokens=30, samples=samples, prompts=["Once"])
    (logged,) = runs[0].logged
    assert logged["trees/0"] == ("image", 3)
    assert logged["continuations/0"] == ("html", "<pre>Once ...\n&lt;b&gt; &amp; so on</pre>")


def test_a_resumed_run_is_the_same_run_there(runs, tmp_path):
    with monitor(tmp_path) as watcher:
        log(watcher, 4, 1.0)
    with monitor(tmp_path, start_step=2, start_tokens=20) as watcher:
        log(watcher, 3, 1.0)
    first, second = runs
    assert first.options["id"] == second.options["id"] == "id0"
    assert second.options["resume"] == "allow"
    assert second.logged[0]["step"] == 3


def test_other_ranks_start_nothing(runs, tmp_path):
    with Monitor(tmp_path, num_steps=9, is_main=False, wandb="trees"):
        pass
    assert runs == []


def test_a_failure_is_said_once_and_training_goes_on(runs, tmp_path, capsys):
    with monitor(tmp_path) as watcher:
        runs[0].fails = True
        log(watcher, 1, 1.0)
        log(watcher, 2, 1.0)
    err = capsys.readouterr().err
    assert err.count("W&B gets no more of this run: no route to host") == 1
    assert err.count("\n") == 1


def test_a_run_that_cannot_start_is_one_line(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"'forbidden': W&B cannot start a run: not logged in"):
        Monitor(tmp_path, num_steps=9, stream=io.StringIO(), wandb="forbidden")


def test_a_missing_package_is_said_before_training(toy_config, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = load_config(toy_config, ["monitor.wandb=trees"])
    with pytest.raises(ConfigError, match=r"monitor\.wandb: .*pip install wandb"):
        check_run(config, 1)


def test_the_folder_that_wandb_leaves_is_not_the_package(monkeypatch, tmp_path, toy_config):
    """Python imports a folder without __init__.py where no package of its name is installed."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "wandb").mkdir()
    config = load_config(toy_config, ["monitor.wandb=trees"])
    with pytest.raises(ConfigError) as caught:
        check_run(config, 1)
    assert str(caught.value) == (
        f"monitor.wandb: the package wandb is not installed ({tmp_path}/wandb is a folder of that "
        "name): pip install wandb; or leave monitor.wandb out"
    )
