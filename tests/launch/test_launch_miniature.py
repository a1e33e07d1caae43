"""`make miniature`: the script itself on a small text; finished, it does nothing again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "miniature.sh"
PARAGRAPH = "The farmer saw the old dog, number {}. A child has found {} apples, red and green!\n\n"
TREE = "(S (NP (DT the) (NN farmer)) (VP (VBD saw) (NP (DT the) (JJ old) (NN dog))) (. .))\n"
SETTINGS = (
    "train.num_steps=2 train.global_batch_contexts=2 train.micro_batch_contexts_per_rank=1 "
    "data.context_tokens=32 evaluate.max_contexts=2 evaluate.every_steps=2"
)


def miniature(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    settings = {
        "OUTPUT": str(folder),
        "SETTINGS": SETTINGS,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(SCRIPT.parents[1]),
    }
    return subprocess.run(
        ["bash", SCRIPT], env=os.environ | settings | environ, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"MODELS": "gpst gtp2"}, "MODELS: gtp2 is unknown; known are gpst gpt2"),
        ({"SEEDS": "0 abc"}, "SEEDS: abc is no whole number"),
        ({"MODELS": "gpst", "SETTINGS": "train.steps=1"}, "pretrain: unknown field train.steps"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(tmp_path, asked, line):
    end = miniature(tmp_path, INPUT=str(tmp_path), **asked)
    assert end.returncode == 2
    assert end.stderr.splitlines()[-1].startswith(line)
    assert end.stdout == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({}, "train.txt: cannot be read (No such file or directory)"),
        ({"train": TREE, "valid": TREE, "test": "(S (NP the"}, "test.txt:1: "),
        ({"suites": None}, "suites: cannot be read (No such file or directory)"),
        ({"suites": '{"title": "a schema"}'}, "give a folder that holds suites alone"),
    ],
)
def test_trees_and_suites_are_read_before_the_hours(tmp_path, files, line):
    data, output = tmp_path / "data", tmp_path / "output"
    data.mkdir()
    if "suites" not in files:
        asked = {"TREES": str(data)}
        for name, text in files.items():
            (data / f"{name}.txt").write_text(text)
    else:
        asked = {"SUITES": str(data / "suites")}
        if files["suites"] is not None:
            (data / "suites").mkdir()
            (data / "suites" / "schema.json").write_text(files["suites"])
    end = miniature(output, INPUT=str(tmp_path), **asked)
    assert end.returncode == 3
    [said] = end.stderr.splitlines()
    assert said.startswith("miniature: TREES, SUITES: ")
    assert line in said
    assert end.stdout == ""
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.dist
def test_all_models_are_trained_scored_and_reported(tmp_path):
    text, trees = tmp_path / "text.txt", tmp_path / "trees"
    text.write_text("".join(PARAGRAPH.format(n, n + 7) for n in range(300)))
    trees.mkdir()
    for name in ("train", "valid", "test"):
        (trees / f"{name}.txt").write_text(TREE * 32)
    asked = {"INPUT": str(text), "TREES": str(trees), "SEEDS": "0 1"}
    end = miniature(tmp_path, **asked)
    assert end.returncode == 0, end.stderr + end.stdout
    report = (tmp_path / "runs" / "miniature" / "report" / "report.md").read_text()
    overview = report[report.index("Overview") : report.index("Grammar induction")]
    for row in ("", " paper", " without gradient stop", " without surrogate"):
        assert f"| GPST{row} |" in overview
    assert "| GPT-2 5 layers |" in overview
    again = miniature(tmp_path, **asked)
    assert again.returncode == 0, again.stderr
    assert "data/miniature-tokenizer: complete already" in again.stdout
    assert again.stdout.count(": pre-trained already") == 8
    assert again.stdout.count(": fine-tuned already") == 5
    assert "launch/pretrain.sh" not in again.stdout
    other = miniature(tmp_path, **asked, SETTINGS=SETTINGS.replace("steps=2", "steps=3", 1))
    assert other.returncode == 2
    assert "gpst/seed-0 was trained with others, which are in its finished.yaml" in other.stderr
    other = miniature(tmp_path, **asked | {"INPUT": str(trees)})
    assert other.returncode != 0
    assert "launch/pretrain.sh" not in other.stdout
