"""A thread in every rank that ends a run without progress, and names the suspect.

When a rank stops in a data loader, a filesystem or a broken network card, all other ranks wait for it in a collective. The
communication libraries would end the waiting ranks after a while with an error about the collective. Instead, a rank without a
step for the time limit writes the stacks of its threads to SAVE/stacks, with the collectives of torch's flight recorder, and
shares its current line of code through the store in rank 0. The first rank to do so compares the lines: a rank that does not
answer, or that is at another line than the majority, is the suspect. If the store does not answer, rank 0 is the suspect. The
time limits of the libraries are longer than the watchdog's.
"""

import collections
import contextlib
import datetime
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lt_train.process import flight_recorder, interruption, process_lifetime, run_files
from lt_train.process.rank_environment import RankEnvironment, format_ranks

# Upper limit; a shorter step time limit replaces it.
ANSWERS_SECONDS = 10.0
# A launcher ends all ranks when the first one ends. The first rank must have printed its report by then.
REPORT_SECONDS = 5.0
# Time for the launcher to end a rank that hangs, and to interrupt this rank, which then begins again in its process.
REPLACED_SECONDS = 15.0
SLOW = 6
PACKAGE = str(Path(__file__).parents[1])
KEY = "lt-train/hung"


class Watchdog:
    """Watches a rank while it trains: `beat` reports progress, and a `slow` phase may take `SLOW` times as long as a step."""

    def __init__(self, timeout_seconds: float, rank_env: RankEnvironment, directory: str | None):
        self.timeout_seconds = timeout_seconds
        self.answers_seconds = min(ANSWERS_SECONDS, timeout_seconds)
        self.rank_env = rank_env
        stacks = Path(directory) / "stacks" if directory else None
        self.directory = None if stacks is None or stacks.is_symlink() else stacks
        self.step = 0
        self._last = time.monotonic()
        self._limit_seconds = timeout_seconds
        self._stop = threading.Event()
        self._told = threading.Event()
        self._is_replacing = False
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def beat(self, step: int) -> None:
        self.step, self._last = step, time.monotonic()

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Extend the time limit within the context, for work that takes longer than a step: loading, saving, evaluation."""
        self._limit_seconds = SLOW * self.timeout_seconds
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._limit_seconds = self.timeout_seconds

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self.timeout_seconds / 10)):
            if time.monotonic() - self._last > self._limit_seconds:
                self._end()

    def _end(self) -> None:
        """Write the stacks, find the suspect together with the other ranks, and end this process."""
        self._write_stacks()
        recording = threading.Thread(target=self._write_collectives, name="watchdog-collectives", daemon=True)
        recording.start()
        # In a thread, because the store of a stopped process accepts connections and never answers.
        comparing = threading.Thread(target=self._compare, name="watchdog-compare", daemon=True)
        comparing.start()
        if self._told.wait(self.answers_seconds):
            comparing.join(2 * self.answers_seconds)
        if comparing.is_alive() and not self._stop.is_set():
            self._suspect_first()
        recording.join(self.answers_seconds)
        if self._is_replacing and self._stop.wait(REPLACED_SECONDS):
            return
        os._exit(process_lifetime.hung_code())

    def _suspect_first(self) -> None:
        """Report rank 0 as the suspect. Only one rank per node reports at once; the others wait, in case it hangs, too."""
        if self.rank_env.local_rank and self.rank_env.rank != 1:
            time.sleep(REPORT_SECONDS)
        self._say_suspects([], [0])

    def _write_stacks(self) -> None:
        try:
            if self.directory is None:
                faulthandler.dump_traceback()
                return
            self.directory.mkdir(parents=True, exist_ok=True)
            with run_files.open_new(self.directory / f"rank-{self.rank_env.rank:05d}.txt") as file:
                file.write(f"rank {self.rank_env.rank} on {socket.gethostname()}, after step {self.step}\n")
                file.flush()
                faulthandler.dump_traceback(file)
        except OSError:
            faulthandler.dump_traceback()

    def _write_collectives(self) -> None:
        """Write the flight recorder's dump for `lt-monitor stuck`. It may wait for a device that does not answer."""
        if self.directory is None:
            return
        path = self.directory / f"{flight_recorder.PREFIX}{self.rank_env.rank}"
        with contextlib.suppress(OSError, RuntimeError), run_files.open_new(path) as file:
            file.buffer.write(flight_recorder.dump())

    def _state(self) -> dict[str, Any]:
        frame = sys._current_frames().get(self._main)
        return {
            "rank": self.rank_env.rank,
            "host": socket.gethostname(),
            "step": self.step,
            "at": _innermost(frame),
            "communicating": _communicates(frame),
        }

    def _compare(self) -> None:
        try:
            self._compare_in_store()
        except (RuntimeError, OSError):
            # The store ends with rank 0, which then was the first to end.
            if not self._stop.is_set():
                self._say(f"rank {self.rank_env.rank} on {socket.gethostname()}: {self._state()['at']}")

    def _compare_in_store(self) -> None:
        limit = datetime.timedelta(seconds=self.answers_seconds)
        address, port = self.rank_env.master_address, self.rank_env.master_port
        store = TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)
        store.set(f"{KEY}/{self.rank_env.rank}", json.dumps(self._state()))
        claims = store.add(f"{KEY}/claims", 1)
        self._told.set()
        if claims > 1:
            self._is_replacing = interruption.is_allowed()
            self._stop.wait(self.answers_seconds + REPORT_SECONDS)
            return
        deadline = time.monotonic() + self.answers_seconds
        missing_ranks = set(range(self.rank_env.world_size))
        while missing_ranks and time.monotonic() < deadline:
            missing_ranks = {rank for rank in missing_ranks if not store.check([f"{KEY}/{rank}"])}
            time.sleep(0.1)
        answered = set(range(self.rank_env.world_size)) - missing_ranks
        states = [json.loads(store.get(f"{KEY}/{rank}")) for rank in sorted(answered)]
        self._say_suspects(states, sorted(missing_ranks))

    def _say_suspects(self, states: list[dict[str, Any]], silent: list[int]) -> None:
        self._say(suspects(states, silent))
        suspect_ranks = silent or [state["rank"] for state in _odd(states)]
        if interruption.is_allowed() and len(suspect_ranks) == 1:
            self._is_replacing = True
            interruption.replace(suspect_ranks[0])

    def _say(self, text: str) -> None:
        minutes = self._limit_seconds / 60
        click.echo(f"lt-train: error: no step for {minutes:g} minutes after step {self.step}: {text}", err=True)
        location = f"the stacks of all ranks are in {self.directory}" if self.directory else "the stacks are above"
        click.echo(f"hint: {location}; the run can be started again", err=True)


