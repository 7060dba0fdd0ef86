"""Traces and memory snapshots of chosen steps on chosen ranks.

A trace is Chrome's JSON, for ui.perfetto.dev; a snapshot is for docs.pytorch.org/memory_viz. Both files are written under a
hidden name and renamed. They also appear if the run is stopped or fails inside the profiled steps, because a step that runs out
of memory is worth a snapshot. The trace of a step takes 10 to 100 MB and makes the step slower. Steps that are not profiled keep
their speed.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from lt_shared.console import note
from lt_train.config.settings.reporting import Profile
from lt_train.process import device


class Profiler:
    """Record traces and memory snapshots on the chosen ranks. The training loop calls `step` after every step."""

    def __init__(self, settings: Profile | None, rank: int, rank_device: torch.device, steps_done: int):
        """Profile the steps after the first `steps_done` steps."""
        self.settings = settings if settings and rank in settings.ranks and steps_done < settings.end else None
        self.rank = rank
        self.rank_device = rank_device
        self.steps_done = steps_done
        self._profile: Any = None
        self._is_recording = False

    def __enter__(self) -> Self:
        if self.settings and self.settings.trace:
            before = max(0, self.settings.first - self.steps_done)
            active = self.settings.end - self.steps_done - before
            self._profile = torch.profiler.profile(
                # During the warm-up step, the tracer starts but records nothing.
                schedule=torch.profiler.schedule(wait=max(0, before - 1), warmup=min(1, before), active=active, repeat=1),
                on_trace_ready=self._write_trace,
            )
            self._profile.start()
        self._record_memory()
        return self

    def step(self) -> None:
        """Count a finished step."""
        self.steps_done += 1
        if self._profile:
            self._profile.step()
        self._record_memory()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._profile:
            self._profile.stop()
            self._profile = None
        if self._is_recording:
            self._write_snapshot()

    def _record_memory(self) -> None:
        settings = self.settings
        if settings is None or not settings.memory:
            return
        if settings.first <= self.steps_done < settings.end and not self._is_recording:
            device.record_memory_history()
            self._is_recording = True
        elif self.steps_done >= settings.end and self._is_recording:
            self._write_snapshot()

    def _write_trace(self, profile: Any) -> None:
        target = self._target("trace", "json.gz")
        profile.export_chrome_trace(str(self._hidden_path(target)))
        self._publish(target)

    def _write_snapshot(self) -> None:
        target = self._target("memory", "pickle")
        device.dump_memory_history(str(self._hidden_path(target)))
        self._is_recording = False
        self._publish(target)

    def _target(self, what: str, ending: str) -> Path:
        assert self.settings is not None
        directory = Path(self.settings.directory)
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / f"{what}-step{self.settings.end}-rank{self.rank}.{ending}"
        # torch would write through a link.
        self._hidden_path(target).unlink(missing_ok=True)
        return target

    def _hidden_path(self, target: Path) -> Path:
        return target.with_name(f".{target.name}")

    def _publish(self, target: Path) -> None:
        os.replace(self._hidden_path(target), target)
        note(f"rank {self.rank}: profile in {target}")
