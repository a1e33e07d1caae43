"""Perplexity of held-out text, with trees given and marginalised; conversion to exported models."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_prep.format.shard import open_dataset, write_dataset
from gpst.batch import ContextBatch
from gpst.config import GPT2Config, config_to_dict
from gpst.export.huggingface import export, open_model
from gpst.model.build import build_model
from gpst.search.batches import score_batches
from gpst.search.score import score_text
from pipeline.checkpoint.files import whole_checkpoint
from pipeline.cli import convert
from pipeline.cli.evaluate import main as evaluate
from pipeline.data.source import ContextSource
from pipeline.evaluate import perplexity
from pipeline.evaluate.held_out import evaluate_model, unigram_perplexity
from pipeline.evaluate.marginal import evaluate_marginal, sentence_lists

VOCAB = 257


def documents(seed, number):
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(1, 40, rng.integers(1, 7)).tolist() for _ in range(rng.integers(1, 5))]
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_gpst, byte_bpe):
    """A dataset and exported GPST and GPT-2 on its vocabulary."""
    path = tmp_path_factory.mktemp("perplexity")
    write_dataset(path / "data", documents(0, 9), vocab_size=VOCAB, validation=documents(1, 9))
    (path / "data" / "tokenizer").mkdir()
    byte_bpe().save(str(path / "data" / "tokenizer" / "tokenizer.json"))
    tokenizer = path / "data" / "tokenizer"
    gpst = tiny_gpst(VOCAB)
    export(path / "gpst", gpst.config, gpst.state_dict(), tokenizer, 0)
    small = GPT2Config(VOCAB, 0, 64, hidden_dim=8, num_heads=2, ffn_dim=8, num_layers=1)
    gpt2 = build_model(small)
    export(path / "gpt2", small, gpt2.state_dict(), tokenizer, 0)
    return path


def test_marginal_is_the_score_of_each_context(folder):
    model = open_model(folder / "gpst").model()
    source = ContextSource([open_dataset(folder / "data")], "validation", 32)
    found = evaluate_marginal(model, source, beam=6)
    nats, closed, tokens, of_all = 0.0, 0.0, 0, 0.0
    for k in range(source.num_contexts):
        context = sentence_lists(source.batch([k]))
        tokens += sum(map(len, context))
        [score] = score_text(model, [context], beam=6)
        nats -= score.log_p.sum()
        closed -= score.log_p.sum() + score.closing_log_p
        [every] = score_text(model, [context], beam=6, sentence_beam=6)
        of_all -= every.log_p.sum()
    assert (found.num_contexts, found.num_tokens) == (source.num_contexts, tokens)
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.closed_nats == pytest.approx(closed, rel=1e-5)
    assert found.token_perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    joint = evaluate_marginal(model, source, beam=6, histories=6)
    assert joint.nats == pytest.approx(of_all, rel=1e-5)
    assert joint.nats != pytest.approx(found.nats, rel=1e-5)


def test_sentences_of_a_batch():
    batch = ContextBatch.from_sentences([[[1, 2], [3], [4, 5, 6]]])
    assert sentence_lists(batch) == [[1, 2], [3], [4, 5, 6]]


def test_the_command_prints_one_table_and_writes_it(folder, capsys, tmp_path):
    arguments = ["--model", folder / "gpst", "--gpt2", folder / "gpt2", "--data", folder / "data",
                 "--beam", 4, "--context-tokens", 32, "--max-contexts", 3, "--output", tmp_path,
                 "--device", "cpu"]  # fmt: skip
    assert evaluate(["perplexity", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    rows = results["token_perplexity"]
    assert list(rows) == [
        "unigram", "GPT-2", "GPST given its induced trees",
        "GPST, trees marginalised over a beam of 4",
    ]  # fmt: skip
    for name, value in rows.items():
        assert f"{value:.1f}" in next(line for line in out.splitlines() if line.startswith(name))
    dataset = open_dataset(folder / "data")
    train, held_out = (ContextSource([dataset], s, 32) for s in ("train", "validation"))
    assert rows["unigram"] == unigram_perplexity(train, held_out, max_contexts=3)
    for name, kind in (("GPT-2", "gpt2"), ("GPST given its induced trees", "gpst")):
        model = open_model(folder / kind).model()
        expected = evaluate_model(model, held_out, max_contexts=3).token_perplexity
        assert rows[name] == pytest.approx(expected, rel=1e-6)
    assert results["num_contexts"] == 3
    assert results["data_fingerprint"] == dataset.manifest.fingerprint
    lines = [json.loads(x) for x in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    mean = sum(line["nats"] for line in lines) / sum(line["tokens"] for line in lines)
    assert math.exp(mean) == pytest.approx(rows["GPST, trees marginalised over a beam of 4"])

    # Several models: the mean, and the deviation beside it.
    config = tmp_path / "two.yaml"
    model = str(folder / "gpst")
    config.write_text(json.dumps({"model": [model, model], "data": str(folder / "data")}))
    more = ["--beam", "4", "--context-tokens", "32", "--max-contexts", "3", "--device", "cpu"]
    arguments = ["--config", str(config), "--output", str(tmp_path / "two"), *more]
    assert evaluate(["perplexity", *arguments]) == 0
    assert "deviation" in capsys.readouterr().out
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    assert len(two["runs"]) == 2
    name = "GPST given its induced trees"
    assert two["token_perplexity"][name] == pytest.approx(rows[name], rel=1e-6)
    assert two["deviation"][name] == pytest.approx(0.0, abs=1e-6)


def test_an_interrupted_evaluation_goes_on(folder, capsys, tmp_path, monkeypatch):
    def run(output, **changes):
        options = {"--model": folder / "gpst", "--gpt2": folder / "gpt2", "--data": folder / "data",
                   "--beam": 128, "--context-tokens": 16, "--device": "cpu"} | changes  # fmt: skip
        pairs = [str(x) for pair in options.items() for x in pair]
        return evaluate(["perplexity", *pairs, "--output", str(output)])

    searched, forwards = [], []

    def counted(model, contexts, **options):
        for batch, results in score_batches(model, contexts, **options):
            searched.extend(batch)
            yield batch, results
            if stop_at and len(searched) >= stop_at:
                raise KeyboardInterrupt

    def forward(*arguments, **options):
        forwards.append(1)
        return evaluate_model(*arguments, **options)

    monkeypatch.setattr("pipeline.evaluate.marginal.score_batches", counted)
    monkeypatch.setattr("pipeline.evaluate.held_out.evaluate_model", forward)
    stop_at = 0
    assert run(tmp_path / "whole") == 0
    total = len(searched)
    assert total > 4  # two contexts of 128 hypotheses are a batch
    searched.clear()
    stop_at = 2
    assert run(tmp_path / "broken") == 130
    assert not (tmp_path / "broken" / "results.json").exists()
    stop_at, before = 0, len(forwards)
    assert run(tmp_path / "broken") == 0

    assert len(searched) == total
    assert len(forwards) == before + 1  # of the GPT-2
    first, second = (
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "broken")
    )
    assert second["token_perplexity"] == pytest.approx(first["token_perplexity"], rel=1e-6)
    assert second["runs"][0]["given_trees"] == first["runs"][0]["given_trees"]
    lines = (tmp_path / "broken" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["context"] for line in lines] == list(range(total))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"--model": "nowhere"}, 2, "--model nowhere"),
        ({"--data": "nowhere"}, 2, "--data nowhere: no such dataset"),
        ({"--data": "gpst"}, 3, "manifest"),
        ({"--beam": "0"}, 2, "beam: 0 is not allowed"),
        ({"--model": "gpt2"}, 2, "give it as --gpt2"),
        ({"--data": "other"}, 2, "has another tokenizer than the data set"),
        ({"--what": "1"}, 2, "unrecognized arguments"),
    ],
)
def test_faults_are_one_line(folder, capsys, byte_bpe, change, code, message):
    other = folder / "other"
    if not other.exists():
        shutil.copytree(folder / "data", other)
        byte_bpe([("a", "b")]).save(str(other / "tokenizer" / "tokenizer.json"))
    given = {"--model": "gpst", "--data": "data"} | change
    argv: list[str] = []
    for name, value in given.items():
        argv += [name, str(folder / value) if (folder / value).exists() else value]
    assert evaluate(["perplexity", *argv]) == code
    err = capsys.readouterr().err
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.fixture
def checkpoint(folder, tmp_path, monkeypatch):
    """A run with metrics whose checkpoint holds the exported model's weights."""
    run = tmp_path / "run"
    step = run / "checkpoints" / "step-000000006"
    step.mkdir(parents=True)
    metrics = [
        {"step": 5, "loss": 9.5},
        {"step": 6, "eval/perplexity/token": 123.25},
        {"step": 7, "loss": 8.5},
    ]
    samples = [{"step": 5, "trees": ["(a b)"]}, {"step": 6, "trees": ["(a (b c))"]}]
    for name, lines in (("metrics.jsonl", metrics), ("samples.jsonl", samples)):
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = open_model(folder / "gpst")
    config = {
        "model": config_to_dict(source.config),
        "data": {"path": str(folder / "data"), "context_tokens": 32},
        "train": {"num_steps": 6, "global_batch_contexts": 2},
    }
    state = SimpleNamespace(step=6, tokens=384, config=config)

    def whole(path):
        return (step, state) if path == run else whole_checkpoint(path)

    monkeypatch.setattr("pipeline.checkpoint.files.whole_checkpoint", whole)
    monkeypatch.setattr("pipeline.checkpoint.manager.weights_in", lambda path: source.weights())
    return run


