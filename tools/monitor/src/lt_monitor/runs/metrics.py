"""The metrics of a step: their names, and how to compute them if the log lacks them.

METRICS lists the metrics that lt-monitor can compute. Every other number in a step line is a metric, too, under its name in the
log.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_monitor.runs import speed
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import Series, finite
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_shared.console import BadData, UsageError
from lt_shared.contracts.run_log import GIB, SOURCE_LOSS

NAME_CHARACTERS = 60
# Benchmarks that are drawn without being asked for; of more, a picture would show nothing.
MAXIMUM_SCORES = 8

Values = Callable[[Steps, Sizes], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Metric:
    """`key` is the field of step records, `label` stands above a panel, `short` beside a curve. `of`: shape (points,)."""

    key: str
    title: str
    unit: str
    short: str
    label: str
    of: Values

    def curve(self, steps: Steps, sizes: Sizes) -> Series:
        return finite(steps.numbers, self.of(steps, sizes))


def _field(name: str, divisor: float = 1.0) -> Values:
    return lambda steps, sizes: steps.column(name) / divisor


LOSS = Metric("loss", "Loss", "nats per token", "loss", "loss (nats per token)", _field("loss"))
GRAD_NORM = Metric("grad_norm", "Gradient norm", "", "grad norm", "gradient norm", _field("grad_norm"))
SPEED_METRICS = (
    Metric("tokens_per_second", "Throughput", "tokens per second", "tokens/s", "tokens/s", speed.tokens_per_second),
    Metric(
        "tokens_per_second_per_gpu",
        "Throughput",
        "tokens per second and GPU",
        "tokens/s/GPU",
        "tokens/s/GPU",
        speed.tokens_per_second_per_gpu,
    ),
    Metric("step_seconds", "Step time", "seconds", "s/step", "s/step", lambda steps, sizes: speed.step_seconds(steps)),
)
METRICS = (
    LOSS,
    GRAD_NORM,
    *SPEED_METRICS,
    Metric("tflops_per_gpu", "Throughput", "TFLOP/s per GPU", "TFLOP/s", "TFLOP/s per GPU", speed.tflops_per_gpu),
    Metric("mfu", "MFU", "share of the GPU's peak", "MFU", "MFU (share of the GPU's peak)", speed.mfu),
    Metric("learning_rate", "Learning rate", "", "lr", "learning rate", _field("learning_rate")),
    Metric("memory_bytes", "Memory", "GiB", "memory", "memory (GiB)", _field("memory_bytes", GIB)),
    Metric(
        "reserved_memory_bytes",
        "Reserved memory",
        "GiB",
        "reserved",
        "reserved memory (GiB)",
        _field("reserved_memory_bytes", GIB),
    ),
)

Curves = tuple[Metric, list[Series]]


def curves_of(runs: Sequence[Run], run_facts: RunFacts, names: Sequence[str] = ()) -> list[Curves]:
    """The metrics `names` with a curve for each run; without names loss, gradient norm and speed, as far as a run has them.

    Raises: BadData when there are no names and no run has a loss; UsageError, with the names that there are, for a metric that
    no run has.
    """
    steps = [run.steps for run in runs]
    sizes = [Sizes.of(run.arguments, run_facts) for run in runs]
    if not names:
        all_curves = [_curves(LOSS, steps, sizes), _curves(GRAD_NORM, steps, sizes), speed_curves(steps, sizes)]
        main = list(dict.fromkeys(name for run in runs for name in run.main_scores))
        all_curves += [_set_curves(name, runs) for name in _other_sets(runs)[:MAXIMUM_SCORES]]
        all_curves += [_curves(_named(name, steps), steps, sizes) for name in _sources(steps)[:MAXIMUM_SCORES]]
        all_curves += [_score_curves(name, runs, sizes) for name in main[:MAXIMUM_SCORES]]
        if not _is_known(all_curves[0]):
            raise BadData("no step has a loss", "all steps were skipped or their loss was NaN")
        return [curves for curves in all_curves if _is_known(curves)]
    chosen = [_chosen(name, runs, steps, sizes) for name in names]
    for name, curves in zip(names, chosen, strict=True):
        if not _is_known(curves):
            raise UsageError(f"--metric {printable(name)}: no run has it", f"there are: {_present(steps, sizes, runs)}")
    return chosen


def _chosen(name: str, runs: Sequence[Run], steps: Sequence[Steps], sizes: Sequence[Sizes]) -> Curves:
    if score := _score(name, runs):
        return _score_curves(score, runs, sizes)
    sets = dict.fromkeys(set_name for run in runs for set_name in run.validation_sets)
    validation_set = next((set_name for set_name in sets if _spelled(_of_set(set_name)) == _spelled(name)), None)
    return _set_curves(validation_set, runs) if validation_set else _curves(_named(name, steps), steps, sizes)


def source_columns(steps: Steps) -> list[str]:
    """The columns with the losses of a blend's datasets."""
    return [name for name in steps.columns if name.startswith(SOURCE_LOSS)]


