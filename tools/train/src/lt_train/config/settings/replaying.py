"""The recorded steps that `lt-train replay` computes again, and the tolerance of the comparison."""

import dataclasses

# For replays that cannot be exact. A different order of summation changes a few steps by far less.
LOSS_TOLERANCE, GRAD_NORM_TOLERANCE = 1e-3, 1e-2


@dataclasses.dataclass(frozen=True)
class Replay:
    """Steps `first` to `last` of the run in `run`.

    `tolerance` is the relative difference of losses that is accepted; None requires equal bits. `why` is the reason for it.
    """

    run: str
    first: int
    last: int
    tolerance: float | None
    why: str
    as_json: bool

    @property
    def grad_norm_tolerance(self) -> float | None:
        return None if self.tolerance is None else self.tolerance * GRAD_NORM_TOLERANCE / LOSS_TOLERANCE
