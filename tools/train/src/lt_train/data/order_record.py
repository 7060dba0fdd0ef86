"""Writes down in SAVE what decides the order of a run's samples, so that the text of any step is found again."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from lt_shared import credentials, storage
from lt_shared.console import IoFailure
from lt_shared.sample_order import run_order
from lt_shared.sample_order.run_order import AttemptOrder, OrderedDataset
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import streaming
from lt_train.data import dataset_versions, loader
from lt_train.runtime import run_files

# A shell's <(...) is such a file.
PIPE = re.compile(r"-$|/dev/fd/\d+$|/proc/self/fd/\d+$")


def write(config: RunConfig, consumed_samples: int, iteration: int, versions: dict[str, dict[str, int]]) -> None:
    """Add the line of this attempt; rank 0 calls it. `versions` are those of the datasets, by their origins."""
    directory = config.checkpointing.directory
    if directory is None:
        return
    with run_files.AppendedLines(Path(directory) / run_order.FILE) as file:
        if not file.write(run_order.line(_attempt(config, consumed_samples, iteration, versions)) + "\n"):
            raise IoFailure(f"{file.path}: no space left on device", "make room and run the same command again")
        file.sync()


def _attempt(config: RunConfig, consumed_samples: int, iteration: int, versions: dict[str, dict[str, int]]) -> AttemptOrder:
    ramp, streams = config.batches.ramp_up, config.data.streaming
    datasets = [_dataset(config, number, versions) for number in range(len(config.data.datasets))]
    return AttemptOrder(
        step=iteration,
        consumed_samples=consumed_samples,
        samples=loader.training_samples(config, consumed_samples, iteration),
        seed=config.seed,
        seq_length=config.batches.seq_length,
        global_batch_size=config.batches.global_batch_size,
        train_iters=config.batches.train_iters,
        datasets=tuple(datasets),
        split=config.data.split,
        rampup_batch_size=(ramp.start, ramp.increment, ramp.samples) if ramp else None,
        phases=tuple(config.schedule.sample_phases(config.batches)) if config.schedule else (),
        window_tokens=streams.window_tokens if streams else None,
        data_cache_path=config.data.cache_path and os.path.abspath(config.data.cache_path),
        command=tuple(map(credentials.without_tokens, _repeatable(config, datasets))),
    )


def _repeatable(config: RunConfig, datasets: Sequence[OrderedDataset]) -> Sequence[str]:
    """The run's command line with the lists of streams in the place of the pipes that they came through."""
    command, streams = config.reporting.command, config.data.streaming
    places = zip(datasets, streams.lists if streams else (), strict=False)
    lists = [f"@{dataset.shard_list}" for dataset, place in places if place and place.startswith(streaming.PIPE)]
    pipes = [number for number, word in enumerate(command) if PIPE.match(word)]
    if len(pipes) != len(lists):
        return command
    named = dict(zip(pipes, lists, strict=True))
    return [named.get(number, word) for number, word in enumerate(command)]


def _dataset(config: RunConfig, number: int, versions: dict[str, dict[str, int]]) -> OrderedDataset:
    dataset, streams = config.data.datasets[number], config.data.streaming
    prefix, place = os.path.abspath(dataset.prefix), streams.lists[number] if streams else None
    listed = None if place is None else streaming.list_path(place, config.checkpointing.directory, "")
    if listed is not None and not storage.is_remote(listed):
        listed = os.path.abspath(listed)
    return OrderedDataset(prefix, dataset.weight, versions.get(dataset_versions.origin(prefix), {}), dataset.packed, listed)