def test_to_hf_exports_the_newest_checkpoint_with_its_card(folder, checkpoint, tmp_path, capsys):
    assert convert.main(["to-hf", str(checkpoint), str(tmp_path / "out")]) == 0
    out, expected = open_model(tmp_path / "out"), open_model(folder / "gpst")
    assert out.config == expected.config
    assert (out.end_token, out.final_tokens) == (0, expected.final_tokens)
    for name, tensor in expected.weights().items():
        assert torch.equal(out.weights()[name], tensor)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| step | 6 |" in card
    assert "| loss | 9.5 |" in card
    assert "123.25" in card
    assert "(a (b c))" in card
    assert capsys.readouterr().out == ""


def test_to_hf_faults(folder, checkpoint, tmp_path, capsys):
    assert convert.main(["to-hf", str(tmp_path / "none"), str(tmp_path / "out")]) == 3
    assert f"no checkpoint in {tmp_path / 'none'}" in capsys.readouterr().err
    moved = folder / "data" / "tokenizer"
    moved.rename(folder / "elsewhere")
    try:
        assert convert.main(["to-hf", str(checkpoint), str(tmp_path / "out")]) == 2
        assert "--tokenizer" in capsys.readouterr().err
        arguments = ["--tokenizer", str(folder / "elsewhere")]
        assert convert.main(["to-hf", str(checkpoint), str(tmp_path / "out"), *arguments]) == 0
    finally:
        (folder / "elsewhere").rename(moved)
    assert convert.main(["to-fh"]) == 2
    assert convert.main(["to-hf", str(checkpoint), "/dev/null/x"]) == 3


