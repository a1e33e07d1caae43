"""Adapters of peft, on the GPT-2 export and on the GPST export alike."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AutoTokenizer
from transformers_models import TEXTS, load, write

from gpst.config import CompositionConfig
from gpst.integrations.transformers import adapters

# transformers, peft and accelerate are not as clean as this project.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("own_modules")]


def test_adapters_train_merge_save_and_load(folder, inputs, tmp_path):
    peft = pytest.importorskip("peft")
    model = load(folder)
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    adapted.train()
    labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
    optimizer = torch.optim.Adam((p for p in adapted.parameters() if p.requires_grad), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = adapted(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    silent = [
        name
        for name, p in adapted.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert not silent  # an adapter does something wherever it is
    adapted.eval()
    with torch.no_grad():
        expected = adapted(**inputs).logits
    greedy = write(adapted, **inputs, max_new_tokens=3).tolist()
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load(folder), tmp_path / "adapter")
    with torch.no_grad():
        assert torch.allclose(again(**inputs).logits, expected, atol=1e-5)
    merged = adapted.merge_and_unload()
    with torch.no_grad():
        assert torch.allclose(merged(**inputs).logits, expected, atol=1e-4)
    assert write(merged, **inputs, max_new_tokens=3).tolist() == greedy


TOKEN = {"gpst.embedding": [5]}


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"target_modules": ["gpst.embedding"]}, False),
        ({"target_modules": [], "target_parameters": ["gpst.embedding.weight"]}, False),
        ({"target_modules": ["gpst.parser.embedding"]}, True),
        ({"target_modules": ["query_key_value"], "modules_to_save": ["gpst.embedding"]}, True),
        (
            {
                "target_modules": ["query_key_value"],
                "trainable_token_indices": TOKEN,
            },
            True,
        ),
    ],
)
def test_adapters_on_the_tied_embedding(make_export, tmp_path, options, trained):
    """Merged, one on the embedding would be in the prediction heads; before, it is not."""
    peft = pytest.importorskip("peft")
    make_export(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)(TEXTS[1], return_tensors="pt").input_ids
    adapted = peft.get_peft_model(
        load(tmp_path), peft.LoraConfig(r=2, task_type="CAUSAL_LM", **options)
    ).train()
    if not trained:
        with pytest.raises(ValueError, match=r"an adapter on gpst\.embedding is not supported"):
            adapted(ids, labels=ids)
        return
    optimizer = torch.optim.Adam((p for p in adapted.parameters() if p.requires_grad), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        adapted(ids, labels=ids).loss.backward()
        optimizer.step()
    adapted.eval()
    with torch.no_grad():
        expected = adapted(ids).logits
        assert torch.allclose(adapted.merge_and_unload()(ids).logits, expected, atol=1e-4)


ONE_SPLIT = CompositionConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1, score_dim=8, window=1)


WITHOUT_SCORES = {"exclude_modules": ".*score.*"}


@pytest.mark.parametrize(("options", "idle"), [({}, True), (WITHOUT_SCORES, False)])
def test_adapters_that_learn_nothing_are_named(make_export, tmp_path, options, idle):
    peft = pytest.importorskip("peft")
    make_export(tmp_path, composition=ONE_SPLIT)
    ids = AutoTokenizer.from_pretrained(tmp_path)(TEXTS[1], return_tensors="pt").input_ids
    lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    adapted = peft.get_peft_model(load(tmp_path), lora).train()
    adapters._warn.cache_clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        adapted(ids, labels=ids).loss.backward()
    silent = {
        name.removeprefix("base_model.model.gpst.").rpartition(".lora_")[0]
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad and not parameter.grad.any() and "lora_B" in name
    }
    said = [str(w.message) for w in warned if "learn nothing" in str(w.message)]
    assert bool(silent) == bool(said) == idle
    if idle:
        assert set(said[0].split(": ")[1].split(";")[0].split(", ")) == silent
