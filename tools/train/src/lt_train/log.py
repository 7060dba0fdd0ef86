"""What a run reports: Megatron's log lines on stderr and in SAVE/train.log, and SAVE/metrics.jsonl for programs.

Only rank 0 reports. Both files are appended to by every attempt of a run; a step that was trained again after a resume appears
twice, the later one counts.
"""

import datetime
import json
import math
import sys
from pathlib import Path
from typing import IO, Any

from lt_shared import run_log
from lt_shared.run_log import Evaluation, Step

TRAIN_LOG = "train.log"
METRICS = "metrics.jsonl"


class Log:
    """Opened by rank 0; on other ranks every method does nothing. `directory` None writes to stderr alone."""

    def __init__(self, directory: str | None, active: bool):
        self.active = active
        self._files: list[IO[str]] = []
        self._metrics: IO[str] | None = None
        if active:
            self._files.append(sys.stderr)
            if directory:
                self._files.append((Path(directory) / TRAIN_LOG).open("a", buffering=1))
                self._metrics = (Path(directory) / METRICS).open("a", buffering=1)

    def line(self, text: str) -> None:
        for file in self._files:
            file.write(text + "\n")
            file.flush()

    def arguments(self, arguments: dict[str, Any]) -> None:
        for line in run_log.format_arguments(arguments):
            self.line(line)

    def step(self, step: Step, tokens_per_second: float) -> None:
        self.line(step.format())
        self._metric(
            {
                "kind": "step",
                "step": step.step,
                "loss": step.loss,
                "grad_norm": step.grad_norm,
                "learning_rate": step.learning_rate,
                "step_seconds": step.step_seconds,
                "tokens_per_second": tokens_per_second,
                "tflops_per_gpu": step.tflops_per_gpu,
                "consumed_samples": step.consumed_samples,
            }
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        self.line(evaluation.format())
        self._metric({"kind": "eval", "step": evaluation.step, "loss": evaluation.loss})

    def _metric(self, record: dict[str, Any]) -> None:
        if self._metrics:
            stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            finite = {key: value if _is_finite(value) else None for key, value in record.items()}
            self._metrics.write(json.dumps({"v": 1, **finite, "time": stamp}, separators=(",", ":"), allow_nan=False) + "\n")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
