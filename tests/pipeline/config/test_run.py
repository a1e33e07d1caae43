"""The configuration: strict reading, one-line refusals, batch arithmetic, the shipped files."""

import pytest
import yaml

from data_prep.format.manifest import Manifest, TokenizerRecord
from gpst.config import GPSTConfig
from pipeline.config.batch_shape import BatchShape, batch_shape, resolve_model
from pipeline.config.run import config_to_dict, config_to_yaml, load_config
from pipeline.errors import ConfigError

RUN = """\
run_dir: runs/x
model: {kind: gpst, hidden_dim: 32, num_heads: 4, composition: {dim: 16, num_heads: 2}}
data: {path: data/x}
train: {num_steps: 10, global_batch_contexts: 8, micro_batch_contexts_per_rank: 2}
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def manifest(vocab_size=100, bos_id=3):
    tokenizer = TokenizerRecord("t", "byte_bpe", "", bos_id, 0)
    return Manifest(vocab_size, "uint16", tokenizer, ())


def test_defaults_then_file_then_overrides_in_order(run_file):
    config = load_config(
        run_file,
        ["train.num_steps=20", "optim.decay=cosine", "train.num_steps=30", "engine.zero_stage=2"],
    )
    assert config.seed == 0
    assert config.train.global_batch_contexts == 8
    assert config.train.num_steps == 30
    assert config.optim.decay == "cosine"
    assert config.engine.zero_stage == 2


def test_override_values_are_yaml(run_file):
    config = load_config(
        run_file,
        [
            "engine.checkpointing=[composition, generator]",
            "optim.learning_rate=1e-3",
            "optim.betas=[0.9, 0.95]",
            "checkpoint.every_steps=null",
            "engine.offload_optimizer=true",
            'monitor.sentences=["A = b.", "c"]',
            "engine.deepspeed.wall_clock_breakdown=true",
        ],
    )
    assert config.engine.checkpointing == ("composition", "generator")
    assert config.optim.learning_rate == 0.001
    assert config.optim.betas == (0.9, 0.95)
    assert config.checkpoint.every_steps is None
    assert config.engine.offload_optimizer is True
    assert config.monitor.sentences == ("A = b.", "c")
    assert config.engine.deepspeed == {"wall_clock_breakdown": True}


def test_the_model_may_be_a_file_and_be_overridden(run_file, tmp_path, monkeypatch):
    (tmp_path / "m.yaml").write_text("{kind: gpt2, hidden_dim: 24}")
    monkeypatch.chdir(tmp_path)
    config = load_config(run_file, ["model=m.yaml", "model.num_layers=2"])
    assert config.model == {"kind": "gpt2", "hidden_dim": 24, "num_layers": 2}


def test_a_model_file_is_also_found_in_the_repository(run_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(run_file, ["model=configs/model/gpst_tiny.yaml"])
    assert config_to_dict(config)["model"]["hidden_dim"] == 128


REFUSALS = [
    ("trian.num_steps=3", "unknown field trian; did you mean train?"),
    ("train.num_stpes=3", "unknown field train.num_stpes; did you mean train.num_steps?"),
    ("optim.qqqqqq=3", "unknown field optim.qqqqqq; known are learning_rate, parser_learning_rate"),
    ("train.num_steps=ten", "train.num_steps: 'ten' is not allowed; it must be a whole number"),
    ("train.num_steps=1.5", "train.num_steps: 1.5 is not allowed; it must be a whole number"),
    ("train.num_steps=true", "train.num_steps: true is not allowed; it must be a whole number"),
    ("train.num_steps=0", "train.num_steps: 0 is not allowed; it must be >= 1"),
    ("train.clip_norm=.inf", "train.clip_norm: inf is not allowed; it must be a finite number"),
    ("train.stop_at_step=0", "train.stop_at_step: 0 is not allowed; it must be >= 1 or null"),
    ("optim.learning_rate=fast", "optim.learning_rate: 'fast' is not allowed; it must be a number"),
    ("optim.learning_rate=true", "optim.learning_rate: true is not allowed; it must be a number"),
    ("optim.learning_rate=-1", "optim.learning_rate: -1.0 is not allowed; it must be >= 0"),
    ("optim.learning_rate=.nan", "optim.learning_rate: nan is not allowed"),
    ("optim.betas=[0.9]", "optim.betas: [0.9] is not allowed; it must be a list of 2 values"),
    ("optim.betas=[0.9, x]", "optim.betas[1]: 'x' is not allowed; it must be a number"),
    ("optim.betas=[0.9, 1.0]", "optim.betas: [0.9, 1.0] is not allowed; it must be two numbers in"),
    ("optim.decay=no", "optim.decay: 'no' is not allowed; it must be linear | cosine | constant"),
    ("optim.warmup_fraction=2", "optim.warmup_fraction: 2.0 is not allowed; it must be in [0, 1]"),
    (
        "structure.temperature_end=0",
        "structure.temperature_end: 0.0 is not allowed; it must be > 0",
    ),
    ("engine.precision=fp8", "engine.precision: 'fp8' is not allowed; it must be fp32 | bf16"),
    ("engine.zero_stage=true", "engine.zero_stage: true is not allowed; it must be 0 | 1 | 2"),
    ("engine.checkpointing=all", "engine.checkpointing: 'all' is not allowed; it must be a list"),
    (
        "engine.checkpointing=[all]",
        "engine.checkpointing[0]: 'all' is not allowed; it must be comp",
    ),
    ("engine.deepspeed=3", "engine.deepspeed: 3 is not allowed; it must be `field: value` lines"),
    ("engine=3", "engine: 3 is not allowed; it must be `field: value` lines"),
    ("train.num_steps.x=3", "train.num_steps.x: train.num_steps is 10, which holds no fields"),
    ("monitor.sentences=['']", "monitor.sentences: '' is not allowed; it must be text, not blank"),
    ("monitor.log_every_steps=0", "monitor.log_every_steps: 0 is not allowed; it must be >= 1"),
    ("evaluate.every_steps=x", "evaluate.every_steps: 'x' is not allowed; it must be a whole"),
    ("checkpoint.keep_last=0", "checkpoint.keep_last: 0 is not allowed; it must be >= 1"),
    ("seed=-1", "seed: -1 is not allowed; it must be in [0, 2**63)"),
    ("run_dir=", "run_dir: null is not allowed; it must be text"),
    ("model=3", "model: 3 is not allowed; it must be `field: value` lines"),
    ("model=absent.yaml", "model: no file absent.yaml in the working directory or in "),
    ("data={context_tokens: 9}", "data: give either data.path or data.datasets"),
    ("data.datasets=[{path: y}]", "data: give either data.path or data.datasets"),
    ("data.context_tokens=1", "data.context_tokens: 1 is not allowed; it must be >= 2"),
    ("train={}", "train.num_steps is missing: give it in the config file"),
    ("num_steps", "override 'num_steps': write it as field=value"),
    ("train..x=3", "override 'train..x=3': write it as field=value"),
    ("seed=[1", "override 'seed=[1': the value is not valid YAML"),
    ("optim={eps: 1e-8, eps: 1e-9}", "key 'eps' is given twice"),
]


@pytest.mark.parametrize(("override", "message"), REFUSALS, ids=[o for o, _ in REFUSALS])
def test_refusals_name_the_field_the_value_and_what_is_allowed(run_file, override, message):
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_checkpoints_to_keep_are_among_those_that_are_written(run_file):
    def load(every: str, keep: str):
        return load_config(
            run_file, [f"checkpoint.every_steps={every}", f"checkpoint.keep_every_steps={keep}"]
        )

    for every, keep in (
        ("3", "6"),
        ("3", "3"),
        ("6", "3"),
        ("3", "1"),
        ("null", "5"),
        ("3", "null"),
    ):
        load(every, keep)
    with pytest.raises(ConfigError) as caught:
        load("300", "1000")
    assert str(caught.value) == (
        "checkpoint.keep_every_steps: 1000 is no multiple of checkpoint.every_steps 300, so that "
        "only each 3000th step's would be kept; give a multiple, or null"
    )


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_stage_0_with_bf16_is_refused(run_file, decay):
    overrides = ["engine.precision=bf16", "engine.zero_stage=0", f"optim.decay={decay}"]
    with pytest.raises(ConfigError, match=r"use engine\.zero_stage 1"):
        load_config(run_file, overrides)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it must hold"),
        (b"# nothing\n", "is empty; it must hold"),
        (b"- a\n- b\n", "holds no `field: value` lines"),
        (
            b"a: [1\nb: 2\n",
            "while parsing a flow sequence: expected ',' or ']', but got ':' (line 2, column 2)",
        ),
        (b"seed: 1\nseed: 2\n", "key 'seed' is given twice (line 2)"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"run_dir: x\n", "model is missing"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config file .*absent\.yaml: cannot be read \(No such"):
        load_config(tmp_path / "absent.yaml")


def test_printed_config_reads_back(run_file, tmp_path):
    config = load_config(run_file, ["optim.eps=1e-9", "data={datasets: [{path: d}]}"])
    printed = tmp_path / "printed.yaml"
    printed.write_text(config_to_yaml(config))
    assert load_config(printed) == config
    assert yaml.safe_load(printed.read_text())["optim"]["eps"] == 1e-9


def test_a_resolved_run_reads_back(run_file, tmp_path):
    resolved = resolve_model(load_config(run_file), manifest())
    written = tmp_path / "config.yaml"
    written.write_text(config_to_yaml(resolved))
    assert resolve_model(load_config(written), manifest()) == resolved


def test_a_mixture_lists_its_sources(run_file):
    override = "data={datasets: [{path: a, weight: 3}, {path: b}]}"
    sources = load_config(run_file, [override]).data.sources
    assert [(s.path, s.weight) for s in sources] == [("a", 3.0), ("b", 1.0)]
    with pytest.raises(ConfigError, match=r"data\.datasets weight: 0\.0 is not allowed"):
        load_config(run_file, ["data={datasets: [{path: a, weight: 0}]}"])


# --- batch arithmetic


@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 4), (2, 2), (4, 1)])
def test_batch_shape(run_file, world_size, accumulation):
    shape = batch_shape(load_config(run_file), world_size)
    assert shape == BatchShape(8, 2, accumulation, world_size)
    assert f"8 contexts a step = 2 a micro-batch x {accumulation} accumulated" in shape.describe()


def test_a_micro_batch_that_does_not_divide_is_refused_with_those_that_do(run_file):
    with pytest.raises(ConfigError) as caught:
        batch_shape(load_config(run_file, ["train.micro_batch_contexts_per_rank=3"]), 2)
    assert str(caught.value) == (
        "train.global_batch_contexts 8 is not a multiple of train.micro_batch_contexts_per_rank 3 "
        "x 2 ranks = 6; set train.micro_batch_contexts_per_rank to one of 1, 2, 4"
    )


def test_ranks_that_do_not_divide_are_refused_with_global_batches_that_fit(run_file):
    with pytest.raises(ConfigError, match=r"8 is not a multiple of .* 3 ranks = 6; .* 6 or 9"):
        batch_shape(load_config(run_file), 3)
    with pytest.raises(ConfigError, match=r"set train\.global_batch_contexts to 16, or use"):
        batch_shape(load_config(run_file), 16)


# --- the model and the dataset


def test_the_dataset_completes_the_model(run_file):
    model = resolve_model(load_config(run_file), manifest(vocab_size=77, bos_id=5)).model
    assert isinstance(model, GPSTConfig)
    assert (model.vocab_size, model.bos_token_id, model.hidden_dim) == (77, 5, 32)


def test_matching_values_are_accepted(run_file):
    config = load_config(run_file, ["model.vocab_size=100", "model.bos_token_id=3"])
    assert resolve_model(config, manifest()).model.vocab_size == 100


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.vocab_size=101", "model.vocab_size 101 does not match the dataset's tokenizer"),
        ("model.bos_token_id=0", "model.bos_token_id 0 does not match the dataset's tokenizer"),
        ("data.context_tokens=1025", "data.context_tokens 1025 is more than model.max_context"),
        ("model.max_context_tokens=512", "data.context_tokens 1024 is more than model.max_context"),
        ("model.hiden_dim=8", "model: unknown field hiden_dim; did you mean hidden_dim?"),
        ("model.kind=bert", "model: kind: 'bert' is not allowed"),
        ("model.hidden_dim=33", "model: hidden_dim: 33 is not allowed"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(run_file, override, message):
    with pytest.raises(ConfigError) as caught:
        resolve_model(load_config(run_file, [override]), manifest())
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
