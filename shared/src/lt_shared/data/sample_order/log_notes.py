"""Log lines about the data: excluded samples and the beginning of phases. lt-train prints them, lt-monitor parses them.

In metrics.jsonl they are notes. The patterns follow the rules in `lt_shared.contracts.run_log`.
"""

import dataclasses
import re
from collections.abc import Mapping

PHASE = re.compile(
    rb"phase (?P<name>.{1,240}) begins at iteration (?P<step>\d{1,15}): sequence length (?P<seq_length>\d{1,15})"
    rb"(?:, global batch size (?P<global_batch_size>\d{1,15}))?"
)
SKIPPED = re.compile(rb"iteration (?P<step>\d{1,15}): (?P<left_out>\d{1,15}) of (?P<samples>\d{1,15}) samples skipped")


@dataclasses.dataclass(frozen=True)
class Skipped:
    """`left_out` of the `samples` samples of `step` were excluded: every sample if the step itself was skipped."""

    step: int
    left_out: int
    samples: int

    NOTE = "skipped-samples"

    def format(self) -> str:
        return f" iteration {self.step}: {self.left_out} of {self.samples} samples skipped"


@dataclasses.dataclass(frozen=True)
class PhaseBegins:
    """From `step` on, samples have `seq_length` tokens and come from the datasets in proportion to `weights`.

    `global_batch_size` is None in a phase of a run whose phases all have the same.
    """

    step: int
    name: str
    seq_length: int
    weights: Mapping[str, float]
    global_batch_size: int | None = None

    NOTE = "phase"

    def format(self) -> str:
        shares = ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items())
        batch = f", global batch size {self.global_batch_size}" if self.global_batch_size else ""
        return f" phase {self.name} begins at iteration {self.step}: sequence length {self.seq_length}{batch}, weights {shares}"
