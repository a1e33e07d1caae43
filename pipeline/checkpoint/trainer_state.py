"""What a checkpoint has of a run besides parameters and moments.

The data order, schedules and random numbers are pure functions of the step and the seed, so this
and DeepSpeed's files are the whole state.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpst.config_reader import shown
from pipeline.config.overrides import flat
from pipeline.config.run import REPOSITORY, ResolvedRun, config_to_dict, stored_run
from pipeline.config.sections import CheckpointConfig
from pipeline.errors import ConfigError, OtherVersionError

STATE_VERSION = 3
"""3: phi_beta has a map for either sibling."""


@dataclass(frozen=True)
class TrainerState:
    """Where a run is."""

    step: int
    """Optimizer steps taken, skipped ones included."""
    samples: int
    """Contexts trained on, over all ranks."""
    tokens: int
    """Tokens trained on, over all ranks."""
    skipped_steps: int
    """Steps without an update, because a loss or gradient was not finite."""
    skipped_in_a_row: int
    """Those of them that came last, without an applied one after."""
    spikes: dict[str, float]
    """The loss-spike guard's moving average (train/loss_spike.py); empty when it is off."""
    best: dict[str, Any]
    """"value" of checkpoint.best_metric, its "step", and "by" (CheckpointConfig.best_by); empty
    before the first evaluation."""
    config: dict[str, Any]
    """The run's resolved configuration."""
    dataset_fingerprint: str
    """Identifies the data and its order."""
    world_size: int
    """Ranks that wrote the checkpoint."""
    git_revision: str = ""
    """Commit of this program, "" when unknown; "+" at the end: with changes."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of torch and deepspeed."""
    next_loss: float | None = None
    """Loss of the next batch, a check on loading (train/reload_check.py); None: not finite."""
    state_version: int = STATE_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint so far."""
        return int(self.best["step"]) if self.best else None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: Path) -> "TrainerState":
        """The state in the checkpoint `where`.

        Raises:
            OtherVersionError: it is of another version, or has other fields.
        """
        state_version, writer = values.get("state_version"), values.get("git_revision")
        cure = f"go on with the program that wrote it{f' (revision {writer})' if writer else ''}"
        if state_version != STATE_VERSION:
            raise OtherVersionError(
                f"checkpoint {where}: its state has version {state_version!r}, this program "
                f"reads {STATE_VERSION}; {cure}, or export the model with it"
            )
        names = {f.name for f in fields(cls)}
        if set(values) != names:
            odd = ", ".join(sorted(set(values) ^ names))
            raise OtherVersionError(
                f"checkpoint {where}: its state has other fields than known ({odd}); {cure}"
            )
        return cls(**values)

    def with_best(
        self, config: CheckpointConfig, values: Mapping[str, float]
    ) -> "TrainerState | None":
        """The state with an evaluation's value as the best one so far; None when it is not.

        Raises:
            ConfigError: checkpoint.best_metric is not among the evaluation's `values`.
        """
        if config.best_metric is None:
            return None
        if config.best_metric not in values:
            raise ConfigError(
                f"checkpoint.best_metric: {config.best_metric!r} is not measured here; known are "
                f"{', '.join(sorted(values))}"
            )
        value, best = values[config.best_metric], self.best.get("value")
        sign = 1.0 if config.best_is == "lowest" else -1.0
        # NaN is never better, and everything is better than NaN.
        if not (best is None or best != best or sign * value < sign * best):
            return None
        return replace(self, best={"value": value, "step": self.step, "by": config.best_by})


def first_state(config: ResolvedRun, fingerprint: str, world_size: int) -> TrainerState:
    """The state before the first step."""
    versions = {name: version(name) for name in ("torch", "deepspeed")}
    plain = config_to_dict(config)
    return TrainerState(
        0, 0, 0, 0, 0, {}, {}, plain, fingerprint, world_size, git_revision(REPOSITORY), versions
    )


def resumed_state(saved: TrainerState, now: TrainerState) -> TrainerState:
    """The counters of a checkpoint with the config, ranks and program of this process."""
    return replace(
        now,
        step=saved.step,
        samples=saved.samples,
        tokens=saved.tokens,
        skipped_steps=saved.skipped_steps,
        skipped_in_a_row=saved.skipped_in_a_row,
        spikes=saved.spikes,
        best=saved.best,
    )


def git_revision(folder: Path) -> str:
    """The commit that `folder` is at, with "+" for uncommitted changes; "" outside git."""
    if not (folder / ".git").exists():  # an installation may lie inside somebody else's checkout
        return ""
    try:
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(folder), *command],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
            for command in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit + ("+" if changes else "")


_FIXED = (
    "model",
    "seed",
    "data.context_tokens",
    "train.global_batch_contexts",
    "engine.precision",
)
"""Fields that cannot change in a run: they define its parameters' meaning or its data order."""


