"""What a run shows in TensorBoard: curves, trees, continuations, and the HParams tab."""

import io

import numpy as np
import pytest
from PIL import Image
from run_files import LEFT, MIXED, events, log, log_samples, monitor, scalars
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from pipeline.monitor.metrics_file import read_metrics
from pipeline.monitor.samples import Samples


def test_curves_against_steps_and_tokens(tmp_path):
    with monitor(tmp_path) as watcher:
        for step in (1, 2):
            values = {"loss": 1.0 / step, "loss/parser": 3.0}
            watcher.log_step(step, tokens=70_000_000_000 * step, samples=step, values=values)
    assert scalars(tmp_path, "steps", "loss") == [(1, 1.0), (2, 0.5)]
    assert scalars(tmp_path, "steps", "loss/parser") == [(1, 3.0), (2, 3.0)]
    expected = [(70_000_000_000, 1.0), (140_000_000_000, 0.5)]
    assert scalars(tmp_path, "tokens", "by_tokens/loss") == expected
    tags = events(tmp_path, "steps").Tags()["scalars"]
    assert sorted(tags) == ["loss", "loss/parser", "tokens_per_second"]


def texts(run_dir, name):
    found = events(run_dir, "steps").Tensors(f"{name}/text_summary")
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in found]


def test_samples_are_texts_verbatim_pictures_and_lines(tmp_path):
    with monitor(tmp_path) as watcher:
        log_samples(watcher, 5, LEFT)
        log_samples(watcher, 9, MIXED)
    assert texts(tmp_path, "trees/0") == [
        (5, "    (((a *b*) c) d)\n"),
        (9, "    ((a (*b* c)) d)\n"),
    ]
    assert texts(tmp_path, "continuations/0")[0] == (5, "    Once ...\n    and\n      so on\n")
    lines = read_metrics(tmp_path / "samples.jsonl")
    assert [line["step"] for line in lines] == [5, 9]
    assert lines[1]["trees"] == ["((a (*b* c)) d)"]
    assert lines[1]["continuations"] == ["or not"]


def test_trees_are_drawn(tmp_path):
    with monitor(tmp_path) as watcher:
        log_samples(watcher, 5, LEFT)
    (event,) = events(tmp_path, "steps").Images("trees/0")
    with Image.open(io.BytesIO(event.encoded_image_string)) as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels.shape == (event.height, event.width)
    # Lines and words in an otherwise white picture: dark above, where the root is, and below.
    assert (pixels[: event.height // 2] < 128).any()
    assert (pixels[event.height // 2 :] < 128).any()
    assert (pixels == 255).mean() > 0.7


def test_the_change_of_trees_is_the_share_of_new_spans(tmp_path):
    with monitor(tmp_path) as watcher:
        log_samples(watcher, 5, LEFT)
        log_samples(watcher, 9, MIXED)
    # Of (0, 2) and (1, 2), beside the whole sentence, (1, 2) is new.
    assert scalars(tmp_path, "steps", "trees/change") == [(9, 0.5)]
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["trees/change"] == 0.5


def test_the_change_of_trees_goes_on_after_a_resume(tmp_path):
    with monitor(tmp_path) as watcher:
        log_samples(watcher, 5, LEFT)
        log_samples(watcher, 9, MIXED)  # will be taken again
    with monitor(tmp_path, start_step=5, start_tokens=500) as watcher:
        log_samples(watcher, 10, LEFT)
    assert scalars(tmp_path, "steps", "trees/change") == [(10, 0.0)]


def test_other_sentences_are_not_compared(tmp_path):
    with monitor(tmp_path) as watcher:
        log_samples(watcher, 5, Samples([*LEFT.trees, *LEFT.trees], ["x"]))
        log_samples(watcher, 6, LEFT)
    assert "trees/change" not in events(tmp_path, "steps").Tags()["scalars"]


# --- the HParams tab

CONFIG = {"seed": 3, "optim": {"learning_rate": 0.5, "betas": [0.9, 0.95], "decay": "cosine"}}


def hparams_of(run_dir, tag):
    metadata = events(run_dir, "steps").SummaryMetadata(tag)
    return HParamsPluginData.FromString(metadata.plugin_data.content)


def test_hyper_parameters_and_final_metrics(tmp_path):
    with monitor(tmp_path, config=CONFIG, num_steps=20) as watcher:
        log(watcher, [10, 20])
    start = hparams_of(tmp_path, "_hparams_/session_start_info").session_start_info.hparams
    assert start["seed"].number_value == 3
    assert start["optim.learning_rate"].number_value == 0.5
    assert start["optim.betas"].string_value == "0.9, 0.95"
    assert start["optim.decay"].string_value == "cosine"
    experiment = hparams_of(tmp_path, "_hparams_/experiment").experiment
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert metrics[:3] == ["loss", "perplexity/token", "eval/perplexity/token"]
    assert scalars(tmp_path, "steps", "loss")[-1] == (20, 1.0)  # what the tab shows
    end = hparams_of(tmp_path, "_hparams_/session_end_info").session_end_info
    assert end.status == api_pb2.STATUS_SUCCESS


def test_a_run_that_fails_or_stops_early_is_not_marked_as_done(tmp_path):
    with monitor(tmp_path / "early", config=CONFIG, num_steps=20) as watcher:
        log(watcher, [10])
    watcher = monitor(tmp_path / "failed", config=CONFIG, num_steps=20)
    log(watcher, [20])
    watcher.__exit__(RuntimeError())
    for name in ("early", "failed"):
        with pytest.raises(KeyError):
            hparams_of(tmp_path / name, "_hparams_/session_end_info")


def test_sync_makes_events_readable_while_the_run_goes_on(tmp_path):
    with monitor(tmp_path) as watcher:
        log(watcher, [1])
        watcher.sync()
        assert scalars(tmp_path, "steps", "loss") == [(1, 1.0)]
        assert scalars(tmp_path, "tokens", "by_tokens/loss") == [(100, 1.0)]
