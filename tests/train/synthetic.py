"""Datasets of made-up tokens, and plans that read them, without starting a rank."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order.samples import Samples
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.data import training_datasets
from lt_train.data import blended_dataset
from lt_train.data.blended_dataset import SampleOrder
from lt_train.data.loader import Batch, Loader
from lt_train.planner.resolve import resolve_run_config

VOCABULARY = 100
EOD = VOCABULARY - 1


def write(prefix: Path, lengths: Sequence[int], dtype: Any = np.uint16) -> Dataset:
    """A dataset of sequences of these lengths, some empty, whose tokens tell where they come from."""
    tokens = np.arange(sum(lengths)) % EOD
    with indexed_dataset.Writer(str(prefix), dtype) as writer:
        writer.append(tokens, np.array(lengths, np.int32), np.ones(len(lengths), np.int32))
        writer.publish()
    return Dataset(str(prefix), len(lengths), sum(lengths), np.dtype(dtype).name, VOCABULARY, EOD)


def plan(*arguments: str, datasets: tuple[Dataset, ...] | None = None) -> RunConfig:
    """What `lt-train ARGUMENTS` would run on a CPU, with the tiny model and a vocabulary of VOCABULARY tokens."""
    from lt_train.cli import command

    sizes = ("--model", "tiny", "--device", "cpu", "--vocab-size", str(VOCABULARY))
    context = command.make_context("lt-train", [*sizes, *arguments])
    options = {key: value for key, value in context.params.items() if key not in ("data", "dry_run")}
    return resolve_run_config(options, training_datasets(context.params["data"], options) if datasets is None else datasets)


def with_blend(plan: RunConfig, **lists: tuple[Dataset, ...]) -> RunConfig:
    return dataclasses.replace(plan, data=dataclasses.replace(plan.data, **lists))


def samples(plan: RunConfig, cache: str | None) -> tuple[Samples | None, Samples | None, Samples | None]:
    """Of training, validation (the first set) and test."""
    built = blended_dataset.build(SampleOrder.from_config(plan), cache)
    return built.training, next(iter(built.validation.values()), None), built.test


def loader(plan: RunConfig) -> Loader:
    return Loader(plan.data, plan.batches, plan.architecture.vocab_size, torch.device("cpu"))


def training(plan: RunConfig, samples: Samples, consumed_samples: int = 0, iteration: int = 0) -> Iterator[Batch]:
    """The micro batches of the steps after `iteration`."""
    return loader(plan).training(samples, plan.skipping, consumed_samples, iteration, plan.batches.train_iters)