def check_same_run(saved: TrainerState, config: ResolvedRun, fingerprint: str, where: Path) -> None:
    """Refuses to go on with another model, other data or data order, or fewer steps than taken.

    Raises:
        ConfigError: names the field, both values and the way out.
    """
    before, now = stored_run(saved.config), config_to_dict(config)
    for name in _FIXED:
        old, new = _at(before, name), _at(now, name)
        if name == "model":
            name, old, new = _first_difference(old, new)
        if old != new:
            raise ConfigError(
                f"{name}: {new!r} here, but {old!r} in checkpoint {where}; set it back, or start "
                f"another run: a run_dir of its own{_weights_alone(name, where)}"
            )
    if saved.step > config.train.num_steps:
        raise ConfigError(
            f"train.num_steps: {config.train.num_steps} here, but checkpoint {where} has taken "
            f"{saved.step} steps: raise it (of a fine-tuning train.num_epochs), resume from an "
            "earlier checkpoint, or start another run: a run_dir of its own"
        )
    if saved.dataset_fingerprint != fingerprint:
        raise ConfigError(
            f"data: is not what checkpoint {where} was trained on (fingerprint "
            f"{fingerprint[:12]}, was {saved.dataset_fingerprint[:12]}); give the same dataset, or "
            f"start another run: a run_dir of its own{_weights_alone('data', where)}"
        )


def changed_settings(saved: TrainerState, config: ResolvedRun, world_size: int) -> list[str]:
    """ "field old -> new" for each setting that has changed since the checkpoint."""
    old, new = flat(stored_run(saved.config)), flat(config_to_dict(config))
    old["number of ranks"], new["number of ranks"] = saved.world_size, world_size
    names = [name for name in {**old, **new} if name not in _OF_ONE_START]
    return [
        f"{name} {shown(old.get(name))} -> {shown(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def unused_weights(saved: TrainerState, config: ResolvedRun, where: Path) -> str | None:
    """A line where `checkpoint.init_from` is new to a run that goes on from a checkpoint."""
    init_from = config.checkpoint.init_from
    if init_from in (None, _at(saved.config, "checkpoint.init_from")):
        return None
    return (
        f"checkpoint.init_from {init_from} is not used: the run goes on from {where}; to begin "
        "with those weights, give another run_dir, or checkpoint.resume=none"
    )


_OF_ONE_START = ("checkpoint.resume", "checkpoint.init_from")
"""Settings of how this start began, not of how the run trains."""


def tokenizer_folder(config: Mapping[str, Any]) -> Path:
    """The tokenizer's folder, in the first dataset of a saved run's configuration."""
    data = config["data"]
    return Path(data["path"] or data["datasets"][0]["path"]) / "tokenizer"


def _weights_alone(name: str, where: Path) -> str:
    """How another run begins with the checkpoint's weights, where its model is the same."""
    if name.startswith("model"):
        return ""
    return f", and checkpoint.init_from={where} to begin with its weights"


def _at(tree: dict[str, Any], dotted: str) -> Any:
    value: Any = tree
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _first_difference(old: Any, new: Any, owner: str = "model") -> tuple[str, Any, Any]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return _first_difference(old.get(name), new.get(name), f"{owner}.{name}")
    return owner, old, new
