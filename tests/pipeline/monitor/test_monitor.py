"""What a run writes: metrics.jsonl, over resumes too, and the terminal."""

import io
import json
import math
import time

import pytest
from run_files import LEFT, log, log_samples, monitor, scalars, steps_of

from pipeline.errors import ConfigError
from pipeline.monitor.metrics_file import MetricsFile, read_metrics
from pipeline.monitor.monitor import Monitor, Throughput


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_holds_where_the_run_is_and_what_was_measured(tmp_path):
    with monitor(tmp_path / "run") as watcher:
        values = {"loss": 2.5, "loss/parser": 0.25, "learning_rate": 1e-3}
        watcher.log_step(10, tokens=1000, samples=40, values=values)
    (line,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert {name: line[name] for name in values} == values
    assert (line["step"], line["tokens"], line["samples"]) == (10, 1000, 40)
    assert line["time_s"] >= 0
    assert line["tokens_per_second"] > 0


def test_lines_are_there_before_the_monitor_closes(tmp_path):
    with monitor(tmp_path) as watcher:
        log(watcher, [1, 2])
        assert steps_of(tmp_path) == [1, 2]


def test_evaluation_is_a_line_of_its_own(tmp_path):
    stream = io.StringIO()
    with monitor(tmp_path, stream=stream) as watcher:
        log(watcher, [10])
        values = {"eval/perplexity/token": 321.5, "eval/loss/token": 5.0}
        watcher.log_evaluation(10, tokens=1000, values=values)
    line = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert {"step": 10, "tokens": 1000, **values}.items() <= line.items()
    assert scalars(tmp_path, "steps", "eval/perplexity/token") == [(10, 321.5)]
    assert "step 10/40 held out | eval/perplexity/token 321.5\n" in stream.getvalue()


def test_numbers_that_are_not_finite_are_null(tmp_path):
    with monitor(tmp_path) as watcher:
        log(watcher, [1], loss=math.nan)
        log(watcher, [2], loss=math.inf)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["loss"] for line in text.splitlines()] == [None, None]
    assert "NaN" not in text
    assert "Infinity" not in text


# --- resuming


def test_a_resumed_run_has_each_step_once(tmp_path):
    with monitor(tmp_path) as watcher:
        log(watcher, [10, 20])
        watcher.log_evaluation(20, tokens=2000, values={"eval/loss": 1.0})
        log(watcher, [21, 35])
    with monitor(tmp_path, start_step=20, start_tokens=2000) as watcher:
        assert steps_of(tmp_path) == [10, 20, 20]
        log(watcher, [30, 40], loss=2.0)
    assert steps_of(tmp_path) == [10, 20, 20, 30, 40]
    expected = [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]
    assert scalars(tmp_path, "steps", "loss") == expected
    by_tokens = [(100 * step, value) for step, value in expected]
    assert scalars(tmp_path, "tokens", "by_tokens/loss") == by_tokens


def test_a_run_that_starts_anew_forgets_the_earlier_one(tmp_path):
    with monitor(tmp_path) as watcher:
        watcher.log_evaluation(0, tokens=0, values={"eval/loss": 9.0})
        log(watcher, [10, 20])
    for _ in range(2):
        with monitor(tmp_path) as watcher:
            assert steps_of(tmp_path) == []
            log(watcher, [10], loss=5.0)
    # ... which is kept all the same.
    kept = ["metrics.earlier.jsonl", "metrics.earlier.jsonl.2"]
    assert sorted(p.name for p in tmp_path.glob("metrics.earlier*")) == kept
    assert [line["step"] for line in read_metrics(tmp_path / kept[0])] == [0, 10, 20]
    assert [line["step"] for line in read_metrics(tmp_path / kept[1])] == [10]
    assert scalars(tmp_path, "steps", "loss") == [(10, 5.0)]
    assert scalars(tmp_path, "tokens", "by_tokens/loss") == [(1000, 5.0)]


@pytest.mark.parametrize(
    "torn",
    ['{"step": 20, "loss": 1.', '{"step": 20', "null\n", "\x00\x00\x00", '{"loss": 3}\n', "\n"],
)
def test_what_a_kill_tore_is_dropped(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "loss": 1.0}\n' + torn)
    with monitor(tmp_path, start_step=20, start_tokens=2000) as watcher:
        log(watcher, [30])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 30]