def suspects(states: list[dict[str, Any]], silent: list[int]) -> str:
    """Describe which ranks hold the others up, by the `states` that ranks reported; `silent` ranks reported none.

    A rank is late if it is steps behind, or if it does not communicate while other ranks do. If all ranks wait at the same line,
    no rank is named.
    """
    if silent:
        return f"suspect rank{_listed(silent)}: no answer, the process is stopped, or its host or network is gone"
    odd = _odd(states)
    if not odd:
        return f"all ranks wait at {states[0]['at']}: see the network and the logs of the communication library"
    descriptions = "; ".join(
        f"rank {state['rank']} on {state['host']} at {state['at']}, step {state['step']}" for state in odd[:8]
    )
    more = f" and {len(odd) - 8} more" if len(odd) > 8 else ""
    return f"suspect {descriptions}{more}"


def _odd(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the states that differ from the majority; none if all states differ."""
    last = max(state["step"] for state in states)
    odd = [state for state in states if state["step"] < last]
    if not odd and any(state["communicating"] for state in states):
        odd = [state for state in states if not state["communicating"]]
    if not odd:
        common = collections.Counter(state["at"] for state in states).most_common(1)[0][0]
        odd = [state for state in states if state["at"] != common]
    return odd if len(odd) < len(states) else []


def _listed(ranks: list[int]) -> str:
    return f"{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frame: FrameType | None) -> str:
    """Return the innermost line of a thread in lt-train's code, or in any code if lt-train's is not on the stack."""
    frames = list(_frames(frame))
    frame_of_run = next(
        (candidate for candidate in frames if candidate.f_code.co_filename.startswith(PACKAGE)), frames[0] if frames else None
    )
    if frame_of_run is None:
        return "an unknown line"
    return f"{Path(frame_of_run.f_code.co_filename).name}:{frame_of_run.f_lineno} {frame_of_run.f_code.co_name}"


def _communicates(frame: FrameType | None) -> bool:
    return any(f"torch{os.sep}distributed" in stack_frame.f_code.co_filename for stack_frame in _frames(frame))
