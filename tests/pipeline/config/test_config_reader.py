"""The reader of configurations: YAML 1.2, types held to the last field, one line each."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig, config_from_dict
from gpst.config_reader import build
from pipeline.config import sections, yaml_text
from pipeline.config.overrides import parse_override, to_plain
from pipeline.config.run import RunConfig, load_config
from pipeline.errors import ConfigError
from pipeline.evaluate import perplexity
from pipeline.evaluate.grammar_induction import evaluation as grammar_induction
from pipeline.evaluate.syntaxgym import evaluation as syntactic_generalization
from pipeline.finetune.config import FinetuneConfig, FinetuneTrainConfig, load_finetune_config
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.registry import task_sections

CONFIGS = Path(__file__).parents[3] / "configs"
SECTIONS: list[type] = [
    RunConfig, sections.DataConfig, sections.DatasetConfig, sections.TrainConfig,
    sections.OptimConfig, sections.StructureConfig, sections.EngineConfig,
    sections.CheckpointConfig, sections.MonitorConfig, sections.EvaluateConfig, GPSTConfig,
    GPT2Config, CompositionConfig, ParserConfig, FinetuneConfig, FinetuneTrainConfig,
    *task_sections(FinetuneConfig).values(),
    perplexity.Options, grammar_induction.Options, syntactic_generalization.Options,
]  # fmt: skip
INF = float("inf")
WRONG: dict[str, Any] = {
    "text": "nonsense",
    "text of a switch": "false",
    "text of a number": "3",
    "null": None,
    "list": ["nonsense"],
    "mapping": {"nonsense": 1},
    "switch": True,
    "fraction": 1.5,
    "whole fraction": 1.0,
    "not finite": float("nan"),
}


def fits(hint: Any, value: Any) -> bool:
    """Whether a plain value is of an annotated type; written without the reader's help."""
    if dataclasses.is_dataclass(hint):
        return False
    if hint is Any or (hint is dict or get_origin(hint) is dict):
        return isinstance(value, dict)
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return any(type(arg) is type(value) and arg == value for arg in args)
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list) else None
        return items is not None and args[-1] is Ellipsis and all(fits(args[0], i) for i in items)
    if args:
        return any(fits(arg, value) for arg in args)
    if hint is float:
        return type(value) in (int, float) and value == value
    return type(value) is hint


