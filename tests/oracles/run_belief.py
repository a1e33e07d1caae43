"""What must be in the folder of a run after what happened to it: the model of test_walk.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

KEEP_LAST, EVERY = 2, 3


@dataclass(frozen=True)
class Belief:
    """What must be in the folder."""

    weights: tuple[int, ...] = (0,)
    """Of the present line, after each step that was trained."""
    saved: tuple[int, ...] = ()
    """Steps of its checkpoints, oldest first."""
    damaged: frozenset[int] = frozenset()
    aside: frozenset[tuple[int, int]] = frozenset()
    """(step, weight) of checkpoints that were whole when another line began."""
    refused: bool = False
    """Whether something was set aside as damaged in this line."""
    asked: str | None = None
    """checkpoint.resume that began the line."""
    begun_at: int = 0


@dataclass(frozen=True)
class Expected:
    """What a start must do."""

    belief: Belief
    """After it has begun."""
    step: int | None
    """None: it ends with 3, and changes nothing."""


def expect(belief: Belief, resume: str, unreadable: frozenset[int]) -> Expected:
    """The start that `resume` must give."""
    if resume not in ("auto", belief.asked):
        if resume == "none":
            everything = [(s, belief.weights[s]) for s in belief.saved if s not in belief.damaged]
            aside = belief.aside | set(everything)
            return Expected(Belief(aside=frozenset(aside), asked="none"), 0)
        step = int(Path(resume).name[5:])
        if step in unreadable or step in belief.damaged:
            return Expected(belief, None)
        left = [s for s in belief.saved if s > step]
        aside = {(s, belief.weights[s]) for s in left if s not in belief.damaged}
        begun = replace(
            belief,
            weights=belief.weights[: step + 1],
            saved=tuple(s for s in belief.saved if s <= step),
            damaged=belief.damaged - set(left),
            aside=belief.aside | aside,
            asked=resume,
            begun_at=step,
        )
        return Expected(begun, step)
    for step in reversed(belief.saved):
        if step in unreadable:
            return Expected(belief, None)
        if step not in belief.damaged:
            passed = {s for s in belief.saved if s > step}
            begun = replace(
                belief,
                weights=belief.weights[: step + 1],
                saved=tuple(s for s in belief.saved if s <= step),
                damaged=belief.damaged - passed,
                refused=belief.refused or bool(passed),
            )
            return Expected(begun, step)
    if belief.saved or belief.refused:
        return Expected(belief, None)
    # Nothing was ever saved in this line, which began at step 0.
    return Expected(replace(belief, weights=(0,)), 0)


def with_checkpoint(belief: Belief, step: int) -> Belief:
    saved = (*(s for s in belief.saved if s != step), step)[-KEEP_LAST:]
    return replace(belief, saved=saved, damaged=belief.damaged & set(saved))


def after(belief: Belief, events: list[tuple[str, int, int]]) -> list[Belief]:
    """What can be there when a start that began as believed ended after these events."""
    possible = [belief]
    for name, step, weight in events:
        if name == "step":
            possible = [replace(b, weights=(*b.weights[:step], weight)) for b in possible]
        elif name == "saving":  # it may have its name or not
            possible = [*possible, *(with_checkpoint(b, step) for b in possible)]
        elif name == "saved":
            possible = [b for b in possible if b.saved[-1:] == (step,)]
    return list(dict.fromkeys(possible))