def test_the_time_goes_on_where_the_kept_lines_end(tmp_path):
    lines = [{"step": 10, "time_s": 500.0}, {"step": 20, "time_s": 900.0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    with monitor(tmp_path, start_step=10, start_tokens=1000) as watcher:
        log(watcher, [20])
    assert 500 <= read_metrics(tmp_path / "metrics.jsonl")[-1]["time_s"] < 600


def test_a_kill_while_the_file_is_cut_back_loses_nothing(tmp_path, monkeypatch):
    with monitor(tmp_path) as watcher:
        log(watcher, [10, 20])

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsFile(tmp_path, start_step=10)
    assert steps_of(tmp_path) == [10, 20]


# --- the terminal


def test_plain_lines_without_a_terminal(tmp_path):
    stream = io.StringIO()
    with monitor(tmp_path, stream=stream) as watcher:
        watcher.log_step(
            10, tokens=1, samples=1, values={"loss": 7.25, "perplexity/token": 1408.1, "other": 1}
        )
        watcher.say("saved")
    first, second = stream.getvalue().splitlines()
    assert first.startswith("step 10/40 | loss 7.25 | perplexity/token 1408 | tokens/s ")
    assert " | left 00:0" in first
    assert second == "saved"


def test_a_bar_on_a_terminal(tmp_path):
    stream = Terminal()
    with monitor(tmp_path, stream=stream, start_step=10, start_tokens=1) as watcher:
        watcher.advance(11)
        watcher.advance(12)
        watcher.log_step(20, tokens=2, samples=1, values={"loss": 7.25})
        watcher.say("saved step 20")
    shown = stream.getvalue()
    assert "10/40" in shown
    assert "20/40" in shown
    assert "loss=7.25" in shown
    assert "saved step 20\n" in shown
    assert "step 20/40 |" not in shown


def test_other_ranks_write_nothing(tmp_path, capfd):
    run_dir = tmp_path / "run"
    with Monitor(run_dir, num_steps=3, is_main=False) as watcher:
        watcher.advance(1)
        log(watcher, [1])
        watcher.log_evaluation(1, tokens=1, values={"eval/loss": 1.0})
        log_samples(watcher, 1, LEFT)
        watcher.say("x")
        with watcher.pause():
            pass
        watcher.sync()
    assert not run_dir.exists()
    assert capfd.readouterr() == ("", "")


# --- speed


def test_throughput_counts_new_tokens_over_the_time_not_paused():
    meter = Throughput(tokens=1000, clock=10.0)
    meter.pause(3.0)
    assert meter.read(tokens=1800, clock=17.0) == 200.0
    assert meter.read(tokens=1900, clock=17.5) == 200.0
    assert meter.read(tokens=1900, clock=17.5) == 0.0


def test_pauses_do_not_slow_the_reported_speed(tmp_path):
    with monitor(tmp_path) as watcher:
        started = time.monotonic()
        with watcher.pause():
            time.sleep(0.2)
        watcher.log_step(1, tokens=1000, samples=1, values={})
        with_pause = 1000 / (time.monotonic() - started)
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["tokens_per_second"] > 2 * with_pause


def test_mfu_is_arithmetic_per_second_over_the_peak(tmp_path, monkeypatch):
    clock = iter([100.0, 102.0, 107.0])
    monkeypatch.setattr("pipeline.monitor.monitor.time.monotonic", lambda: next(clock))
    watcher = monitor(tmp_path, peak_flops=8e12)
    watcher.log_step(1, tokens=10, samples=1, values={}, flops=4e12)
    watcher.log_step(2, tokens=60, samples=2, values={}, flops=20e12)
    monkeypatch.undo()
    watcher.close()
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["tflops"], first["mfu"], first["tokens_per_second"]) == (2.0, 0.25, 5.0)
    assert (second["tflops"], second["mfu"], second["tokens_per_second"]) == (4.0, 0.5, 10.0)


def test_without_a_peak_there_is_no_mfu(tmp_path):
    with monitor(tmp_path) as watcher:
        watcher.log_step(1, tokens=10, samples=1, values={}, flops=4e12)
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert "mfu" not in line
    assert line["tflops"] > 0


def test_closing_twice_is_harmless(tmp_path):
    watcher = monitor(tmp_path)
    watcher.close()
    watcher.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run_dir: .*run cannot be made \(Not a directory\)"):
        monitor(tmp_path / "file" / "run")
