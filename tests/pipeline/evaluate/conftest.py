"""A data set of random documents, and one thread for all evaluations."""

import pytest
import torch
from packing import write_random

from pipeline.data.source import ContextSource


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny tensors gain nothing from threads, which only wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return write_random(tmp_path_factory.mktemp("data"), 30, 12, shard_documents=11)


@pytest.fixture(scope="session")
def held_out(dataset):
    """Its held-out split in contexts of 24 tokens."""
    return ContextSource([dataset], "validation", 24)