FIELDS = [(cls, field.name) for cls in SECTIONS for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(
    ("cls", "name"), FIELDS, ids=[f"{c.__module__}.{c.__qualname__}.{n}" for c, n in FIELDS]
)
def test_every_field_refuses_every_other_type_in_one_line(cls, name):
    hint = get_type_hints(cls)[name]
    wrong = [value for value in WRONG.values() if not fits(hint, value)]
    assert len(wrong) >= 5
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            build(cls, {name: value}, "section.")
        line = str(caught.value)
        # What is missing beside it may be named before it.
        if " is missing" not in line:
            assert line.removeprefix("unknown field ").startswith(f"section.{name}"), line
            assert "is not allowed; it must be " in line or "unknown field" in line, line
        assert not re.search(r"\n|typing\.|<class|Literal\[|pydantic|Optional", line), line


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_every_shipped_config_loads(path):
    fields = yaml_text.read_fields(path)
    if path.parent.name == "run":
        assert load_config(path).run_dir == fields["run_dir"]
    elif path.parent.name == "model":
        assert (
            config_from_dict({"vocab_size": 9, "bos_token_id": 0, **fields}).kind == fields["kind"]
        )
    elif path.parent.name == "finetune":
        assert load_finetune_config(path, ["init=x"]).init == "x"
    else:
        module = {
            "perplexity": perplexity, "language_modelling": perplexity,
            "syntactic_generalization": syntactic_generalization,
        }.get(path.stem, grammar_induction)  # fmt: skip
        names = {field.name for field in dataclasses.fields(module.Options)}
        assert set(fields) <= names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("0o10", 8), ("0x1F", 31), ("-7", -7), ("+7", 7), ("00", 0),
        ("1:30", "1:30"), ("1_0", "1_0"), ("1,5", "1,5"), ("0b11", "0b11"), ("0o18", "0o18"),
        ("1e-4", 1e-4), ("1E5", 1e5), ("1.", 1.0), (".5", 0.5), ("-.5e+1", -5.0),
        (".inf", INF), ("-.INF", -INF), ("inf", "inf"), ("1e", "1e"), ("1_0.5", "1_0.5"),
        ("true", True), ("False", False), ("TRUE", True), ("tRUE", "tRUE"),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("Off", "Off"), ("y", "y"),
        ("null", None), ("~", None), ("", None), ("Null", None), ("nil", "nil"), ("~/x", "~/x"),
        ("2024-01-02", "2024-01-02"), ("=", "="), ("<<", "<<"),
        ("'010'", "010"), ("[010, 1e3, no]", [10, 1000.0, "no"]),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = yaml_text.parse(text)
    assert (found, type(found)) == (value, type(value))
    assert parse_override(f"a.b={text}") == (["a", "b"], value)


# PyYAML makes a space of the control character NEL in a plain text.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXT
    | st.from_regex(r"[-+]?[0-9._:eoxb~-]{1,6}|yes|No|on|null|~|<<|=|1e-?[0-9]", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(PLAIN)
def test_what_is_written_is_read_back_here_and_by_yaml_1_1(value):
    text = yaml_text.write(value)
    assert yaml_text.parse(text) == value
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a: 1, a: 2}", "key 'a' is given twice (line 1)"),
        ("{10: 1, 010: 2}", "key 10 is given twice"),
        ("!!bool perhaps", "not valid YAML"),
        ("!!int x", "not valid YAML"),
        ("!!timestamp x", "not valid YAML"),
        ("!!python/object:os.system {}", "not valid YAML"),
        ("{[a]: 1}", "not valid YAML"),
        ("[" * 600 + "]" * 600, "nested deeper"),
        ("9" * 5000, "not valid YAML"),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_not_yaml_is_one_line(text, reason):
    with pytest.raises(ConfigError) as caught:
        yaml_text.parse(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


RUN = {
    "run_dir": "r",
    "model": {"kind": "gpst"},
    "data": {"path": "d"},
    "train": {"num_steps": 1, "global_batch_contexts": 4},
}


REFUSED = [
    ('model.gradient_stop="false"', "model: gradient_stop: 'false'", "true or false"),
    ("model.gradient_stop=no", "model: gradient_stop: 'no'", "true or false"),
    ("model.surrogate=null", "model: surrogate: null", "true or false"),
    ("model.surrogate=0", "model: surrogate: 0", "true or false"),
    ("model.composition=3", "model: composition: 3", "`field: value` lines"),
    ("model.composition=null", "model: composition: null", "`field: value` lines"),
    ("model.composition=[]", "model: composition: []", "`field: value` lines"),
    ("model.composition.dropout=yes", "model: composition.dropout: 'yes'", "a number"),
    ("model.kind=[]", "model: kind: []", "one of gpst, gpt2"),
    ("model.hidden_dim=768.0", "model: hidden_dim: 768.0", "a whole number"),
    ("model.num_heads=1_2", "model: num_heads: '1_2'", "a whole number"),
    ("model=[]", "model: []", "`field: value` lines"),
    ("model=null", "model: null", "`field: value` lines"),
    ("train.num_steps=1:30", "train.num_steps: '1:30'", "a whole number"),
    ("train.num_steps=1e3", "train.num_steps: 1000.0", "a whole number"),
    ("train.stop_at_step=1.5", "train.stop_at_step: 1.5", "a whole number or half or null"),
    ("optim.betas=[0, 0, 0]", "optim.betas: [0, 0, 0]", "a list of 2 values, each a number"),
    ("optim.learning_rate=.nan", "optim.learning_rate: nan", "a finite number"),
    ("run_dir=3", "run_dir: 3", "text: put it in quotes"),
    ("monitor.sentences=[a, 3]", "monitor.sentences[1]: 3", "text: put it in quotes"),
    (
        "data={datasets: [{path: a}, {path: b, weight: high}]}",
        "data.datasets[1].weight: 'high'",
        "a number",
    ),
    ("engine.zero_stage=1.0", "engine.zero_stage: 1.0", "0 | 1 | 2 | 3"),
    ("engine.zero_stage=true", "engine.zero_stage: true", "0 | 1 | 2 | 3"),
    ("engine=null", "engine: null", "`field: value` lines"),
]
ODD = "configuration: holds something else than plain values: "
ODDITIES = [
    ("model.composition.dimm=3", "model: unknown field composition.dimm; did you mean"),
    ("data=&a {datasets: [*a]}", ODD + "Circular reference detected"),
    ("run_dir=!!timestamp 2024-01-02", ODD + "date datetime.date(2024, 1, 2)"),
    ('run_dir="\\ud800"', ODD + "'utf-8' codec"),
]
LINES = [(o, f"{what} is not allowed; it must be {allowed}") for o, what, allowed in REFUSED]


@pytest.mark.parametrize(("override", "line"), LINES + ODDITIES, ids=lambda t: t[:30])
def test_what_is_not_meant_is_refused(tmp_path, override, line):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(RUN))
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_model_made_in_python_holds_its_types_too():
    wrong = {"gradient_stop": "false", "surrogate": None, "composition": 3, "parser": {}}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=f"^{name}: "):
            GPSTConfig(vocab_size=9, bos_token_id=0, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^composition\.dim: 16\.0 is not allowed"):
        CompositionConfig(dim=16.0)  # type: ignore[arg-type]


def test_whole_numbers_are_numbers_and_lists_are_tuples():
    read = build(sections.OptimConfig, {"learning_rate": 1, "betas": [0, 0.5]})
    assert (read.learning_rate, read.betas) == (1.0, (0.0, 0.5))
    assert isinstance(read.learning_rate, float)
    assert build(sections.OptimConfig, to_plain(read)) == read
    assert build(sections.OptimConfig, json.loads(json.dumps(to_plain(read)))) == read


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ConfigError) as caught:
        build(sections.OptimConfig, {"decay": "x" * 10_000})
    assert len(str(caught.value)) < 300


