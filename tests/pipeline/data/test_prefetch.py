"""Batches read ahead by a thread: the same ones, in their order, errors included."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from data_prep.format.shard import open_dataset
from gpst.batch import ContextBatch
from pipeline.config.batch_shape import BatchShape
from pipeline.data.prefetch import BatchReader, Prefetcher
from pipeline.data.source import ContextSource
from pipeline.errors import DataError


@pytest.fixture(scope="module")
def reader(toy_dataset):
    source = ContextSource([open_dataset(toy_dataset)], "train", 32)
    shape = BatchShape(global_batch=12, micro_batch=2, accumulation=3, world_size=2)
    return BatchReader(source, seed=5, batch_shape=shape, rank=1)


PLACES = [(step, micro) for step in (3, 4, 5) for micro in range(3)]


@pytest.mark.parametrize("ahead", [1, 2, 100])
def test_the_batches_are_those_read_when_needed(reader, ahead):
    with Prefetcher(reader, 3, 6, ahead=ahead) as batches:
        for step, micro_step in PLACES:
            mine, expected = batches.read(step, micro_step), reader.read(step, micro_step)
            assert torch.equal(mine.tokens, expected.tokens)
            assert mine.sentence_ends.tolist() == expected.sentence_ends.tolist()
            assert mine.context_ends.tolist() == expected.context_ends.tolist()


def test_it_reads_ahead_and_no_further(reader):
    asked = []

    class Counting(BatchReader):
        def read(self, step, micro_step):
            asked.append((step, micro_step))
            return super().read(step, micro_step)

    counting = Counting(reader.source, reader.seed, reader.batch_shape, reader.rank)
    with Prefetcher(counting, 3, 6, ahead=2) as batches:
        deadline = time.monotonic() + 20
        while len(asked) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert asked == PLACES[:3]  # two wait, one is in hand
        batches.read(3, 0)
        while len(asked) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert asked == PLACES[:4]


def test_another_order_is_refused(reader):
    message = r"\(4, 0\) is asked for, the next is \(3, 0\)"
    with Prefetcher(reader, 3, 6, ahead=2) as batches, pytest.raises(ValueError, match=message):
        batches.read(4, 0)


def test_there_is_nothing_after_the_last_step(reader):
    with Prefetcher(reader, 3, 4, ahead=2) as batches:
        for micro_step in range(3):
            batches.read(3, micro_step)
        with pytest.raises(ValueError, match="the next is None"):
            batches.read(4, 0)


def test_an_error_comes_with_its_batch(reader):
    class Damaged(BatchReader):
        def read(self, step, micro_step):
            if (step, micro_step) == (3, 2):
                raise DataError("shard 7 is damaged")
            return super().read(step, micro_step)

    damaged = Damaged(reader.source, reader.seed, reader.batch_shape, reader.rank)
    with Prefetcher(damaged, 3, 6, ahead=5) as batches:
        batches.read(3, 0)
        batches.read(3, 1)
        with pytest.raises(DataError, match="shard 7"):
            batches.read(3, 2)


def test_no_thread_is_left(reader):
    before = threading.active_count()
    batches = Prefetcher(reader, 3, 6, ahead=1)
    batches.read(3, 0)
    batches.close()
    batches.close()
    assert threading.active_count() == before


def test_the_thread_goes_to_the_gpu_that_it_pins_for(reader, monkeypatch):
    """A thread begins on GPU 0, whoever started it."""
    chosen = []
    monkeypatch.setattr(
        torch.cuda,
        "set_device",
        lambda gpu: chosen.append((str(gpu), threading.current_thread().name)),
    )
    monkeypatch.setattr(ContextBatch, "pin_memory", lambda batch: (chosen, batch))
    with Prefetcher(reader, 3, 4, ahead=1, gpu=torch.device("cuda", 2)) as batches:
        seen, _ = batches.read(3, 0)
    assert seen == [("cuda:2", "prefetch")]
