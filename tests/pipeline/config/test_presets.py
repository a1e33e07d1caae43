"""The shipped configurations: all load, and those of the paper have its hyper-parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml

from data_prep.format.manifest import Manifest, TokenizerRecord
from gpst.config import GPSTConfig, GPT2Config
from gpst.config import config_from_dict as model_from_dict
from gpst.model.build import build_model
from pipeline.config.batch_shape import batch_shape, resolve_model
from pipeline.config.run import REPOSITORY, load_config

CONFIGS = REPOSITORY / "configs"


def manifest(vocab_size=30_522):
    return Manifest(vocab_size, "uint16", TokenizerRecord("t", "byte_bpe", "", 3, 0), ())


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("run/*.yaml")), ids=lambda p: p.stem)
def test_every_run_config_loads_resolves_and_divides(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolve_model(load_config(path), manifest(vocab_size=30_522))
    for world_size in (1, 2):
        batch_shape(config, world_size)
    assert config.run_dir == f"runs/{path.stem}"
    assert config.data.context_tokens <= config.model.max_context_tokens


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("model/*.yaml")), ids=lambda p: p.stem)
def test_every_model_config_builds(path):
    fields = yaml.safe_load(path.read_text())
    model = model_from_dict({**fields, "vocab_size": 30_522, "bos_token_id": 0})
    assert model.kind == path.stem.split("_")[0]


def parameters(name: str, vocab_size: int) -> dict[str, int]:
    """Of a preset, each once, in all and by part; on the meta device, which takes no memory."""
    fields = yaml.safe_load((CONFIGS / "model" / f"{name}.yaml").read_text())
    with torch.device("meta"):
        model = build_model(
            model_from_dict({**fields, "vocab_size": vocab_size, "bos_token_id": 0})
        )
    parts = {part: sum(p.numel() for p in m.parameters()) for part, m in model.named_children()}
    return parts | {"all": sum(p.numel() for p in model.parameters())}


@pytest.mark.parametrize(
    ("size", "millions", "to_gpt2", "to_one_layer_more", "generative_part_to_gpt2"),
    [("small", 125.6, 1.149, 1.079, 1.049), ("medium", 377.4, 1.128, 1.087, 1.028)],
)
def test_the_presets_have_the_authors_sizes(
    size, millions, to_gpt2, to_one_layer_more, generative_part_to_gpt2
):
    """At a vocabulary of 30,522. docs/how_it_works.md says what the ratios mean."""
    gpst, gpt2 = (parameters(f"{kind}_{size}", 30_522) for kind in ("gpst", "gpt2"))
    longer = parameters({"small": "gpt2_small_13", "medium": "gpt2_medium_25"}[size], 30_522)
    assert gpst["all"] / 1e6 == pytest.approx(millions, abs=0.05)
    assert gpst["all"] / gpt2["all"] == pytest.approx(to_gpt2, abs=5e-4)
    assert gpst["all"] / longer["all"] == pytest.approx(to_one_layer_more, abs=5e-4)
    generative = gpst["embedding"] + gpst["generator"]
    assert generative / gpt2["all"] == pytest.approx(generative_part_to_gpt2, abs=5e-4)


@pytest.mark.parametrize("size", ["small", "medium"])
@pytest.mark.parametrize("ablation", ["no_surrogate", "no_gradient_stop"])
def test_ablations_have_the_same_sizes(size, ablation):
    full, ablated = (parameters(f"gpst_{size}{end}", 30_522) for end in ("", f"_{ablation}"))
    comp_embedding = {"small": 768, "medium": 1024}[size] if ablation == "no_surrogate" else 0
    assert ablated["all"] == full["all"] + comp_embedding


def test_small_s_sizes_are_the_defaults():
    fields = yaml.safe_load((CONFIGS / "model" / "gpst_small.yaml").read_text())
    base = {"vocab_size": 30_522, "bos_token_id": 0}
    small, default = model_from_dict({**fields, **base}), model_from_dict(base)
    assert isinstance(small, GPSTConfig)
    assert isinstance(default, GPSTConfig)
    parser = replace(default.parser, score_dim=default.parser.score_width)
    head = default.token_head_width
    assert small == replace(default, init="paper", token_head_dim=head, parser=parser)


CORPORA = {"wikitext103": 5e9, "openwebtext": 15e9}
RATES = {"small": (5e-5, 1e-3), "medium": (1e-4, 2e-3)}
ABLATIONS = {"no_surrogate": "surrogate", "no_gradient_stop": "gradient_stop"}
PAPER = [
    *(f"gpst_{size}" for size in RATES),
    *(f"gpst_{size}_{ablation}" for size in RATES for ablation in ABLATIONS),
    *("gpt2_small", "gpt2_small_13", "gpt2_medium", "gpt2_medium_25"),
]
MODERN = ["gpst_small", "gpst_medium", "gpt2_small_13", "gpt2_medium_25"]


def test_no_config_is_missing_and_none_is_unknown():
    runs = {path.stem for path in CONFIGS.glob("run/*.yaml")}
    wanted = {f"{name}_{corpus}" for name in PAPER for corpus in CORPORA}
    wanted |= {f"{name}_modern_{corpus}" for name in MODERN for corpus in CORPORA}
    assert runs == wanted | {"demo", "demo_gpt2", "miniature", "miniature_gpt2"}
    assert {path.stem for path in CONFIGS.glob("model/*.yaml")} == {
        *PAPER,
        "gpst_miniature",
        "gpst_tiny",
        "gpt2_tiny",
    }


@pytest.mark.parametrize("name", ["demo", "miniature"])
def test_models_are_compared_on_the_same_batches(name):
    gpst, gpt2 = (load_config(CONFIGS / "run" / f"{name}{end}.yaml") for end in ("", "_gpt2"))
    assert (gpst.data, gpst.train, gpst.seed) == (gpt2.data, gpt2.train, gpt2.seed)
    a, b = (resolve_model(config, manifest()).model for config in (gpst, gpt2))
    assert isinstance(a, GPSTConfig)
    assert isinstance(b, GPT2Config)
    assert b.num_layers == a.num_type_layers + a.num_token_layers
    for name in ("hidden_dim", "num_heads", "ffn_dim", "init"):
        assert getattr(a, name) == getattr(b, name)


def test_models_of_the_paper_start_as_in_the_authors_code_and_ours_by_their_width():
    for path in CONFIGS.glob("model/*.yaml"):
        values = yaml.safe_load(path.read_text())
        model = model_from_dict(values | {"vocab_size": 100, "bos_token_id": 0})
        assert model.init == ("paper" if path.stem in PAPER else "width_scaled"), path


def recipe(name, corpus):
    """The run's config, checked for what both recipes share."""
    path = CONFIGS / "run" / f"{name}_{corpus}.yaml"
    config = load_config(path)
    tokens_per_step = config.train.global_batch_contexts * config.data.context_tokens
    assert tokens_per_step == 8 * 32 * 1024
    tokens = config.train.num_steps * tokens_per_step
    assert 0 <= tokens - CORPORA[corpus] < tokens_per_step
    assert config.data.path == f"data/{corpus}"
    assert config.train.clip_norm == 1.0
    assert config.evaluate.every_steps is not None
    for ranks in (1, 8):
        batch_shape(config, ranks)
    return config, path.read_text().splitlines()[0]


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipe(name, corpus):
    config, title = recipe(name, corpus)
    assert "the paper's recipe" in title
    rate, parser_rate = RATES[name.split("_")[1]]
    optim, structure = config.optim, config.structure
    assert optim.learning_rate == rate
    if name.startswith("gpst"):
        assert optim.parser_learning_rate == parser_rate
    assert (optim.decay, optim.warmup_fraction, optim.final_fraction) == ("linear", 0.01, 0.0)
    assert (optim.betas, optim.weight_decay) == ((0.9, 0.999), 0.0)
    assert (structure.noise_start, structure.noise_end) == (1.0, 1.0)
    assert (structure.temperature_start, structure.temperature_end) == (1.0, 1.0)
    assert config.train.spike_deviations is None


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("name", MODERN)
def test_the_modern_recipe_is_marked_as_ours(name, corpus):
    config, title = recipe(f"{name}_modern", corpus)
    assert "OURS, not the paper's" in title
    paper, _ = recipe(name, corpus)
    assert (config.model, config.data, config.seed) == (paper.model, paper.data, paper.seed)
    assert config.optim.learning_rate > paper.optim.learning_rate
    assert (config.optim.decay, config.engine.precision) == ("cosine", "bf16")


@pytest.mark.parametrize("size", RATES)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_differs_in_its_one_switch(size, ablation):
    runs = CONFIGS / "run"
    full = load_config(runs / f"gpst_{size}_wikitext103.yaml")
    ablated = load_config(runs / f"gpst_{size}_{ablation}_wikitext103.yaml")
    switch = ABLATIONS[ablation]
    a, b = (vars(resolve_model(run, manifest()).model) for run in (full, ablated))
    assert {name for name in a if a[name] != b[name]} == {switch}
    assert b[switch] is False
    for section in ("train", "optim", "structure", "engine", "data"):
        assert getattr(full, section) == getattr(ablated, section)
