"""The run and the samples whose losses `lt-train score` computes."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Samples `first_sample` to before `end_sample` of the run in the directory `run`, in the order of its attempt `attempt`."""

    run: str
    attempt: int
    first_sample: int
    end_sample: int
