"""The recorded steps that `lt-train replay` computes again, and the tolerance of the comparison."""

import dataclasses

# Of a replay that cannot be exact: what another order of summation changes in a few steps is far below.
LOSS_TOLERANCE, GRAD_NORM_TOLERANCE = 1e-3, 1e-2


@dataclasses.dataclass(frozen=True)
class Replay:
    """Steps `first` to `last` of the run at `run`. `tolerance` is relative, of losses; None is bit for bit; `why` says why."""

    run: str
    first: int
    last: int
    tolerance: float | None
    why: str
    as_json: bool

    @property
    def grad_norm_tolerance(self) -> float | None:
        return None if self.tolerance is None else self.tolerance * GRAD_NORM_TOLERANCE / LOSS_TOLERANCE
