"""The data order: bijections, independence of the cut into ranks, proportions of mixtures."""

from collections import Counter

import numpy as np
import pytest

from pipeline.data.order import Mixture, batch_samples, mix, permute, sample_index, step_samples
from pipeline.errors import ConfigError

SIZES = [*range(1, 34), 63, 64, 65, 255, 256, 257, 1000, 4097]
GOLDEN_ORDER = [8, 6, 4, 1, 3, 9, 5, 2, 0, 7, 9, 4]
GOLDEN_LARGE = 7230434
GOLDEN_HASH = 15020427595393229491
GOLDEN_DATASETS = [1, 1, 0, 1, 0, 1, 1, 1]
GOLDEN_MIXED = [3, 2, 0, 0, 1, 5, 8, 7]


@pytest.mark.parametrize("size", SIZES)
def test_every_epoch_takes_every_context_once(size):
    for epoch in (0, 1, 12345):
        k = np.arange(epoch * size, (epoch + 1) * size)
        assert sorted(sample_index(7, k, size)) == list(range(size))


def test_an_array_may_span_epochs():
    together = sample_index(3, np.arange(40), 7)
    alone = [int(sample_index(3, k, 7)) for k in range(40)]
    assert together.tolist() == alone


def test_the_shape_is_that_of_k():
    assert sample_index(0, 5, 10).shape == ()
    assert sample_index(0, np.zeros((2, 3), int), 10).shape == (2, 3)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(permute(seed, epoch, np.arange(50), 50)) for seed in range(10) for epoch in range(10)
    }
    assert len(orders) == 100


def test_large_numbers_stay_in_range():
    size = 9_000_000_017
    index = sample_index(2**63 - 1, np.arange(10**15, 10**15 + 1000), size)
    assert index.dtype == np.int64
    assert 0 <= index.min() <= index.max() < size
    assert len(set(index.tolist())) == 1000


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_contexts_are_equally_likely(size):
    epochs = 24_000
    k = np.arange(epochs * size)
    orders = Counter(map(tuple, sample_index(1, k, size).reshape(epochs, size).tolist()))
    expected = epochs / np.prod(np.arange(1, size + 1))
    assert len(orders) == np.prod(np.arange(1, size + 1))
    assert max(abs(n - expected) for n in orders.values()) < 5 * expected**0.5


def test_neighbours_in_the_order_are_unrelated():
    index = sample_index(0, np.arange(100_000), 100_000).astype(float)
    lag_one = np.corrcoef(index[:-1], index[1:])[0, 1]
    drift = np.corrcoef(index, np.arange(100_000))[0, 1]
    assert abs(lag_one) < 0.02
    assert abs(drift) < 0.02


def test_golden_order():
    """Frozen: a change would reorder the data of every run that resumes."""
    assert sample_index(0, np.arange(12), 10).tolist() == GOLDEN_ORDER
    assert sample_index(1234, 10**12, 8_951_017).tolist() == GOLDEN_LARGE
    assert mix(1, 2, 3) == GOLDEN_HASH
    dataset, index = Mixture.from_weights([5, 9], [1, 3]).sample(0, np.arange(8))
    assert dataset.tolist() == GOLDEN_DATASETS
    assert index.tolist() == GOLDEN_MIXED


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 1), (1, 24), (2, 3), (3, 4), (8, 3)])
def test_any_cut_into_ranks_and_micro_batches_sees_the_same_global_batches(world_size, micro_batch):
    accumulation = 24 // (world_size * micro_batch)
    for step in (0, 1, 17):
        cut = [
            batch_samples(
                step,
                micro_step,
                rank=rank,
                world_size=world_size,
                micro_batch=micro_batch,
                accumulation=accumulation,
            )
            for rank in range(world_size)
            for micro_step in range(accumulation)
        ]
        assert np.concatenate(cut).tolist() == step_samples(step, 24).tolist()


def test_steps_follow_one_another_without_gap():
    taken = np.concatenate([step_samples(step, 6) for step in range(5)])
    assert taken.tolist() == list(range(30))


def test_a_mixture_holds_its_exact_proportions_in_every_period():
    mixture = Mixture.from_weights([5, 11, 7], [0.1, 0.2, 0.7])
    assert mixture.shares == (1, 2, 7)
    dataset, _ = mixture.sample(3, np.arange(1000))
    for period in dataset.reshape(100, 10):
        assert np.bincount(period).tolist() == [1, 2, 7]
    assert len({tuple(period) for period in dataset.reshape(100, 10).tolist()}) > 50


def test_a_mixture_takes_every_context_of_a_dataset_once_an_epoch():
    sizes = [4, 6]
    dataset, index = Mixture.from_weights(sizes, [1, 3]).sample(3, np.arange(4 * 4 * 6))
    for number, size in enumerate(sizes):
        taken = Counter(index[dataset == number].tolist())
        epochs = (dataset == number).sum() // size
        assert taken == dict.fromkeys(range(size), epochs)
    epoch = index[dataset == 1][:6], index[dataset == 1][6:12]
    assert epoch[0].tolist() != epoch[1].tolist()


def test_a_mixture_is_a_function_of_k_alone():
    mixture = Mixture.from_weights([10, 20, 30], [0.5, 0.25, 0.125])
    whole = np.stack(mixture.sample(9, np.arange(200)))
    for k in (0, 63, 199):
        assert np.stack(mixture.sample(9, k)).tolist() == whole[:, k].tolist()


def test_one_dataset_needs_no_mixing():
    dataset, index = Mixture.from_weights([13], [2.5]).sample(4, np.arange(30))
    assert not dataset.any()
    assert index.tolist() == sample_index(4, np.arange(30), 13).tolist()


@pytest.mark.parametrize("weights", [[1, 0], [1, -2], [1, float("inf")], [1, float("nan")]])
def test_a_weight_that_is_not_positive_is_refused(weights):
    with pytest.raises(ConfigError, match=r"weight .*: allowed are finite numbers > 0"):
        Mixture.from_weights([3, 3], weights)


def test_weights_too_fine_to_be_met_exactly_are_refused():
    with pytest.raises(ConfigError, match="round them to fewer digits"):
        Mixture.from_weights([3, 3], [1.0, 1e-30])
