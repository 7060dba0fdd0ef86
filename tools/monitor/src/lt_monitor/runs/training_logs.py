"""Logs as Python objects, for notebooks and scripts: their events one by one, the steps of their runs as columns.

Events are streamed, since a million of them as dicts take 2 GB; steps are columns, 8 bytes a value.
"""

import functools
import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from lt_monitor.events.records import COUNTS, Record
from lt_monitor.logs import log_files, rank_series
from lt_monitor.logs.deduplication import Deduplicator
from lt_monitor.runs import run_loader
from lt_shared.console import Unavailable, UsageError

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]

Path = str | os.PathLike[str]


class TrainingLogs:
    """Logs to iterate over. Each iteration reads them again, and yields their events in the order of the logs, as dicts: those
    that `lt-monitor scrape` prints, with the same keys, `kind` among them.

    `paths` are the files. A log that is gone raises NoInput when it is read; lines that are no events are passed over.
    """

    def __init__(self, paths: list[str]):
        self.paths = paths

    def __iter__(self) -> Iterator[Record]:
        for path, run in rank_series.run_names(self.paths).items():
            deduplicator = Deduplicator()
            shown = log_files.printable(path)
            for block in log_files.parsed_blocks(path):
                yield from map(json.loads, deduplicator.new_lines(block, shown, run))

    @functools.cached_property
    def steps(self) -> dict[str, np.ndarray]:
        """The steps of all runs as columns of shape [steps], one run after the other, ascending; read when first asked for.

        `run` (str), `step` (int64), `time` (datetime64[us], UTC, NaT if the log has no time), and float64 columns for the step
        events' numbers: `loss`, `grad_norm`, `step_seconds` and so on, NaN if a step lacks the number or it is not finite.
        `loss` exists even if no step has a loss. The arrays are read-only; copies can be written to.

        As in `lt-monitor plot`, a step that was repeated after a restart counts once, from the latest attempt; steps that a
        restart discarded are missing; and jobs that continue each other's checkpoints are one run.
        """
        runs = run_loader.join_by_checkpoints(run_loader.read(self.paths, need_steps=False))
        steps = [run.steps for run in runs]
        names = list(dict.fromkeys(["loss", *(name for one in steps for name in one.columns)]))
        lengths = [len(one) for one in steps]
        # Nothing to concatenate is an error to NumPy.
        columns: dict[str, np.ndarray] = {
            "run": np.repeat(np.array([run.name for run in runs], np.str_), lengths),
            "step": np.concatenate([np.empty(0, np.int64), *(one.numbers for one in steps)]),
            "time": _datetimes(np.concatenate([np.empty(0), *(one.times for one in steps)])),
        }
        for name in names:
            column = np.concatenate([np.empty(0), *(one.column(name) for one in steps)])
            columns.setdefault(name, np.where(np.isfinite(column), column, np.nan))
        for column in columns.values():
            column.flags.writeable = False
        return columns

    def to_pandas(self) -> "pandas.DataFrame":
        """`steps` as a DataFrame, a row for each: `step` int64, `time` in UTC, counts such as `consumed_samples` Int64 (which has
        missing values), other numbers float64.

        Raises Unavailable without pandas, which `pip install 'lt-monitor[pandas]'` brings.
        """
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise Unavailable("to_pandas needs pandas", "pip install 'lt-monitor[pandas]'") from None
        frame = pandas.DataFrame(self.steps)
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        for name in COUNTS.intersection(self.steps) - {"step"}:
            # A trainer's own metric of that name may be no count.
            if not (np.nan_to_num(self.steps[name]) % 1).any():
                frame[name] = frame[name].astype("Int64")
        return frame

    def __repr__(self) -> str:
        return f"<TrainingLogs {', '.join(map(log_files.printable, self.paths))}>"


def read(paths: Path | Iterable[Path]) -> TrainingLogs:
    """The training logs at `paths`, each a file, a directory, a pattern or a URL, as the commands take them.

    Raises: NoInput when a log is missing or unreadable, or for a directory without logs; UsageError without any path.
    """
    named_paths = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    # A file of that name; to the commands it is standard input.
    expanded_paths = [os.path.join(os.curdir, path) if path == log_files.STANDARD_INPUT else path for path in named_paths]
    if not expanded_paths or "" in expanded_paths:
        raise UsageError("no log" if not expanded_paths else "an empty path", "name a file, a directory or a pattern")
    return TrainingLogs(log_files.expand(expanded_paths))


def _datetimes(seconds: np.ndarray) -> np.ndarray:
    """Seconds since 1970 as datetime64[us]."""
    finite = np.isfinite(seconds)
    times = np.full(len(seconds), np.datetime64("NaT"), "datetime64[us]")
    times[finite] = np.round(seconds[finite] * 1e6).astype(np.int64).astype("datetime64[us]")
    return times
