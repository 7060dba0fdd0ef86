"""Record in SAVE the settings that decide the order of a run's samples, so that the text of any step can be found again."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from lt_shared import credentials
from lt_shared.console import IoFailure
from lt_shared.data.sample_order import run_order
from lt_shared.data.sample_order.run_order import AttemptOrder, OrderedDataset
from lt_shared.files import storage
from lt_train.config.settings import streaming
from lt_train.config.settings.data import Data
from lt_train.config.settings.streaming import Streaming
from lt_train.data import dataset_versions
from lt_train.data.blended_dataset import SampleOrder
from lt_train.process import run_files

# Names of pipes: standard input, and the files that a shell makes for <(command).
PIPE = re.compile(r"-$|/dev/fd/\d+$|/proc/self/fd/\d+$")


def write(
    run: str,
    order: SampleOrder,
    command: Sequence[str],
    consumed_samples: int,
    iteration: int,
    lengths: Sequence[int],
    versions: dict[str, dict[str, int]],
) -> None:
    """Append a line about this attempt to the file in the directory `run`. Rank 0 calls this.

    `command` are the arguments of the run's command line, `lengths` the numbers of samples that it has shuffled; `versions` maps
    the datasets' origins to their versions.
    """
    attempt = _attempt(run, order, command, consumed_samples, iteration, lengths, versions)
    with run_files.AppendedLines(Path(run) / run_order.FILE) as file:
        if not file.write(run_order.line(attempt) + "\n"):
            raise IoFailure(f"{file.path}: no space left on device", "make room and run the same command again")
        file.sync()


def _attempt(
    run: str,
    order: SampleOrder,
    command: Sequence[str],
    consumed_samples: int,
    iteration: int,
    lengths: Sequence[int],
    versions: dict[str, dict[str, int]],
) -> AttemptOrder:
    data, batches = order.data, order.batches
    ramp, streams = batches.ramp_up, data.streaming
    datasets = [_dataset(run, data, number, versions) for number in range(len(data.datasets))]
    return AttemptOrder(
        step=iteration,
        consumed_samples=consumed_samples,
        samples=lengths[-1],
        earlier_samples=tuple(lengths[:-1]),
        seed=order.seed,
        seq_length=batches.seq_length,
        global_batch_size=batches.global_batch_size,
        train_iters=batches.train_iters,
        datasets=tuple(datasets),
        split=data.split,
        rampup_batch_size=(ramp.start, ramp.increment, ramp.samples) if ramp else None,
        batch_size_schedule=tuple((entry.begin, entry.size) for entry in batches.size_schedule),
        phases=tuple(order.schedule.sample_phases(batches)) if order.schedule else (),
        window_tokens=streams.window_tokens if streams else None,
        data_cache_path=data.cache_path and os.path.abspath(data.cache_path),
        command=tuple(map(credentials.without_tokens, _repeatable(command, streams, datasets))),
    )


def _repeatable(command: Sequence[str], streams: Streaming | None, datasets: Sequence[OrderedDataset]) -> Sequence[str]:
    """Return the run's command line, with the pipes of streams replaced by the lists in the run's directory."""
    places = zip(datasets, streams.lists if streams else (), strict=False)
    lists = [f"@{dataset.shard_list}" for dataset, place in places if place and place.startswith(streaming.PIPE)]
    pipes = [number for number, word in enumerate(command) if PIPE.match(word)]
    if len(pipes) != len(lists):
        return command
    list_by_pipe = dict(zip(pipes, lists, strict=True))
    return [list_by_pipe.get(number, word) for number, word in enumerate(command)]


def _dataset(run: str, data: Data, number: int, versions: dict[str, dict[str, int]]) -> OrderedDataset:
    dataset, streams = data.datasets[number], data.streaming
    prefix, place = os.path.abspath(dataset.prefix), streams.lists[number] if streams else None
    list_file = None if place is None else streaming.list_path(place, run, "")
    if list_file is not None and not storage.is_remote(list_file):
        list_file = os.path.abspath(list_file)
    return OrderedDataset(prefix, dataset.weight, versions.get(dataset_versions.origin(prefix), {}), dataset.packed, list_file)
