"""The choice among hypotheses that were read ahead, against reading them level by level."""

import numpy as np
import pytest

from gpst.search.pool import ENOUGH, MARGIN, SPREADS, Expected, Pool


class Case:
    """Random scores of L levels; `spread`: of log p of the next token over the hypotheses."""

    def __init__(self, seed: int, spread: float, beam: int = 20, levels: int = 6):
        rng = np.random.default_rng(seed)
        self.beam, shape = beam, (2, levels, beam)
        self.unread = np.where(rng.random((2, beam)) < 0.2, rng.normal(-3, 2, (2, beam)), -np.inf)
        heights = np.where(np.isinf(self.unread), rng.integers(0, levels + 1, (2, beam)), -1)
        numbers = np.arange(levels)[None, :, None]
        self.read = numbers <= heights[:, None]
        types = np.log(rng.dirichlet([1, 1], shape))
        base = rng.normal(-2, 2, (2, 1, beam))
        before = base + types[..., 0].cumsum(1) - types[..., 0]
        self.comp = np.where(numbers < heights[:, None], before + types[..., 0], -np.inf)
        self.gen = np.where(self.read, before + types[..., 1], -np.inf)
        self.tokens = rng.normal(-7, spread, shape).clip(max=0).reshape(2, -1)

    def expected(self, context: int) -> list[tuple[float, int, int, bool]]:
        """(log p, level, column, wrote) of those kept, level after level."""
        gen = self.gen[context] + self.tokens[context].reshape(self.gen[context].shape)
        kept = [(p, -1, k, False) for k, p in enumerate(self.unread[context])]
        going = [(0.0, -1, k, True) for k in range(self.beam) if self.read[context, 0, k]]
        for level in range(self.read.shape[1]):
            new = []
            for _, _, k, _ in going:
                new.append((self.comp[context, level, k], level, k, False))
                new.append((gen[level, k], level, k, True))
            kept = sorted([one for one in kept + new if one[0] > -np.inf], reverse=True)
            kept = kept[: self.beam]
            last = level + 1 == self.read.shape[1]
            going = [k for k in kept if k[1] == level and not k[3] and not last]
            going = [k for k in going if self.read[context, level + 1, k[2]]]
            kept = [one for one in kept if one not in going]
        return sorted(kept, reverse=True)

    def found(self, expected: Expected | None) -> tuple[list, int]:
        """The same by a pool, and how many tokens had to be known."""
        pool = Pool(
            self.unread, self.read, self.comp, self.gen, guess=-7.0, size=self.beam,
            expected=expected,
        )  # fmt: skip
        bounded, known = np.zeros((2, *self.tokens.shape), bool)
        kept, wanted = pool.keep()
        while wanted.any():
            exact = wanted & bounded
            pool.know(exact, self.tokens[exact])
            new = wanted & ~bounded
            pool.bound(new, np.minimum(self.tokens[new] + 0.2, 0.0))
            bounded |= new
            known |= exact
            kept, wanted = pool.keep()
        columns = (kept.log_p, kept.level, kept.column, kept.wrote)
        rows = [list(zip(*(c[k].tolist() for c in columns), strict=True)) for k in range(2)]
        return [[one for one in row if one[0] > -np.inf] for row in rows], int(bounded.sum())


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_what_is_kept_is_what_reading_level_by_level_keeps(spread):
    looked_at = {"sure": 0, "judged": 0, "all": 0}
    for seed in range(40):
        case = Case(seed, spread, beam=(1, 3, 20)[seed % 3])
        wanted = [case.expected(context) for context in range(2)]
        looked_at["all"] += int((case.gen > -np.inf).sum())
        for name in ("sure", "judged"):
            expected = Expected(2) if name == "judged" else None
            if expected:
                expected.restart(np.ones(2, bool))
            found, number = case.found(expected)
            looked_at[name] += number
            for ours, theirs in zip(found, wanted, strict=True):
                assert [one[1:] for one in ours] == [one[1:] for one in theirs]
                assert [p for p, *_ in ours] == pytest.approx([p for p, *_ in theirs])
    assert looked_at["judged"] <= looked_at["sure"] < looked_at["all"]
    assert spread > 0.1 or looked_at["judged"] < 0.9 * looked_at["sure"]


def test_a_score_is_expected_near_those_known():
    expected = Expected(3)
    expected.restart(np.ones(3, bool))
    assert expected.most.tolist() == [0, 0, 0]
    expected.add(np.zeros(ENOUGH - 1, np.int64), np.linspace(-9, -8, ENOUGH - 1))
    assert expected.most.tolist() == [0, 0, 0]
    expected.add(np.array([0, 1]), np.array([-9.0, -3.0]))
    assert expected.most.tolist() == [-8 + SPREADS + MARGIN, 0, 0]
    expected.add(np.ones(ENOUGH, np.int64), np.full(ENOUGH, -0.1))
    assert expected.most.tolist()[1] == 0  # never more than log 1
    expected.restart(np.array([True, False, False]))
    assert expected.most.tolist() == [0, 0, 0]
    assert expected.known.tolist() == [0, ENOUGH + 1, 0]
