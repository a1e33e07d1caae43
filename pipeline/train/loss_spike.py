"""The loss-spike guard: is this step's loss far above its moving average?

The average is the whole state of the guard. It is saved in every checkpoint, so that a resumed run
makes the same decisions.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LossAverage:
    """Moving mean and variance of the loss: plain at first, then exponential."""

    count: int = 0
    """Losses taken in so far."""
    mean: float = 0.0
    variance: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> "LossAverage":
        """What `to_dict` wrote; an empty mapping is the average of nothing."""
        if not values:
            return cls()
        return cls(int(values["count"]), float(values["mean"]), float(values["variance"]))

    def to_dict(self) -> dict[str, float]:
        """Plain numbers for a checkpoint; JSON keeps them bit for bit."""
        return asdict(self)

    @property
    def deviation(self) -> float:
        """Standard deviation; at least a millionth of the mean, so that a loss that never moved
        does not make a spike of rounding."""
        return max(math.sqrt(self.variance), 1e-6 * abs(self.mean))

    def is_spike(self, loss: float, deviations: float, window: int) -> bool:
        """Whether the loss is more than so many deviations above the mean of a full window.

        A loss that is not finite is none: another check is for it.
        """
        if self.count < window or not math.isfinite(loss):
            return False
        return loss > self.mean + deviations * self.deviation

    def with_loss(self, loss: float, window: int) -> "LossAverage":
        """The average after one more loss, with weight 1 / window once the window is full."""
        if not math.isfinite(loss):
            return self
        weight = 1.0 / min(self.count + 1, window)
        distance = loss - self.mean
        return LossAverage(
            self.count + 1,
            self.mean + weight * distance,
            (1.0 - weight) * (self.variance + weight * distance * distance),
        )
