"""Export, the way back, and what transformers makes of it."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2LMHeadModel,
)

import gpst.integrations.transformers
from gpst import GPST
from gpst.batch import ContextBatch
from gpst.export.errors import ModelFolderError
from gpst.export.huggingface import core_config, export, open_model
from gpst.model.classifier import Classifier, split_classifier
from gpst.model.losses import total_loss
from gpst.search.sampling import Sampling

gpst.integrations.transformers.register()
ROWS = [[[5, 9, 17], [200, 3]], [[7, 8, 40, 41, 42]]]


def test_weights_and_losses_come_back_bit_for_bit(tmp_path, make_export):
    model = make_export(tmp_path)
    back = open_model(tmp_path).model()
    assert not back.training
    modes = {(tmp_path / name).stat().st_mode for name in ("model.safetensors", "tokenizer.json")}
    assert len(modes) == 1
    assert back.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    batch = ContextBatch.from_sentences(ROWS)
    with torch.no_grad():
        ours, theirs = model(batch).losses, back(batch).losses
    assert {k: float(v.sum) for k, v in ours.items()} == {
        k: float(v.sum) for k, v in theirs.items()
    }


def test_transformers_loads_it_and_saves_it_again(tmp_path, make_export):
    model = make_export(tmp_path / "a")
    assert gpst.integrations.transformers.GPSTForCausalLM is not None  # registers
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert type(loaded) is gpst.integrations.transformers.GPSTForCausalLM
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()["gpst." + name], tensor), name
    loaded.save_pretrained(tmp_path / "b")
    AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    again = open_model(tmp_path / "b")
    assert again.config == model.config
    assert again.final_tokens == open_model(tmp_path / "a").final_tokens
    for name, tensor in again.model().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_logits_predict_the_next_token_as_in_training(tmp_path, make_export):
    model = make_export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 17, 200, 3], [7, 8, 40, 41, 42]])
    ends = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 0, 0, 1]]).bool()
    with torch.no_grad():
        output = loaded(ids, sentence_ends=ends, labels=ids)
        batch = ContextBatch.from_sentences(ROWS)
        losses = model(batch).losses
        first = model(ContextBatch.from_sentences([[[5]], [[7]]])).losses["token"].sum
    assert float(output.loss) == pytest.approx(float(total_loss(losses, batch.counts)), rel=1e-6)
    log_p = torch.log_softmax(output.logits[:, :-1], -1).gather(2, ids[:, 1:, None]).sum()
    assert float(first) - float(log_p) == pytest.approx(float(losses["token"].sum), abs=1e-4)
    trees = loaded(ids, sentence_ends=ends).trees
    assert [[t.num_tokens for t in row] for row in trees] == [[3, 2], [5]]


def test_padding_changes_nothing(tmp_path, make_export):
    make_export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 17, 0, 0], [7, 8, 40, 41, 42]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        both = loaded(ids, attention_mask=mask).logits
        alone = loaded(ids[:1, :3]).logits
        left = loaded(ids.flip(1), attention_mask=mask.flip(1)).logits
        reverse = loaded(ids[:1, :3].flip(1)).logits
    assert torch.allclose(both[:1, :3], alone, atol=1e-5)
    assert torch.allclose(left[:1, 2:], reverse, atol=1e-5)


def test_classifier_takes_the_exported_weights_and_learns(tmp_path, make_export):
    model = make_export(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(classifier.state_dict()["gpst." + name], tensor), name
    ids = torch.tensor([[5, 9, 17, 4], [7, 8, 40, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    output = classifier(ids, attention_mask=mask, labels=torch.tensor([2, 0]))
    assert output.logits.shape == (2, 3)
    output.loss.backward()
    assert classifier.classifier.weight.grad.abs().sum() > 0
    assert classifier.gpst.composition.role.grad.abs().sum() > 0
    classifier.eval()
    alone = classifier(ids[1:, :3]).logits
    assert torch.allclose(classifier(ids, attention_mask=mask).logits[1:], alone, atol=1e-5)


def test_a_fine_tuned_classifier_gives_the_same_logits(tmp_path, make_export):
    core = make_export(tmp_path / "core")
    torch.manual_seed(1)
    model = Classifier(core, 3).eval()
    weights, head = split_classifier(model.state_dict())
    export(tmp_path / "out", core.config, weights, tmp_path / "core", 0, "", head)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert back.num_labels == 3
    ids, ends = torch.tensor([[5, 9, 17, 200, 3]]), torch.tensor([[0, 0, 1, 0, 1]]).bool()
    with torch.no_grad():
        logits = back(ids, sentence_ends=ends).logits
    bos = core.config.bos_token_id
    batch = ContextBatch.from_sentences([[[5, 9, 17], [200, 3], [bos], [0]]])
    with torch.no_grad():
        expected = model.classifier(core(batch).features[-1:])
    assert torch.allclose(logits, expected, atol=1e-5)
    # The folder is a language model as well.
    assert torch.equal(open_model(tmp_path / "out").weights()["embedding.weight"],
                       core.embedding.weight)  # fmt: skip
    gpt2 = make_export(tmp_path / "gpt2", "gpt2")
    with pytest.raises(ModelFolderError, match="only GPST classifiers can be exported"):
        export(tmp_path / "x", gpt2.config, gpt2.state_dict(), tmp_path / "gpt2", 0, "", head)


def test_gpt2_is_plain_gpt2(tmp_path, make_export):
    model = make_export(tmp_path, "gpt2")
    plain = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[0, 5, 9, 17]])
    with torch.no_grad():
        log_p = torch.log_softmax(plain(ids).logits[:, :-1], -1).gather(2, ids[:, 1:, None])
        batch = ContextBatch.from_sentences([[[5, 9, 17]]])
        expected = float(model(batch).losses["token"].sum)
        back = float(open_model(tmp_path).model()(batch).losses["token"].sum)
    assert -float(log_p.sum()) == pytest.approx(expected, abs=1e-4)
    assert back == expected


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_how_the_weights_started_is_written_and_read(tmp_path, make_export, kind):
    made = {"width_scaled": make_export(tmp_path / "width_scaled", kind)}
    made["paper"] = make_export(tmp_path / "paper", kind, init="paper")
    for init, model in made.items():
        folder = tmp_path / init
        assert json.loads((folder / "config.json").read_text())["init"] == init
        assert open_model(folder).config == model.config
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert loaded.config.init == init
        loaded.save_pretrained(folder / "again")
        assert json.loads((folder / "again" / "config.json").read_text())["init"] == init


def test_faults_are_named(tmp_path, make_export, tokenizer_folder):
    with pytest.raises(ModelFolderError, match="does not exist"):
        open_model(tmp_path / "none")
    model = make_export(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "t.json")
    with pytest.raises(ModelFolderError, match=r"has no tokenizer\.json"):
        open_model(tmp_path / "m")
    (tmp_path / "t.json").rename(tmp_path / "m" / "tokenizer.json")
    config = tmp_path / "m" / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"hidden_dim": 32}))
    with pytest.raises(ModelFolderError, match="does not fit"):
        open_model(tmp_path / "m").model()
    config.write_text(json.dumps(values | {"model_type": "bert"}))
    with pytest.raises(ModelFolderError, match="'bert' is not allowed"):
        open_model(tmp_path / "m")
    for text in ("{", "[]", "\udcff"):
        config.write_text(text, errors="surrogateescape")
        with pytest.raises(ModelFolderError, match=r"config\.json"):
            open_model(tmp_path / "m")
    config.write_text(json.dumps(values)[:-1] + ', "hidden_dim": 32}')
    with pytest.raises(ModelFolderError, match="key 'hidden_dim' is given twice"):
        open_model(tmp_path / "m")
    for name in ("sentence_final_token_ids", "eos_token_id", "pad_token_id"):
        for wrong in ("x", [-1], values["vocab_size"], 1e308, True):
            config.write_text(json.dumps(values | {name: wrong}))
            with pytest.raises(ModelFolderError, match=f"{name}: .* must be token ids from 0 to"):
                open_model(tmp_path / "m")
    config.write_text(json.dumps(values | {"eos_token_id": [0, 1], "pad_token_id": None}))
    assert open_model(tmp_path / "m").path == tmp_path / "m"
    config.write_text(json.dumps(values))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelFolderError, match=r"model\.safetensors"):
        open_model(tmp_path / "m").model()
    small = core_config(values | {"vocab_size": 300})
    with pytest.raises(ModelFolderError, match="belongs to another model"):
        export(tmp_path / "s", small, model.state_dict(), tokenizer_folder, 0)
    with pytest.raises(ModelFolderError, match="no tokenizer"):
        export(tmp_path / "s", small, model.state_dict(), tmp_path, 0)


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_weights_of_a_run_that_has_diverged_are_refused(tmp_path, make_export, kind):
    from safetensors.torch import load_file, save_file

    make_export(tmp_path / "m", kind)
    opened = open_model(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("embedding.weight") or "wte" in name)
    weights[name][7, 3] = torch.inf
    save_file(weights, file, {"format": "pt"})
    message = r"holds numbers that are not finite \(nan or inf\): the training has diverged"
    with pytest.raises(ModelFolderError, match=message):
        opened.model()
    broken = {"embedding.weight": weights[name]}
    with pytest.raises(ModelFolderError, match=f"^the model: embedding.weight {message}"):
        export(tmp_path / "new", opened.config, broken, tmp_path / "m", 0)
    assert not (tmp_path / "new").exists()


def test_a_search_among_what_is_no_number_ends(tmp_path, make_export):
    model = make_export(tmp_path)
    with torch.no_grad():
        model.embedding.weight[7] = torch.nan
    lm = GPST(model, open_model(tmp_path).codec(), [], None)
    for work in (
        lambda: lm.surprisal("The old man sailed."),
        lambda: lm.parse("The old man sailed.", "left-to-right"),
        lambda: lm.generate("The old", sampling=Sampling()),
        lambda: lm.generate("The old"),
    ):
        with pytest.raises(ValueError, match=r"scores are not numbers \(nan\)"):
            work()
    for part in ("parser.embedding", "scaling"):  # of the trees, and of their vectors
        other = make_export(tmp_path)
        with torch.no_grad():
            for weight in other.get_submodule(part).parameters():
                weight.fill_(torch.nan)
        with pytest.raises(ValueError, match=r"scores are not numbers \(nan\)"):
            GPST(other, lm.codec, [], None).parse("The old man sailed.")


def test_importing_gpst_is_light(exported):
    import subprocess
    import sys

    code = "import gpst, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    # A short text is parsed without what takes longer to import; the tree is the same.
    text = "The unbelievable cats weren't sleeping on the mats of the old man, isn't it?"
    code = (
        "import sys; from gpst import GPST; model = GPST.from_pretrained(sys.argv[1], 'cpu');"
        "print(model.parse(sys.argv[2])); print({'transformers', 'numba'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(exported), text]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    tree = GPST.from_pretrained(exported, "cpu").parse(text)
    assert found.stdout.splitlines() == [str(tree), "set()"]
