"""What people do with models of transformers, on the GPT-2 export and on the GPST export alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers_models import TEXTS, is_gpst, load, write

from gpst.export.huggingface import open_model
from gpst.export.remote import REMOTE_CODE

# transformers, peft and accelerate are not as clean as this project.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("own_modules")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_a_half_type_starts_from_its_configuration(folder, dtype):
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize(
    "changed",
    [{"num_token_layers": 3, "n_layer": 3}, {"vocab_size": 400}, {"hidden_dim": 32, "n_embd": 32}],
    ids=["a layer more", "more tokens", "another width"],
)
def test_what_a_folder_lacks_is_initialised(folder, changed):
    known = AutoConfig.from_pretrained(folder, trust_remote_code=True).to_dict()
    changed = {name: value for name, value in changed.items() if name in known}
    model = load(folder, ignore_mismatched_sizes=True, **changed)
    for name, weight in model.named_parameters():
        assert weight.isfinite().all(), name
        assert weight.abs().max() < 10, name
        if weight.ndim > 1:
            assert weight.std() > 0, name
    if is_gpst(model) and "num_token_layers" in changed:  # what is there is kept
        kept = open_model(folder).weights()["embedding.weight"]
        assert torch.equal(model.gpst.embedding.weight, kept)


def test_saved_in_pieces_and_loaded(model, tokenizer, inputs, tmp_path):
    model.save_pretrained(tmp_path / "again", max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path / "again")
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 1
    back = load(tmp_path / "again")
    with torch.no_grad():
        torch.testing.assert_close(back(**inputs).logits, model(**inputs).logits)
    weights = open_model(tmp_path / "again").model().state_dict()
    if is_gpst(model):
        assert all(torch.equal(weights[k], v) for k, v in model.gpst.state_dict().items())
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(TEXTS, padding=True).input_ids == tokenizer(TEXTS, padding=True).input_ids


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(folder, inputs, dtype):
    model = load(folder, dtype=dtype)
    assert next(model.parameters()).dtype == dtype
    output = model(**inputs, labels=inputs.input_ids)
    assert output.logits.dtype == dtype
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert write(model, **inputs, max_new_tokens=2).shape[0] == 3


def test_labels_of_minus_100_have_no_loss(model, inputs):
    labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
    one = labels.clone()
    one[[0, 2]] = -100
    mask = inputs.attention_mask[1].bool()
    alone_ids = inputs.input_ids[1:2, mask]

    def loss_and_gradient(**given):
        model.zero_grad()
        loss = model(**given).loss
        loss.backward()
        return float(loss), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    loss, gradients = loss_and_gradient(**inputs, labels=one)
    expected, theirs = loss_and_gradient(input_ids=alone_ids, labels=alone_ids)
    assert loss == pytest.approx(expected, rel=1e-5)
    for ours, gradient in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-5)
    # A part of a row: another number, and none for what was left out.
    half = alone_ids.clone()
    half[:, :6] = -100
    part, _ = loss_and_gradient(input_ids=alone_ids, labels=half)
    assert part != pytest.approx(expected, rel=1e-3)


def test_the_forms_of_an_output(model, inputs):
    with torch.no_grad():
        output = model(**inputs, labels=inputs.input_ids)
        loss, logits = model(**inputs, labels=inputs.input_ids, return_dict=False)[:2]
        bare = model(**inputs, return_dict=False)
    torch.testing.assert_close(loss, output.loss)
    torch.testing.assert_close(logits, output.logits)
    assert torch.allclose(bare[0], logits, atol=1e-5)
    if not is_gpst(model):
        assert model(**inputs, output_hidden_states=True).hidden_states is not None
        return
    for name in ("output_hidden_states", "output_attentions", "position_ids", "inputs_embeds"):
        with pytest.raises(ValueError, match=rf"^{name} is not supported by GPST: [^\n]*$"):
            model(**inputs, **{name: True})
    model.config.output_hidden_states = True
    with pytest.raises(ValueError, match=r"^output_hidden_states is not supported"):
        model(**inputs)
    assert model(**inputs, output_hidden_states=False).logits is not None
    model.config.output_hidden_states = False
    with pytest.raises(ValueError, match="input_ids are missing"):
        model()
    assert model(**inputs, output_attentions=False, use_cache=True).logits is not None


def test_masks_and_ids_that_cannot_be_are_named(folder, inputs):
    model = load(folder)
    if not is_gpst(model):
        pytest.skip("transformers' own GPT-2 says what it says")
    ids, mask = inputs.input_ids, inputs.attention_mask
    with torch.no_grad():
        plain = model(ids, mask).logits
        torch.testing.assert_close(model(ids, mask.float()).logits, plain)
        torch.testing.assert_close(model(ids, mask.bool()).logits, plain)
        right = model(ids[:2, -3:], torch.tensor([[1, 1, 1], [1, 1, 0]])).logits
        assert torch.allclose(right[1:, :2], model(ids[1:2, -3:-1]).logits, atol=1e-5)
        segments = torch.zeros_like(ids)
        torch.testing.assert_close(model(ids, mask, token_type_ids=segments).logits, plain)
    hole = mask.clone()
    hole[1, 2] = 0
    for given, message in (
        ({"attention_mask": mask[:, None, None]}, "masks of more dimensions are not supported"),
        ({"attention_mask": (1.0 - mask.float()) * -1e9}, "values must be 1 for tokens"),
        (
            {"attention_mask": hole},
            "padding must come before or after.* to generate, pad on the left",
        ),
        ({"attention_mask": mask * 0}, "row 0 has 0 tokens; the model takes 1 to 128"),
        ({"input_ids": ids + 300}, "is no token; the vocabulary has 336"),
        ({"input_ids": ids[0]}, "is not \\(rows, tokens\\)"),
        ({"labels": ids[:, 1:]}, "labels: shape .* is not that of input_ids"),
        ({"labels": ids.roll(1, 1)}, "labels: each must be its token's id, or -100"),
        ({"token_type_ids": mask}, "token_type_ids is not supported"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            model(**({"input_ids": ids, "attention_mask": mask} | given))
        assert "\n" not in str(caught.value)
    whole = torch.ones(1, 128, dtype=torch.int64)
    output = model(whole, labels=whole)  # a context of full length
    assert output.logits.shape == (1, 128, 336)
    with pytest.raises(ValueError, match="row 0 has 129 tokens; the model takes 1 to 128"):
        model(torch.ones(1, 129, dtype=torch.int64))
    with pytest.raises(ValueError, match="120 tokens and 9 new ones are more than the model takes"):
        model.generate(whole[:, :120], max_new_tokens=9)
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(ids[:1], max_new_tokens=3, assistant_model=model)


def test_new_tokens_get_embeddings(model, tokenizer, tmp_path):
    before = model.config.vocab_size
    ids = torch.tensor([[5, 9, 17]])
    with torch.no_grad():
        logits = model(ids).logits
    model.resize_token_embeddings(before + 3)
    assert model.config.vocab_size == before + 3
    with torch.no_grad():
        assert torch.allclose(model(ids).logits[..., :before], logits, atol=1e-5)
        new = model(torch.tensor([[5, before + 2]])).logits
    model.save_pretrained(tmp_path / "more")
    tokenizer.save_pretrained(tmp_path / "more")
    back = load(tmp_path / "more")
    with torch.no_grad():
        torch.testing.assert_close(back(torch.tensor([[5, before + 2]])).logits, new)
    assert open_model(tmp_path / "more").model().config.vocab_size == before + 3
    assert write(back, inputs=ids, max_new_tokens=2).shape == (1, 5)
    back.resize_token_embeddings(before)
    with torch.no_grad():
        assert torch.allclose(back(ids).logits, logits, atol=1e-5)


def test_the_trainer_trains_evaluates_and_predicts(folder, tokenizer, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    model = load(folder)
    rows = [{"input_ids": tokenizer(text).input_ids} for text in TEXTS * 2]
    arguments = TrainingArguments(
        str(tmp_path / "run"), max_steps=4, per_device_train_batch_size=2, learning_rate=3e-3,
        gradient_accumulation_steps=2, gradient_checkpointing=True, logging_steps=2,
        report_to=[], use_cpu=True, save_strategy="steps", save_steps=4, disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:3], data_collator=collator
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    predicted = trainer.predict(rows[:3])
    longest = max(len(row["input_ids"]) for row in rows[:3])
    assert predicted.predictions.shape == (3, longest, model.config.vocab_size)
    [checkpoint] = (tmp_path / "run").glob("checkpoint-*")
    assert type(load(checkpoint)) is type(model)


def test_a_trainer_of_sequences_generates(folder, tokenizer, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "run"), predict_with_generate=True, generation_max_length=12, report_to=[],
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    ids = tokenizer(TEXTS[0]).input_ids
    rows = [{"input_ids": ids, "labels": ids, "token_type_ids": [0] * len(ids)}] * 2
    trainer = Seq2SeqTrainer(
        load(folder), arguments, data_collator=DataCollatorForSeq2Seq(tokenizer)
    )
    assert trainer.predict(rows).predictions.shape[1] >= len(ids)


def test_what_needs_the_core_models_own_forward_is_refused(make_export, tmp_path):
    make_export(tmp_path)
    ids = torch.tensor([[5, 6]])
    with pytest.raises(ValueError, match="trl's SFTTrainer, cannot train it; use transformers' Tr"):
        load(tmp_path).base_model(input_ids=ids)
    model = load(tmp_path).train()
    model.get_input_embeddings().neftune_noise_alpha = 5.0  # as the Trainer does
    with pytest.raises(ValueError, match="neftune_noise_alpha"):
        model(ids, labels=ids)
    pytest.importorskip("accelerate")
    places = {name: "cpu" for name, _ in model.gpst.named_children()} | {"embedding": "disk"}
    places = {f"gpst.{name}": place for name, place in places.items()}
    model = load(tmp_path, device_map=places, offload_folder=str(tmp_path / "offloaded"))
    with pytest.raises(ValueError, match="the weights are offloaded to the disk or the CPU, and"):
        model(ids)


def test_checkpointed_activations_change_nothing(model, inputs):
    labels = inputs.input_ids

    def gradient():
        model.zero_grad()
        model.train()
        torch.manual_seed(0)
        model(**inputs, labels=labels).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    plain = gradient()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    for name, value in gradient().items():
        torch.testing.assert_close(value, plain[name], msg=name)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def test_compiled_it_is_the_same(model, inputs):
    """torch.compile: GPST runs as it is, since its operations are others in every batch."""
    torch._dynamo.reset()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    compiled = torch.compile(model, backend="eager")
    losses = [run(**inputs, labels=labels).loss for run in (model, compiled)]
    assert torch.equal(*losses)
    gradients = [torch.autograd.grad(loss, model.get_input_embeddings().weight) for loss in losses]
    assert torch.equal(gradients[0][0], gradients[1][0])
    texts = [run.generate(**inputs, max_new_tokens=3) for run in (model, compiled)]
    assert torch.equal(*texts)
    if is_gpst(model):
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


def test_who_has_no_gpst_is_told_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpst"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gpst", None)
    with pytest.raises(ImportError, match=r"this model needs the package gpst: pip install gpst"):
        exec(REMOTE_CODE, {})


@pytest.mark.slow
def test_a_folder_loads_in_a_process_that_has_not_imported_gpst(folder, tmp_path):
    code = (
        "from transformers import AutoModelForCausalLM as A, AutoTokenizer as T; import sys;"
        "model = A.from_pretrained(sys.argv[1], trust_remote_code=True);"
        "print(type(model).__name__, len(T.from_pretrained(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "HF_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.split()[0] in ("GPSTForCausalLM", "GPT2LMHeadModel")