def _sources(steps: Sequence[Steps]) -> list[str]:
    return list(dict.fromkeys(name for one in steps for name in source_columns(one)))


def _of_set(name: str) -> str:
    return f"validation {name}"


def _other_sets(runs: Sequence[Run]) -> list[str]:
    """All validation sets except each run's first, which is drawn with the loss."""
    return list(dict.fromkeys(name for run in runs for name in list(run.validation_sets)[1:]))


def _set_curves(name: str, runs: Sequence[Run]) -> Curves:
    """The losses on a validation set have points where it was evaluated."""
    shown = printable(_of_set(name), NAME_CHARACTERS)
    metric = Metric(_of_set(name), f"Loss on {printable(name, NAME_CHARACTERS)}", "nats per token", shown, shown, _field("loss"))
    return metric, [_points(run.validation_sets.get(name, [])) for run in runs]


def _points(evaluations: Sequence[Record]) -> Series:
    with_loss = [event for event in evaluations if event["loss"] is not None]
    return finite(
        *(np.array([event[field] for event in with_loss], kind) for field, kind in (("step", np.int64), ("loss", np.float64)))
    )


def speed_curves(steps: Sequence[Steps], sizes: Sequence[Sizes]) -> Curves:
    """The speed of several runs in one metric: the first of SPEED_METRICS that all have, else the first that any has."""
    candidates = [_curves(metric, steps, sizes) for metric in SPEED_METRICS]
    for enough in (all, any):
        for metric, curves in candidates:
            if enough(len(numbers) for numbers, _ in curves):
                return metric, curves
    return candidates[-1]


def _curves(metric: Metric, steps: Sequence[Steps], sizes: Sequence[Sizes]) -> Curves:
    return metric, [metric.curve(one, size) for one, size in zip(steps, sizes, strict=True)]


def _score(name: str, runs: Sequence[Run]) -> str | None:
    """The name of a score, which `name` is in any spelling."""
    return next((column for run in runs for column in run.scores.columns if _spelled(column) == _spelled(name)), None)


def _score_curves(name: str, runs: Sequence[Run], sizes: Sequence[Sizes]) -> Curves:
    """A score has points where checkpoints were evaluated, which need not be steps that were logged."""
    task, shown = (printable(text, NAME_CHARACTERS) for text in (name.partition("/")[0], name))
    metric = Metric(name, shown, "", task, shown, _field(name))
    return metric, [metric.curve(run.scores, size) for run, size in zip(runs, sizes, strict=True)]


def _is_known(curves: Curves) -> bool:
    return any(len(numbers) for numbers, _ in curves[1])


def _named(name: str, steps: Sequence[Steps]) -> Metric:
    """By its key or short name in any spelling, else by the name that the log gives it."""
    for metric in METRICS:
        if _spelled(name) in (_spelled(metric.key), _spelled(metric.short)):
            return metric
    columns = dict.fromkeys(column for one in steps for column in one.columns)
    column = next((column for column in columns if _spelled(column) == _spelled(name)), name)
    column = name if name in columns else column
    shown = printable(column, NAME_CHARACTERS)
    return Metric(column, shown, "", shown, shown, _field(column))


def _spelled(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


def _present(steps: Sequence[Steps], sizes: Sequence[Sizes], runs: Sequence[Run]) -> str:
    keys = [metric.key for metric in METRICS if _is_known(_curves(metric, steps, sizes))]
    columns = [name for one in steps for name, values in one.columns.items() if np.isfinite(values).any()]
    scores = [name for run in runs for name in run.main_scores]
    sets = [_of_set(name) for run in runs for name in run.validation_sets]
    return ", ".join(printable(name, NAME_CHARACTERS) for name in dict.fromkeys(keys + columns + sets + scores))