PATHS = [
    "run_dir", "data.path", "checkpoint.resume", "checkpoint.init_from", "evaluate.treebank",
]  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("written", ["~/x", "$HOME/x", "${HOME}/x"])
def test_the_home_folder_is_meant_in_files_and_overrides(tmp_path, monkeypatch, name, written):
    monkeypatch.setenv("HOME", "/home/me")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(RUN | {"evaluate": {"every_steps": 1}}))
    from_override = load_config(path, [f"{name}={written}"])
    owner, _, last = name.rpartition(".")
    section = from_override if not owner else getattr(from_override, owner)
    assert getattr(section, last) == "/home/me/x"


def test_the_home_folder_is_meant_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NOT_SET", raising=False)
    (tmp_path / "m.yaml").write_text("kind: gpt2")
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump(RUN | {"model": "~/m.yaml", "run_dir": "~/r"})
    )
    config = load_config("~/run.yaml", ["data={datasets: [{path: $HOME/a}]}"])
    assert config.model == {"kind": "gpt2"}
    assert config.run_dir == f"{tmp_path}/r"
    assert config.data.datasets[0].path == f"{tmp_path}/a"
    assert build(GlueConfig, {"task": "cola", "path": "~/g"}).path == f"{tmp_path}/g"
    assert build(grammar_induction.Options, {"trees": "~/t", "model": ["~/m"]}).model == (
        f"{tmp_path}/m",
    )
    for override, line in (
        ("run_dir=$NOT_SET/x", r"run_dir: '\$NOT_SET/x' names the variable NOT_SET, which"),
        ("run_dir=~nobody_here/x", "run_dir: '~nobody_here/x': nobody is called ~nobody_here"),
        ("model=$NOT_SET", r"model: '\$NOT_SET' names the variable"),
    ):
        with pytest.raises(ConfigError, match=f"^{line}"):
            load_config("~/run.yaml", [override])
    assert load_config("~/run.yaml", ["run_dir=./~x", "data.path=a$/b"]).run_dir == "./~x"
