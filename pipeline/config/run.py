"""The configuration of a run: frozen dataclasses < YAML file < key=value overrides.

    config = load_config("configs/run/demo.yaml", ["train.num_steps=50"])
    run = resolve_model(config, manifest)    # batch_shape.py: a ResolvedRun

Its sections (`train`, `optim`, ...) are in pipeline/config/sections.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpst.config import ModelConfig
from gpst.config import config_from_dict as model_from_dict
from gpst.config import config_to_dict as model_to_dict
from gpst.config_reader import build, require, unknown_field
from pipeline.config import yaml_text
from pipeline.config.overrides import parse_override, set_dotted, to_plain
from pipeline.config.paths import PathText, expand
from pipeline.config.removed import refuse_removed, without_removed
from pipeline.config.sections import (
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    EvaluateConfig,
    MonitorConfig,
    OptimConfig,
    StructureConfig,
    TrainConfig,
)
from pipeline.errors import ConfigError

_HERE = Path(__file__).resolve().parents[1]
REPOSITORY = _HERE / "shipped" if (_HERE / "shipped").is_dir() else _HERE.parent
"""The folder of configs/ and launch/: the checkout, or what a wheel brings (setup.py)."""


@dataclass(frozen=True)
class RunSettings:
    """What a RunConfig and a ResolvedRun have in common: all but the type of `model`."""

    run_dir: PathText
    """Folder for metrics, TensorBoard files and checkpoints."""
    model: Any
    data: DataConfig
    train: TrainConfig
    seed: int = 0
    """Fixes initialisation, data order, dropout and noise."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    structure: StructureConfig = field(default_factory=StructureConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self) -> None:
        require(bool(self.run_dir), "run_dir", self.run_dir, "a folder's path")
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "in [0, 2**63)")
        if self.checkpoint.best_metric is not None and self.evaluate.every_steps is None:
            raise ConfigError(
                f"checkpoint.best_metric: {self.checkpoint.best_metric!r} is measured by the "
                "held-out evaluation, and evaluate.every_steps is null: set it"
            )
        if self.evaluate.treebank is not None and self.evaluate.every_steps is None:
            raise ConfigError(
                f"evaluate.treebank: {self.evaluate.treebank!r} is given, and evaluate.every_steps "
                "is null: set it"
            )


@dataclass(frozen=True)
class ResolvedRun(RunSettings):
    """A run as it is trained."""

    model: ModelConfig
    """Complete with what follows from the dataset."""


@dataclass(frozen=True)
class RunConfig(RunSettings):
    """Everything that defines a run."""

    model: dict[str, Any]
    """Fields of the model; in YAML also the path of a file with them. What is missing follows from
    the dataset."""

    def with_model(self, model: ModelConfig) -> ResolvedRun:
        """The run with its model's complete configuration."""
        return ResolvedRun(**{**vars(self), "model": model})


def find_config(path: str | Path) -> Path:
    """The file of this path, or else the one that this project ships: `configs/run/demo.yaml`."""
    file, shipped = Path(path).expanduser(), REPOSITORY / path
    return shipped if shipped.is_file() and not file.is_file() else file


def read_config(path: str | Path, cls: type) -> dict[str, Any]:
    """The fields in a YAML file (see `find_config`); at the top those of the dataclass `cls`.

    Raises:
        ConfigError: names the file: it cannot be read, has an unknown field, or is a model's.
    """
    file, known = find_config(path), [field.name for field in fields(cls)]
    tree = yaml_text.read_fields(file)
    unknown = [str(name) for name in tree if name not in known]
    if "kind" in unknown:
        raise ConfigError(
            f"config file {file}: describes a model (kind: {tree['kind']}), and a run is needed: "
            f"take one like configs/run/demo.yaml, with model={path} after it"
        )
    if unknown:
        raise ConfigError(f"config file {file}: {unknown_field(unknown[0], known)}")
    return tree


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a YAML file, with `field=value` overrides in their order.

    A `model` that is a path is read here, so that `model.composition.num_layers=2` can follow.

    Raises:
        ConfigError: names the field, the value and what is allowed.
    """
    tree = read_config(path, RunConfig)
    for text in overrides:
        parts, value = parse_override(text)
        if parts[0] == "model" and len(parts) > 1:
            _read_model(tree)
        set_dotted(tree, parts, value)
    tree = refuse_removed(tree)
    _read_model(tree)
    config = build(RunConfig, tree)
    _check_model(config)
    return config


def _check_model(config: RunConfig) -> None:
    """Refuses what is wrong in the model's fields, whatever the dataset will complete them with."""
    model = dict(config.model)
    for name, value in {"vocab_size": 1 << 30, "bos_token_id": 0}.items():
        if model.get(name) is None:
            model[name] = value
    read_model(model)


def read_model(values: dict[str, Any]) -> ModelConfig:
    """The model's configuration, complete; raises ConfigError that begins with "model: "."""
    try:
        return model_from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"model: {error}") from None


def _read_model(tree: dict[str, Any]) -> None:
    """Replaces a `model` that is a path by the fields in that file."""
    if not isinstance(tree.get("model"), str):
        return
    try:
        path = find_config(expand(tree["model"]))
    except ValueError as error:
        raise ConfigError(f"model: {error}") from None
    if not path.is_file():
        raise ConfigError(f"model: no file {path} in the working directory or in {REPOSITORY}")
    tree["model"] = yaml_text.read_fields(path)


def config_to_dict(config: RunSettings) -> dict[str, Any]:
    """Plain dicts, lists and numbers, fit for YAML and JSON."""
    plain = to_plain(config)
    if isinstance(config, ResolvedRun):
        plain["model"] = model_to_dict(config.model)
    return plain


def stored_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that a checkpoint has, as this program would store it.

    Removed settings are left out; settings that it did not have yet get their defaults, which are
    what programs did before there was a choice.
    """
    plain = without_removed(values)
    try:
        config = build(RunConfig, plain)
        return config_to_dict(config.with_model(read_model(config.model)))
    except ConfigError:  # an older rule allowed it
        return plain


def config_to_yaml(config: RunSettings) -> str:
    """What `--print-config` prints: a YAML file that `load_config` reads back."""
    return yaml_text.write(config_to_dict(config))
