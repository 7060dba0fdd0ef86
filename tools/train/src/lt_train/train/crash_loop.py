"""Record the start and the last step of a run's attempts, and refuse to start a run that keeps failing at the same step.

A job that is requeued after every failure runs forever if the data or the configuration makes it fail: it dies at the same step
each time. Rank 0 appends a line to SAVE/attempts.jsonl when an attempt begins to train and when it ends without an error. It also
writes the number of the current step to a file of eight bytes, which survives every way to die. If ranks fail before they train,
lt-train on the first node appends the line, for an attempt that made no step.
"""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lt_shared.console import BadConfig, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.recovery_notes import Recovery
from lt_shared.files.local_files import write_at
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.process import run_files

FILE = "attempts.jsonl"
STEP_FILE = ".step"
LIMIT = 3


class Attempt:
    """The current attempt, on rank 0 of a run that saves. `plan` is the `fingerprint` of its configuration.

    `interrupted` is the number and the time of the previous attempt's last step, if that attempt failed, else None.
    """

    def __init__(self, run: Path, plan: str, start: int):
        self._file = run / FILE
        self.start, self.interrupted = start, _interrupted(run)
        record = {"v": 1, "start": start, "plan": plan, "before": _read_step(run), "interrupted": self.interrupted}
        self._append(record)
        self._step = run_files.open_descriptor(run / STEP_FILE, os.O_RDWR)
        self.write_step(start)

    def write_step(self, iteration: int) -> None:
        try:
            write_at(self._step, iteration.to_bytes(8, "little"), 0)
        except OSError as error:
            # The disk is full: the file keeps the number of an earlier step, and training continues.
            if error.errno not in run_files.FULL:
                raise

    def take_recovery(self, iteration: int) -> Recovery | None:
        """Return the cost of the recovery at `iteration`, the first step after a failure. None without a failure, or later."""
        if self.interrupted is None:
            return None
        (step, time_then), self.interrupted = self.interrupted, None
        return Recovery(max(0.0, time.time() - time_then), step, iteration, max(0, step - self.start))

    def end(self, iteration: int) -> None:
        """Record that the attempt ended without an error, at the last step or at a saved one."""
        self._append({"v": 1, "end": iteration})
        self.close()

    def close(self) -> None:
        os.close(self._step)

    def _append(self, record: dict[str, Any]) -> None:
        with run_files.AppendedLines(self._file) as file:
            if not file.write(json.dumps(record) + "\n"):
                warn(f"{self._file}: no space left on device; a failure of this attempt will not be counted")


def _interrupted(run: Path) -> tuple[int, float] | None:
    """Return step and time of the last failed attempt, or of the one before if that attempt made no step.

    None if the previous attempt did not fail, or if its line was cut off.
    """
    lines = _lines(run)
    if not lines or not lines[-1] or "end" in lines[-1]:
        return None
    step, earlier_interruption = _read_step(run), lines[-1].get("interrupted")
    if isinstance(earlier_interruption, list) and len(earlier_interruption) == 2 and step <= lines[-1].get("start", 0):
        return int(earlier_interruption[0]), float(earlier_interruption[1])
    file = run / STEP_FILE
    return (step, file.stat().st_mtime) if file.is_file() else None


def attempts(directory: str | None) -> int:
    """Return the size of the attempts file of the run in `directory`. It grows with every attempt."""
    file = Path(directory or "") / FILE
    return file.stat().st_size if directory is not None and file.exists() else 0


def add_failed_start(checkpointing: Checkpointing, plan: str) -> None:
    """Record an attempt that failed before its ranks trained."""
    if checkpointing.directory is not None:
        continued = checkpointing.start if checkpointing.continues else None
        start = checkpoint_layout.iteration_of(Path(continued)) if continued else 0
        Attempt(Path(checkpointing.directory), plan, start or 0).close()


def fingerprint(config: RunConfig) -> str:
    """Hash every setting that the user chose. The checkpoint to start from is excluded, because it changes by itself."""
    chosen = dataclasses.replace(config, checkpointing=dataclasses.replace(config.checkpointing, start=None, continues=False))
    return hashlib.sha256(chosen.to_json().encode()).hexdigest()


def check(checkpointing: Checkpointing, plan: Callable[[], str]) -> None:
    """Raise BadConfig if the last `LIMIT` attempts of the run, all with the fingerprint `plan`, failed at the same step."""
    directory = checkpointing.directory
    # Most runs begin without attempts: there is nothing to compare the configuration with.
    if directory is None or attempts(directory) == 0:
        return
    run = Path(directory)
    failed = _failed(run, plan())
    if len(failed) >= LIMIT and len(set(failed[-LIMIT:])) == 1:
        start, reached = failed[-1]
        raise BadConfig(
            f"{run}: {LIMIT} attempts from iteration {start} have failed after iteration {reached}, at the same step",
            f"see their logs; once the cause is gone, change an option or delete {run / FILE}",
        )


def _failed(run: Path, plan: str) -> list[tuple[int, int]]:
    """Return (start, last step) of the latest failed attempts with this `plan`, up to an attempt that did not fail or differs."""
    failed: list[tuple[int, int]] = []
    reached = _read_step(run)
    for line in reversed(_lines(run)):
        # A cut-off line has neither key: the attempts before it are unknown.
        if "end" in line or line.get("plan") != plan or not {"start", "before"} <= line.keys():
            break
        failed.insert(0, (line["start"], reached))
        reached = line["before"]
    return failed


def _lines(run: Path) -> list[dict[str, Any]]:
    try:
        content = run_files.read_content(run / FILE)
    except FileNotFoundError:
        return []
    return [run_files.parse_record(line) for line in content.splitlines()]


def _read_step(run: Path) -> int:
    try:
        return int.from_bytes(run_files.read_content(run / STEP_FILE), "little")
    except FileNotFoundError:
        return 0
