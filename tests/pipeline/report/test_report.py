"""The report: tables from results files, quoted rows, curves, trees, errors."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gpst.tree import Tree
from pipeline.__main__ import main
from pipeline.report.charts import chart
from pipeline.report.collect import Result, collect, label
from pipeline.report.names import Names, in_words
from pipeline.report.pictures import tree_of_spans
from pipeline.report.tables import Cell, make_tables


def test_tables_hold_the_results_of_every_task(runs: Path) -> None:
    found = collect([str(runs)])
    tables = {table.key: table for table in make_tables(found.results, found.trainings)}
    name = "GPST small, OpenWebText"
    glue = tables["glue"].rows[name]
    assert glue["SST-2"] == Cell(91.0, 1.0, 2)
    assert str(glue["SST-2"]) == "91.00 ± 1.00"
    assert str(glue["CoLA"]) == "40.00"
    assert glue["MRPC"].mean == 80.0
    assert glue["average"].mean == pytest.approx((91 + 40 + 80 + 85 + 86 + 60 + 80 + 81) / 8)
    summaries = tables["summarization"].rows
    assert summaries[name]["XSum R-2"].mean == 10.0
    assert summaries[name]["XSum average"].mean == pytest.approx(65 / 3)
    assert summaries[name]["CNN/DM average"].mean == pytest.approx(65 / 3)
    assert summaries[name]["CNN/DM R-Lsum"].mean == 33.0
    assert summaries[f"{name} (w/o sync)"]["XSum R-L"].mean == 25.0
    induction = tables["grammar_induction"].rows
    assert induction[f"{name}, left-to-right"]["F1"].mean == 54.0
    assert induction["right branching"]["F1"].mean == 39.46
    assert induction["gi seeds, inside"]["F1"] == Cell(50.0, 2.0, 2)
    syntactic = tables["syntactic_generalization"].rows[name]
    assert syntactic["Agreement"].mean == 61.0
    assert "Licensing" not in syntactic
    perplexities = tables["perplexity"].rows["GPST, a"]
    assert [str(cell) for cell in perplexities.values()] == ["20.25", "1,000", "21.50 ± 0.50"]
    assert tables["training"].rows["training"]["loss"].mean == pytest.approx(5 / 3)


def test_pages_show_tables_quoted_rows_curves_and_trees(runs: Path, capsys) -> None:
    paper = runs / "paper.yaml"
    paper.write_text(
        "- {table: glue, label: x, source: Hu <& co (arXiv 2403.08293), columns: [SST-2], "
        "rows: {GPST | me: [92.5]}}\n"
    )
    output = runs / "report"
    assert main(["report", str(runs), "--output", str(output), "--paper", str(paper)]) == 0
    assert "report.html" in capsys.readouterr().out
    text = (output / "report.md").read_text()
    assert "| *GPST \\| me (x)* | 92.50 |" in text
    assert "- x: Hu <& co ([arXiv 2403.08293](https://arxiv.org/abs/2403.08293))" in text
    page = (output / "report.html").read_text()
    assert '<tr class="quoted"><td>GPST | me (x)</td><td>92.50</td>' in page
    link = '<a href="https://arxiv.org/abs/2403.08293">arXiv 2403.08293</a>'
    assert f"<p>x: Hu &lt;&amp; co ({link})</p>" in page
    assert "&lt;the&gt;" in page  # words are no markup
    captions = {
        "curve-loss": "Training loss, nats",
        "trees-training": "training: trees of monitor.sentences at the end of training",
        "trees-gi-inside": "GPST small, OpenWebText: inside trees of the first test sentences",
    }
    for name, caption in captions.items():
        ElementTree.parse(output / f"{name}.svg")
        assert f"![{caption}]({name}.svg)" in text
        assert f"<figcaption>{caption}</figcaption>" in page
    assert page.count("<svg") == text.count("![")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "required: RUN"),
        (["nowhere"], 2, "report: nowhere: no such folder"),
        (["{empty}"], 2, "no results.json and no metrics.jsonl in"),
        (["{damaged}"], 3, "results.json: is no JSON object; run the evaluation again"),
        (["{empty}", "--paper", "nowhere.yaml"], 2, "--paper nowhere.yaml: cannot be read"),
        (["{empty}", "--paper", "{damaged}/bad.yaml"], 2, "bad.yaml: block 1 must have a table"),
        (
            ["{empty}", "--paper", "{damaged}/row.yaml"],
            2,
            "block 1: row 'r' must be a list with a number or null for each of",
        ),
        (["{damaged}/run", "--paper", "{damaged}/name.yaml"], 2, "no table 'gleu'; tables: glue, "),
    ],
)
def test_faults_are_one_line(tmp_path: Path, capsys, arguments, code, message) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "results.json").write_text("[1]")
    (tmp_path / "damaged" / "bad.yaml").write_text("- {table: glue}\n")
    block = "- {table: gleu, label: x, source: y, columns: [a], rows: {r: [%s]}}\n"
    (tmp_path / "damaged" / "row.yaml").write_text(block % "1, 2")
    (tmp_path / "damaged" / "name.yaml").write_text(block % "1")
    (tmp_path / "damaged" / "run").mkdir()
    (tmp_path / "damaged" / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    names = {name: str(tmp_path / name) for name in ("empty", "damaged")}
    given = [argument.format(**names) for argument in arguments]
    assert main(["report", *given, "--output", str(tmp_path / "out")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_trees_come_back_from_brackets_and_spans() -> None:
    tree, words = Tree.from_brackets("((a b) (c -LRB-))")
    assert words == ["a", "b", "c", "("]
    assert tree.brackets(words) == "((a b) (c -LRB-))"
    assert tree_of_spans(4, [[0, 1], [2, 3], [0, 3]]) == tree
    assert tree_of_spans(3, [[1, 2], [0, 2]]).brackets(["a", "b", "c"]) == "(a (b c))"


def test_a_line_that_a_run_has_left_is_not_a_training(tmp_path: Path) -> None:
    for name in ("run", "run/abandoned-001"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert [one.folder.name for one in collect([str(tmp_path)]).trainings] == ["run"]
    aside = collect([str(tmp_path / "run" / "abandoned-001")]).trainings
    assert [one.folder.name for one in aside] == ["abandoned-001"]


def test_charts_place_points_on_their_axes() -> None:
    svg = chart("a < b", {"run": [(0, 1.0), (10, 100.0)], "flat": [(5, 10.0)]}, log=True)
    lines = ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}polyline")
    first, last = (point.split(",") for point in lines[0].attrib["points"].split())
    [middle] = (point.split(",") for point in lines[1].attrib["points"].split())
    # On a logarithmic axis 10 lies half-way between 1 and 100.
    assert float(middle[0]) == pytest.approx((float(first[0]) + float(last[0])) / 2)
    assert float(middle[1]) == pytest.approx((float(first[1]) + float(last[1])) / 2)
    assert float(first[1]) > float(last[1])  # larger values lie higher


def test_names_of_curves_are_whole() -> None:
    curves = {f"{'a long name, ' * 4}seed {n}": [(0.0, 1.0), (1.0, 2.0)] for n in range(30)}
    root = ElementTree.fromstring(chart("loss", curves))
    texts = {text.text: text.attrib for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert all(float(texts[name]["y"]) < float(root.attrib["height"]) for name in curves)
    name = next(iter(curves))
    assert float(texts[name]["x"]) + 6 * len(name) < float(root.attrib["width"])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/gpst_small/exported", "gpst_small"),
        ("runs/demo/checkpoints/step-000000100", "demo"),
        ("runs/glue/small/cola/seed-1", "glue/small/cola/seed-1"),
        ("/data/runs/miniature/gpst/exported", "miniature/gpst"),
        ("elsewhere/glue_cola/seed-1", "glue_cola/seed-1"),
    ],
)
def test_labels_are_short(path: str, name: str) -> None:
    assert label(path) == name


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("runs/gpst_small_openwebtext/exported", "GPST small, OpenWebText"),
        ("runs/mini/gpst_no_gradient_stop/seed-1", "mini, GPST without gradient stop, seed 1"),
        ("runs/demo-gpt2/exported", "GPT-2, demo"),
        ("runs/glue/small/cola", "GLUE, small, CoLA"),
    ],
)
def test_names_are_words(path: str, words: str) -> None:
    assert in_words(path) == words


def test_a_result_of_several_seeds_is_the_models() -> None:
    seeds = [f"runs/mini/gpst/seed-{n}/exported" for n in range(2)]
    suites = {"task": "syntactic_generalization", "runs": [{"model": {"path": p}} for p in seeds]}
    texts = {"task": "perplexity", "runs": [{"path": path} for path in seeds], "gpst": seeds[0]}
    for values in (suites, texts):
        assert Names().of(Result(Path("x"), values)) == "mini, GPST"
        one = {**values, "runs": values["runs"][1:]}
        assert Names().of(Result(Path("x"), one)) == "mini, GPST, seed 1"


def test_names_say_the_kind(tmp_path: Path) -> None:
    run, exported = tmp_path / "runs" / "demo", tmp_path / "runs" / "other" / "exported"
    for folder, name, text in (
        (run, "config.yaml", "model: {kind: gpst}\n"),
        (exported, "config.json", '{"model_type": "gpt2"}'),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    values = {"task": "glue/cola", "model": {"path": str(exported)}}
    (run / "results.json").write_text(json.dumps(values))
    found = collect([str(run)])
    names = Names(found.results, found.trainings)
    assert names(run) == names(run / "exported") == "GPST, demo"
    assert names.of(found.results[0]) == "GPT-2, other"


def test_gpt2s_of_other_sizes_are_columns_of_their_own(tmp_path: Path) -> None:
    gpt2 = [
        {"path": f"runs/{name}/seed-{seed}/exported", "token_perplexity": number}
        for name, seed, number in (("gpt2", 0, 20.0), ("gpt2", 1, 22.0), ("gpt2_5_layers", 0, 30.0))
    ]
    values = {
        "task": "perplexity",
        "runs": [{"path": "runs/gpst/seed-0/exported", "token_perplexity": {"GPST": 25.0}}],
        "token_perplexity": {"GPT-2": 24.0, "GPST": 25.0},
        "gpt2_runs": gpt2,
    }
    (tmp_path / "results.json").write_text(json.dumps(values))
    found = collect([str(tmp_path)])
    [table] = make_tables(found.results, found.trainings)
    [row] = table.rows.values()
    assert row == {
        "GPST": Cell(25.0),
        "GPT-2": Cell(21.0, 1.0, 2),
        "GPT-2 5 layers": Cell(30.0),
    }


def test_every_training_is_a_row(tmp_path: Path) -> None:
    """Also fine-tunings of several models, and runs of one name in two places."""
    models = [f"{study}/{name}/seed-0" for study in "ab" for name in ("gpst", "gpst_paper")]
    folders = models + [f"{model}/trees/seed-0" for model in models]
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.5}\n')
    found = collect([str(tmp_path)])
    [table] = make_tables(found.results, found.trainings)
    assert len(table.rows) == len(folders)
    assert {"GPST, seed 0", "GPST paper, seed 0, trees, seed 0"} <= {*table.rows}
