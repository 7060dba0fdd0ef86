"""Find every reason why a run cannot start, before any process starts and without importing torch.

A mistake found here costs a second; found after the ranks have started it costs a queue slot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from lt_shared.console import BadConfig, ToolError
from lt_shared.models.architecture import Architecture
from lt_train.config import kernels
from lt_train.config.draft import Draft
from lt_train.config.kernel_obstacles import Run
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import (
    batches,
    checkpointing,
    data,
    data_schedule,
    faults,
    layers,
    memory,
    optimization,
    parallelism,
    precision,
    reporting,
    routing,
)
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data
from lt_train.config.settings.faults import Faults
from lt_train.config.settings.layers import Layers
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision
from lt_train.process import device

Check = tuple[tuple[str, ...], Callable[..., Iterator[ToolError]]]


def problems(config: RunConfig) -> Iterator[ToolError]:
    """Yield an error for each reason why the run cannot start. Causes come before their consequences."""
    for form in config.forms:
        yield from draft_problems(Draft(vars(form)))


def draft_problems(draft: Draft) -> Iterator[ToolError]:
    """Yield the errors of `problems` for the parts of a draft that were resolved."""
    # A placeholder for the batches has no run length to check.
    parts = dict(draft.parts)
    if "batches" not in draft.placeholders and "batches" in parts:
        parts["train_iters"] = parts["batches"].train_iters
    yield from _problems(LAYOUT_CHECKS, parts)
    yield from _problems(CHECKS, parts)


def layout_problems(run: Run) -> Iterator[ToolError]:
    """Yield the errors of the parallel layout: how ranks divide the model and the batches."""
    return _problems(LAYOUT_CHECKS, {part: getattr(run, part) for part in kernels.PARTS})


def problems_here(parts: Mapping[str, Any]) -> Iterator[ToolError]:
    """Yield the errors of a run on this machine: unsupported GPUs, missing packages, directories that cannot be written."""
    if "parallelism" in parts and parts["parallelism"].device == device.CUDA:
        yield from problems_on(device.compute_capability(), parts)
    yield from missing_packages(parts)
    yield from _problems(((("reporting",), reporting.check_directories),), parts)


def problems_on(capability: tuple[int, int] | None, parts: Mapping[str, Any]) -> Iterator[ToolError]:
    """Yield the errors of a run on GPUs of this compute capability; none if `capability` is None, which means unknown."""
    if capability is None:
        return
    yield from _problems(
        (
            (("precision",), partial(precision.check_capability, capability)),
            (kernels.PARTS, lambda *parts: kernels.problems_on(_run(*parts), capability)),
        ),
        parts,
    )


def missing_packages(parts: Mapping[str, Any]) -> Iterator[ToolError]:
    yield from _problems(
        (
            (("layers", "memory", "precision"), kernels.missing_packages),
            (("optimization",), optimization.missing_packages),
            (("reporting",), reporting.missing_packages),
        ),
        parts,
    )


def _problems(checks: Iterable[Check], parts: Mapping[str, Any]) -> Iterator[ToolError]:
    for names, check in checks:
        if all(name in parts for name in names):
            yield from check(*(parts[name] for name in names))


def _check_layers(
    resolved: Layers, architecture: Architecture, parallel: Parallelism, sizes: Batches, read: Data
) -> Iterator[ToolError]:
    return layers.check(resolved, architecture, parallel, sizes.seq_length, read.reset_attention_mask)


def _check_micro_batches(parallel: Parallelism, sizes: Batches) -> Iterator[ToolError]:
    for size in sizes.sizes if parallel.data else ():
        yield from parallelism.check_micro_batches(parallel, size // (sizes.micro_batch_size * parallel.data))


def _check_precision(
    resolved: Precision, architecture: Architecture, parallel: Parallelism, sizes: Batches
) -> Iterator[ToolError]:
    return precision.check(resolved, architecture, parallel, sizes.micro_batch_size * sizes.seq_length)


def _check_copies(restarts: Faults, saving: Checkpointing) -> Iterator[ToolError]:
    """Yield BadConfig for copies in memory that no restart would read."""
    if saving.replicate_interval is not None and not restarts.max_restarts:
        yield BadConfig(
            "--replicate-interval without --max-restarts: the copies in memory end with lt-train, and nothing would read them",
            "add --max-restarts, or use --save-local, whose copies are files",
        )
    elif saving.replicate_interval is not None and restarts.min_nodes:
        yield BadConfig(
            "--replicate-interval with --min-nodes: copies in memory can be read by the same number of ranks only",
            "use --save-local, whose copies any number of ranks can read",
        )


def _run(*parts: Any) -> Any:
    """Combine the parts of a draft into the `Run` that `kernels` reads."""
    return SimpleNamespace(**dict(zip(kernels.PARTS, parts, strict=True)))


LAYOUT_CHECKS: tuple[Check, ...] = (
    (
        ("parallelism", "architecture", "batches"),
        lambda parallel, architecture, sizes: parallelism.check(parallel, architecture, sizes.seq_length),
    ),
    (("layers", "architecture", "parallelism", "batches", "data"), _check_layers),
    (("routing", "architecture"), routing.check),
    (("batches", "architecture", "parallelism"), batches.check),
    (("parallelism", "batches"), _check_micro_batches),
    (("memory", "parallelism", "architecture", "precision", "optimization"), memory.check),
    (kernels.PARTS, lambda *parts: kernels.problems(_run(*parts))),
    (("precision", "architecture", "parallelism", "batches"), _check_precision),
    (
        ("optimization", "precision", "parallelism", "architecture"),
        lambda updates, numbers, parallel, architecture: optimization.check(updates, numbers.dtype, parallel, architecture),
    ),
)
CHECKS: tuple[Check, ...] = (
    (("data", "architecture"), lambda read, architecture: data.check(read, architecture.vocab_size)),
    (("data", "schedule", "batches"), lambda read, phases, sizes: data.check_packed(read, phases, sizes.seq_length)),
    (("checkpointing",), checkpointing.check),
    (("checkpointing", "architecture"), checkpointing.check_layout),
    (
        ("optimization", "checkpointing", "data"),
        lambda updates, saving, read: optimization.check_average(updates, saving, read.validation_names),
    ),
    (("faults", "memory"), faults.check),
    (("faults", "checkpointing"), _check_copies),
    (
        ("schedule", "batches", "checkpointing"),
        lambda phases, sizes, saving: data_schedule.check(phases, sizes, bool(saving.save and not saving.no_save_optim)),
    ),
    (
        ("reporting", "parallelism", "train_iters"),
        lambda reports, parallel, train_iters: reporting.check(reports, parallel.device, train_iters),
    ),
)
