"""Resolve options into the configuration of a run, part by part, so that all mistakes show at once.

click merges flags, environment and config file; the modules of `lt_train.config.settings` fill in presets and derived defaults.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lt_shared.console import ToolError
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.architecture import Architecture
from lt_train.config import cluster
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import (
    batches,
    benchmark,
    checkpointing,
    data,
    faults,
    layers,
    memory,
    optimization,
    parallelism,
    precision,
    reporting,
    routing,
    schedule_file,
    skipping,
)
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.model import architecture
from lt_train.config.settings.parallelism import Parallelism
from lt_train.process import device


@dataclasses.dataclass(frozen=True)
class Draft:
    """The resolved parts of a configuration, and an error for each part that failed, so that all mistakes show at once.

    `placeholders` names the parts that stand for settings that failed to resolve, so that later checks still run.
    """

    parts: Mapping[str, Any]
    placeholders: frozenset[str] = frozenset()
    failures: tuple[ToolError, ...] = ()

    @property
    def config(self) -> RunConfig | None:
        return None if self.failures else RunConfig(**self.parts)


def assemble(
    options: dict[str, Any],
    datasets: tuple[Dataset, ...],
    planned: cluster.Cluster | None = None,
    world_size: int | None = None,
) -> RunConfig:
    """Resolve the configuration without comparing its parts; `planned` is a GPU cluster elsewhere.

    `world_size` is by default the number of ranks that the launcher has started, or that lt-train starts. Raises UsageError or
    BadConfig for the first part that fails to resolve.
    """
    resolved = draft(options, datasets, planned, world_size)
    for failure in resolved.failures:
        raise failure
    return RunConfig(**resolved.parts)


def draft(
    options: dict[str, Any],
    datasets: tuple[Dataset, ...],
    planned: cluster.Cluster | None = None,
    world_size: int | None = None,
) -> Draft:
    """Resolve every settings group; collect errors instead of raising."""
    failures: list[ToolError] = []
    placeholders: set[str] = set()
    parts: dict[str, Any] = {"seed": options["seed"]}

    def resolve_part(name: str, resolve: Callable[..., Any], *required: str) -> None:
        if all(part in parts for part in required):
            try:
                parts[name] = resolve(*(parts[part] for part in required))
            except ToolError as problem:
                if name not in placeholders:
                    failures.append(problem)

    def resolve_placeholder(name: str, resolve: Callable[..., Any], *required: str) -> None:
        if name not in parts and failures:
            placeholders.add(name)
            resolve_part(name, resolve, *required)

    def parallel(architecture: Architecture) -> Parallelism:
        device_type = device.CUDA if planned else device.resolve_device(options["device"])
        return parallelism.resolve_parallelism(options, architecture, device_type, planned.ranks if planned else world_size)

    def sizes(architecture: Architecture, layout: Parallelism) -> Batches:
        resolved = batches.resolve_batches(options, architecture, layout)
        schedule: Schedule | None = parts.get("schedule")
        return schedule.length(resolved) if schedule else resolved

    resolve_part("architecture", lambda: architecture.resolve_architecture(options, datasets))
    if failures:
        resolve_placeholder(
            "architecture", lambda: architecture.divisible_by(_product(options), options["expert_model_parallel_size"])
        )
        if options["seq_length"] is None:
            # A placeholder length that every size divides. A run length in tokens has no meaning with it.
            placeholders |= {"batches"} if options["train_tokens"] else set()
            options = options | {"seq_length": _product(options), "train_tokens": None}
        options = options | parallelism.WITHOUT_VIRTUAL_STAGES | parallelism.EVEN
    if "architecture" not in placeholders:
        resolve_part("schedule", lambda model: schedule_file.resolve_schedule(options, datasets, model), "architecture")
    if parts.get("schedule"):
        parts["architecture"] = parts["schedule"].phases[0].architecture
    resolve_part("parallelism", parallel, "architecture")
    for replacement in (parallelism.WITHOUT_VIRTUAL_STAGES, {"ranks": None, "profile_ranks": "0"}):
        if "parallelism" not in parts:
            options = options | replacement
            resolve_placeholder("parallelism", parallel, "architecture")
    resolve_part("layers", lambda layout: layers.resolve_layers(options, layout.device), "parallelism")
    resolve_part("routing", lambda: routing.resolve_routing(options))
    resolve_part("batches", sizes, "architecture", "parallelism")
    if "batches" in parts and "batches" not in placeholders:
        resolve_part("optimization", partial(optimization.resolve_optimization, options), "batches", "architecture")
    options = options | batches.WITHOUT_LENGTH
    resolve_placeholder("batches", sizes, "architecture", "parallelism")
    resolve_part("precision", lambda: precision.resolve_precision(options))
    resolve_part("memory", lambda *resolved: memory.resolve_memory(options, *resolved), "batches", "parallelism", "precision")
    if "architecture" in placeholders:
        for name, subject in (("memory", memory), ("layers", layers)):
            if name in parts:
                parts[name] = subject.without_model_sizes(parts[name])
    resolve_part("data", lambda: data.resolve_data(options, datasets))
    resolve_part("skipping", lambda: skipping.resolve_skipping(options))
    resolve_part("checkpointing", lambda: checkpointing.resolve_checkpointing(options))
    resolve_part("faults", lambda: faults.resolve_faults(options))
    resolve_part("reporting", lambda layout: reporting.resolve_reporting(options, layout), "parallelism")
    resolve_part("benchmark", lambda: benchmark.resolve_benchmark(options))
    return Draft(parts, frozenset(placeholders), tuple(failures))


def _product(options: dict[str, Any]) -> int:
    """Return a size that every requested parallel size divides."""
    ranks = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    names = (*ranks, "recompute_num_layers")
    return 1024 * math.prod(int(options[name] or 1) for name in names)
