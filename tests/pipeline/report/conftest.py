"""Results of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def spread(*values: float) -> dict:
    mean = sum(values) / len(values)
    deviation = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
    return {"mean": mean, "deviation": deviation, "values": list(values)}


def put(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(values))


MODEL = {"path": "runs/gpst_small_openwebtext/exported", "fingerprint": "x"}
SCORES = {
    "sst2": {"accuracy": spread(90.0, 92.0)},
    "cola": {"matthews": spread(40.0)},
    "mrpc": {"f1": spread(80.0), "accuracy": spread(70.0)},
    "qqp": {"f1": spread(85.0), "accuracy": spread(88.0)},
    "qnli": {"accuracy": spread(86.0)},
    "rte": {"accuracy": spread(60.0)},
    "mnli": {"accuracy/matched": spread(80.0), "accuracy/mismatched": spread(81.0)},
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Results of every kind, as the tasks write them."""
    for task, scores in SCORES.items():
        folder = tmp_path / f"glue_{task}"
        put(folder, task=f"glue/{task}", model=MODEL, seeds=[0, 1], scores=scores)
        put(folder / "seed-0", task=f"glue/{task}", model=MODEL, scores={})
    rouge = {"ROUGE-1": spread(30.0), "ROUGE-2": spread(10.0), "ROUGE-L": spread(25.0)}
    put(
        tmp_path / "cnn",
        task="summarization/cnn_dailymail",
        model=MODEL,
        scores=rouge | {"ROUGE-Lsum": spread(33.0)},
    )
    for name, sync in (("xsum", True), ("nosync", False)):
        put(
            tmp_path / name,
            task="summarization/xsum",
            model=MODEL,
            options={"summarization": {"sync": sync}},
            scores=rouge,
        )
    put(
        tmp_path / "gi",
        task="grammar_induction",
        model=MODEL,
        seeds=[0],
        scores={"F1/inside": spread(55.0), "F1/left-to-right": spread(54.0)},
        baselines={"right branching": {"sentence_f1": 39.46, "corpus_f1": 30.0}},
    )
    put(
        tmp_path / "gi_seeds",
        task="grammar_induction",
        scores={"inside": {"sentence_f1": 50.0}},
        f1_over_models={"inside": {"mean": 50.0, "deviation": 2.0, "values": [48.0, 52.0]}},
    )
    (tmp_path / "gi" / "seed-0").mkdir()
    (tmp_path / "gi" / "seed-0" / "predictions.jsonl").write_text(
        json.dumps(
            {
                "words": ["<the>", "old", "man", "sails"],
                "gold": [[0, 2]],
                "spans": {"inside": [[0, 1], [0, 2], [0, 3]]},
            }
        )
        + "\n"
    )
    circuit = {"mean": 61.0, "deviation": 0.0}
    put(
        tmp_path / "sg",
        task="syntactic_generalization",
        circuits={"Agreement": circuit, "Licensing": {"mean": None, "deviation": None}},
        score=circuit,
        runs=[{"model": MODEL, "score": 61.0}],
    )
    put(
        tmp_path / "ppl",
        task="perplexity",
        gpst="runs/a/exported",
        token_perplexity={"unigram": 1000.5, "GPT-2": 20.25, "GPST": 21.5},
        deviation={"unigram": 0.0, "GPT-2": 0.0, "GPST": 0.5},
        runs=[
            {"path": f"runs/a/seed-{seed}/exported", "token_perplexity": {"GPST": number}}
            for seed, number in enumerate((21.0, 22.0))
        ],
        gpt2_runs=[{"path": "runs/gpt2/exported", "token_perplexity": 20.25}],
    )
    training = tmp_path / "training"
    training.mkdir()
    lines = [
        {"step": k, "tokens": 10 * k, "loss": 5.0 / k, "tokens_per_second": 100.0, "x": None}
        for k in (1, 2, 3)
    ]
    lines.append({"step": 3, "eval/perplexity/token": 12.5})
    (training / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (training / "samples.jsonl").write_text(
        '{"step": 1, "trees": ["(a b)"]}\n{"step": 3, "trees": ["((x y) z)", "w"]}\n'
    )
    return tmp_path
