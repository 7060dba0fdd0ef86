"""Writes down in SAVE what decides the order of a run's samples, so that the text of any step is found again."""

import os
from pathlib import Path

from lt_shared import credentials
from lt_shared.sample_order import run_order
from lt_shared.sample_order.run_order import AttemptOrder, OrderedDataset
from lt_train.config.run_config import RunConfig
from lt_train.data import loader
from lt_train.runtime import run_files


def write(config: RunConfig, consumed_samples: int, iteration: int, versions: dict[str, dict[str, int]]) -> None:
    """Add the line of this attempt; rank 0 calls it. `versions` are those of the datasets, by their absolute prefixes."""
    directory = config.checkpointing.directory
    if directory is None:
        return
    with run_files.appended(Path(directory) / run_order.FILE) as file:
        file.write(run_order.line(_attempt(config, consumed_samples, iteration, versions)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _attempt(config: RunConfig, consumed_samples: int, iteration: int, versions: dict[str, dict[str, int]]) -> AttemptOrder:
    ramp = config.batches.ramp_up
    prefixes = [(os.path.abspath(dataset.prefix), dataset.weight) for dataset in config.data.datasets]
    return AttemptOrder(
        step=iteration,
        consumed_samples=consumed_samples,
        samples=loader.training_samples(config, consumed_samples, iteration),
        seed=config.seed,
        seq_length=config.batches.seq_length,
        global_batch_size=config.batches.global_batch_size,
        train_iters=config.batches.train_iters,
        datasets=tuple(OrderedDataset(prefix, weight, versions.get(prefix, {})) for prefix, weight in prefixes),
        split=config.data.split,
        rampup_batch_size=(ramp.start, ramp.increment, ramp.samples) if ramp else None,
        data_cache_path=config.data.cache_path and os.path.abspath(config.data.cache_path),
        command=tuple(map(credentials.without_tokens, config.reporting.command)),
    )
