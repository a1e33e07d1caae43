"""Random walks over what can happen to a run, each compared with a model of what must be there.

A walk trains, kills at any operation on files, rewinds, resumes, changes the number of ranks,
damages files, makes them unreadable for a while, and runs out of disk (played_run.py). The model
knows what was saved where; after each action, everything that it knows of must be there, and each
start must go on from where the model says. Where a kill leaves two things possible, the model
keeps both until the next start tells.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as play
from played_run import KILLED, MODEL_FILE, Player, Seen, Start, next_weight
from run_belief import Belief, after, expect

from pipeline.monitor.metrics_file import read_metrics


@dataclass
class Walk:
    """The run, and all that can be true of it."""

    player: Player
    beliefs: list[Belief] = field(default_factory=lambda: [Belief()])
    unreadable: tuple[int, ...] = ()
    ranks: int = 1
    tag: int = 1

    @property
    def folder(self) -> Path:
        return self.player.run_dir / "checkpoints"

    def name(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def start(self, resume: str = "auto", more: int = 4, **disturbed: int) -> Seen:
        """Starts, and leaves the beliefs that what was seen allows."""
        to_step = max(len(b.weights) for b in self.beliefs) - 1 + more
        hidden = frozenset(self.unreadable)
        files = tuple(str(self.name(s) / MODEL_FILE) for s in hidden)
        given = resume if resume in ("auto", "none") else str(self.folder / Path(resume).name)
        before = self.contents()
        seen = self.player.start(
            Start(to_step, given, self.ranks, self.tag, unreadable=files, **disturbed)
        )
        assert seen.code in (0, 3, KILLED), seen.err
        assert "Traceback" not in seen.err
        left: list[Belief] = []
        for belief in self.beliefs:
            left += self.outcomes(belief, expect(belief, resume, hidden), seen)
        assert left, (self.beliefs, resume, hidden, seen)
        self.beliefs = list(dict.fromkeys(left))
        if seen.code == 3 and not seen.events:
            assert self.contents() == before
            assert len([t for t in seen.err.splitlines() if t.startswith("pretrain:")]) >= 1
        self.look(seen)
        return seen

    def outcomes(self, belief: Belief, expected: Expected, seen: Seen) -> list[Belief]:
        """What is true afterwards, if the belief was and what was seen can follow from it."""
        starts = [(step, weight) for name, step, weight in seen.events if name == "start"]
        if expected.step is None:
            return [belief] if not seen.events and seen.code in (3, KILLED) else []
        begun = expected.belief
        if starts:
            fits = starts == [(expected.step, begun.weights[-1])]
            self.check_steps(begun, seen)
            return after(begun, seen.events) if fits else []
        # It ended before it trained: killed, or the disk was full.
        return [belief, begun] if seen.code in (3, KILLED) and self.disturbed else []

    def check_steps(self, begun: Belief, seen: Seen) -> None:
        weight = begun.weights[-1]
        for name, step, found in seen.events:
            if name == "step" and step == len(begun.weights):
                assert found == next_weight(weight, step - 1, self.tag)

    disturbed: bool = False

    def contents(self) -> dict[str, bytes]:
        """Everything in the folder but the lock."""
        run_dir = self.player.run_dir
        found = {str(p): p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
        return {name: data for name, data in found.items() if not name.endswith("/lock")}

    def look(self, seen: Seen) -> None:
        """What must be there is there: in one of the possible ways."""
        reasons = [self.missing(belief, seen) for belief in self.beliefs]
        assert "" in reasons, (reasons, self.beliefs, seen, sorted(self.contents()))
        # What was removed is known by now: an older checkpoint, once newer ones were whole.
        self.beliefs = [b for b, r in zip(self.beliefs, reasons, strict=True) if not r]

    def missing(self, belief: Belief, seen: Seen) -> str:
        for step in belief.saved:
            if step not in belief.damaged and weight_in(self.name(step)) != belief.weights[step]:
                return f"step {step}"
        everything = {
            (int(path.name.rpartition("step-")[2].partition(".")[0]), weight_in(path))
            for path in self.player.run_dir.rglob("*step-*")
            if path.is_dir()
        }
        if not belief.aside <= everything:
            return f"set aside: {belief.aside - everything}"
        if seen.code == 0:
            lines = read_metrics(self.player.run_dir / "metrics.jsonl")
            found = [(line["step"], int(line["loss"])) for line in lines]
            if found != list(enumerate(belief.weights))[1:]:
                return f"metrics: {found}"
        return ""


def weight_in(checkpoint: Path) -> int | None:
    try:
        return json.loads((checkpoint / MODEL_FILE).read_bytes())["weight"]
    except (OSError, ValueError):
        return None


class RunWalk(RuleBasedStateMachine):
    """The actions."""

    config: Path

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="walk-"))
        self.walk = Walk(Player(self.config, self.home / "run"))

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    @initialize(more=st.integers(1, 8))
    def begins(self, more: int) -> None:
        self.walk.start(more=more)

    @rule(more=st.integers(1, 7))
    def train(self, more: int) -> None:
        self.walk.start(more=more)

    @rule(at=st.integers(1, 160), more=st.integers(1, 7))
    def kill(self, at: int, more: int) -> None:
        self.disturbed(kill_at=at, more=more)

    @rule(at=st.integers(1, 120), more=st.integers(1, 7))
    def run_out_of_disk(self, at: int, more: int) -> None:
        self.disturbed(full_at=at, more=more)

    def disturbed(self, resume: str = "auto", **how: int) -> None:
        self.walk.disturbed = True
        try:
            self.walk.start(resume, **how)
        finally:
            self.walk.disturbed = False

    def known(self) -> list[int]:
        """Checkpoints that are there in every possible way."""
        common = set.intersection(*(set(b.saved) - b.damaged for b in self.walk.beliefs))
        return sorted(common - set(self.walk.unreadable))

    @precondition(lambda self: self.known())
    @rule(data=st.data(), tag=st.integers(1, 9), at=st.one_of(st.none(), st.integers(1, 60)))
    def rewind(self, data: st.DataObject, tag: int, at: int | None) -> None:
        step = data.draw(st.sampled_from(self.known()))
        self.walk.tag = tag
        resume = f"checkpoints/{self.walk.name(step).name}"
        if at is None:
            self.walk.start(resume)
        else:
            self.disturbed(resume, kill_at=at)

    @rule(more=st.integers(0, 4))
    def the_same_command_again(self, more: int) -> None:
        (*_, belief) = self.walk.beliefs
        if belief.asked is not None and len({b.asked for b in self.walk.beliefs}) == 1:
            self.walk.start(belief.asked, more=more)

    @rule(tag=st.integers(1, 9), really=st.integers(0, 5))
    def start_anew_in_words(self, tag: int, really: int) -> None:
        if really == 0:
            self.walk.tag = tag
            self.walk.start("none")

    @rule(ranks=st.integers(1, 3))
    def change_ranks(self, ranks: int) -> None:
        self.walk.ranks = ranks

    @precondition(lambda self: self.known())
    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "remove", "no manifest"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        step = data.draw(st.sampled_from(self.known()))
        folder = self.walk.name(step)
        file = folder / MODEL_FILE
        if how == "flip":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
        elif how == "cut":
            file.write_bytes(file.read_bytes()[:-3])
        elif how == "remove":
            file.unlink()
        else:
            (folder / "manifest.json").unlink()
        self.walk.beliefs = [replace(b, damaged=b.damaged | {step}) for b in self.walk.beliefs]

    @precondition(lambda self: self.known() and not self.walk.unreadable)
    @rule(data=st.data())
    def hide(self, data: st.DataObject) -> None:
        self.walk.unreadable = (data.draw(st.sampled_from(self.known())),)

    @rule()
    def show(self) -> None:
        self.walk.unreadable = ()


def run_walks(config: Path, walks: int) -> None:
    RunWalk.config = config
    play(
        RunWalk,
        settings=settings(
            max_examples=walks,
            stateful_step_count=12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink] if walks > 50 else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def config(tmp_path, toy_run):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(toy_run(tmp_path / "run")))
    return file


def test_six_walks_lose_nothing(config):
    run_walks(config, 6)


@pytest.mark.slow
def test_two_hundred_walks_lose_nothing(config):
    run_walks(config, 200)
