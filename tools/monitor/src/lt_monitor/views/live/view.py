"""Values to show for a run and for a node's GPUs, computed once when the logs are read."""

import dataclasses
import functools
from collections.abc import Iterable

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.runs import metrics
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import Series, finite, sparkline
from lt_monitor.runs.metrics import METRICS, Metric
from lt_monitor.runs.silence import Silence
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_monitor.runs.summary import Summary, summarize

# Clocks are lowered for these; for the others, such as an idle GPU, that is as it should be.
SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclasses.dataclass(frozen=True)
class View:
    """One run. `lines` caches drawn curves: a screen is drawn every second, and a long curve takes 0.1 s."""

    name: str
    summary: Summary
    run: Run
    run_facts: RunFacts
    silence: Silence
    lines: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, run: Run, name: str, run_facts: RunFacts) -> "View":
        silence = Silence.of(run)
        return cls(printable(name), summarize(run, run_facts, silence.updated), run, run_facts, silence)

    def at(self, now: float) -> "View":
        """The view as time goes by without a new line."""
        return dataclasses.replace(self, summary=self.summary.without_time_left()) if self.silence.is_too_long(now) else self

    def spark(self, metric: str, width: int) -> str:
        """The loss or the speed (`rate`) as a line of `width` characters; `-` when it is not known."""
        if (metric, width) not in self.lines:
            steps = self.run.steps
            curve = finite(steps.numbers, steps.column("loss")) if metric == "loss" else self._rate()
            numbers = curve[0]
            wide = max(1, min(width, len(numbers)))
            self.lines[metric, width] = sparkline(curve, int(numbers[0]), int(numbers[-1]), wide) if len(numbers) else "-"
        return self.lines[metric, width]

    def _rate(self) -> Series:
        _, (rate,) = metrics.speed_curves([self.run.steps], [Sizes.of(self.run.arguments, self.run_facts)])
        return rate

    @functools.cached_property
    def curves(self) -> list[tuple[Metric, Series]]:
        """The curve of every known metric that the run has."""
        sizes = Sizes.of(self.run.arguments, self.run_facts)
        metric_curves = [(metric, metric.curve(self.run.steps, sizes)) for metric in METRICS]
        return [(metric, curve) for metric, curve in metric_curves if len(curve[0])]


@dataclasses.dataclass(frozen=True)
class Node:
    """The GPUs of a machine, each by its last sample."""

    name: str
    gpus: list[Record]

    @property
    def sampled(self) -> float | None:
        """When its oldest sample was taken, seconds since 1970."""
        times = [epoch_seconds(gpu.get("time")) for gpu in self.gpus]
        return min((time for time in times if time == time), default=None)

    def values(self, field: str) -> list[float]:
        return [float(gpu[field]) for gpu in self.gpus if gpu.get(field) is not None]

    @property
    def slowdowns(self) -> int:
        """How many GPUs are slowed down by heat or power."""
        return sum(any(limit in SLOWDOWNS for limit in gpu.get("clock_limits") or ()) for gpu in self.gpus)


def nodes_of(samples: Iterable[Record]) -> list[Node]:
    """Reduce records of kind gpu, in order of time, to the last record per GPU."""
    latest: dict[tuple[str, str], Record] = {}
    for sample in samples:
        latest[str(sample["node"]), str(sample.get("uuid", sample.get("gpu")))] = sample
    by_node: dict[str, list[Record]] = {}
    for (node, _), sample in latest.items():
        by_node.setdefault(node, []).append(sample)
    return [Node(printable(name), gpus) for name, gpus in sorted(by_node.items())]