def test_without_training_documents_there_is_no_unigram_row(folder, capsys, tmp_path):
    write_dataset(tmp_path / "data", [], vocab_size=VOCAB, validation=documents(1, 2))
    arguments = ["--model", folder / "gpst", "--data", tmp_path / "data", "--beam", 2,
                 "--max-contexts", 1, "--output", tmp_path, "--device", "cpu"]  # fmt: skip
    assert evaluate(["perplexity", *map(str, arguments)]) == 0
    shown = capsys.readouterr()
    first = shown.err.splitlines()[0]
    assert first == (
        f"perplexity: {tmp_path / 'data'} has no training documents: the unigram model is left out"
    )
    rows = json.loads((tmp_path / "results.json").read_text())["token_perplexity"]
    assert len(rows) == 2
    assert "unigram" not in shown.out


def test_gpt2s_of_other_sizes_are_no_seeds_of_each_other():
    runs = [{"size": "4 layers of 8", "token_perplexity": number} for number in (20.0, 22.0)]
    assert perplexity._by_size(runs) == {"GPT-2": [20.0, 22.0]}
    runs.append({"size": "5 layers of 8", "token_perplexity": 30.0})
    assert perplexity._by_size(runs) == {
        "GPT-2, 4 layers of 8": [20.0, 22.0], "GPT-2, 5 layers of 8": [30.0],
    }  # fmt: skip
    assert perplexity._by_size([]) == {}


@pytest.mark.parametrize(
    ("model", "gpt2", "tokens", "said"),
    [
        ("gpt2", "gpt2", 32, "--model {}/gpt2 is a gpt2; give it as --gpt2"),
        ("gpst", "gpst", 32, "--gpt2 {}/gpst is a gpst; give it as --model"),
        ("gpst", "gpt2", 5000, "--context-tokens 5000: {}/gpst takes "),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_the_work(
    folder, capsys, monkeypatch, model, gpt2, tokens, said
):
    monkeypatch.setattr(perplexity, "_one_gpst", lambda *_: pytest.fail("it works already"))
    arguments = ["--model", folder / model, "--gpt2", folder / gpt2, "--data", folder / "data"]
    arguments += ["--context-tokens", tokens]
    assert evaluate(["perplexity", *map(str, arguments)]) == 2
    assert f"perplexity: {said.format(folder)}" in capsys.readouterr().err
