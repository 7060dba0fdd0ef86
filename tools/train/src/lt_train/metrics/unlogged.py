"""The steps since the last log line. A checkpoint holds them, so that the next line is the same after a resume."""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass
class Unlogged:
    """The losses of the steps that updated the weights, and the number of the steps that did not."""

    losses: list[float] = dataclasses.field(default_factory=list)
    skipped_steps: int = 0
    nan_steps: int = 0
    source_sums: list[float] = dataclasses.field(default_factory=list)

    def add(self, loss: float | None, updated: bool, source_sums: Sequence[float] = ()) -> None:
        """Add a step; `loss` is None for a skipped step. `source_sums` come from `StepResult`."""
        if updated and loss is not None:
            self.losses.append(loss)
            before = self.source_sums or [0.0] * len(source_sums)
            self.source_sums = [total + more for total, more in zip(before, source_sums, strict=True)]
        self.skipped_steps += not updated
        self.nan_steps += loss is not None and not math.isfinite(loss)

    @property
    def mean_loss(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def source_losses(self) -> list[float | None]:
        """Return the mean token loss for every dataset in a blend, None for a dataset without tokens."""
        datasets = len(self.source_sums) // 2
        paired = zip(self.source_sums[:datasets], self.source_sums[datasets:], strict=True)
        return [total / count if count else None for total, count in paired]
