"""The registry of metrics."""

import pytest
from known_metrics import find_metric

from pipeline.config.run import REPOSITORY, load_config
from pipeline.evaluate.held_out import metric_names
from pipeline.monitor.metrics import METRICS


def test_families_stand_for_the_names_that_models_give():
    assert find_metric("loss/token") is METRICS["loss/*"]
    assert find_metric("eval/structure/height") is METRICS["eval/structure/*"]
    assert find_metric("structure/height") is METRICS["structure/height"]
    assert find_metric("eval/nothing") is None
    assert all(map(find_metric, metric_names(["token", "type"], ["height"])))


def test_the_page_on_tensorboard_explains_what_is_shown():
    page = (REPOSITORY / "docs" / "tensorboard.md").read_text()
    shown = [name for name, metric in METRICS.items() if set(metric.places) - {"table", "card"}]
    assert {name for name in shown if f"`{name}`" not in page} == {"eval/score"}  # of fine-tuning


@pytest.mark.parametrize(
    "path", [*(REPOSITORY / "configs" / "run").glob("*.yaml")], ids=lambda path: path.stem
)
def test_the_shipped_runs_look_for_the_best_in_the_right_direction(path):
    checkpoint = load_config(path).checkpoint
    if checkpoint.best_metric is not None:
        assert METRICS[checkpoint.best_metric].best == checkpoint.best_is
