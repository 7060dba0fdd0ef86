"""Read the benchmark scores of checkpoints, a directory for each run."""

from collections.abc import Sequence

from lt_monitor.events.steps import Steps
from lt_monitor.logs import harness_results
from lt_monitor.runs.attempts import Run
from lt_shared.console import UsageError


def attach(runs: Sequence[Run], directories: Sequence[str]) -> None:
    """Give each run the scores in its directory; without directories no run has any.

    Raises UsageError unless there is a directory for each run, and as `harness_results.read`.
    """
    if directories and len(directories) != len(runs):
        names = ", ".join(run.name for run in runs)
        raise UsageError(
            f"--evals: {len(directories)} for {len(runs)} runs: {names}", "give one for each run, in the order of the logs"
        )
    for run, directory in zip(runs, directories, strict=False):
        results = harness_results.read(directory)
        run.scores = Steps.from_records([{"step": result.step, "metrics": result.scores} for result in results])
        run.main_scores = tuple(dict.fromkeys(name for result in results for name in result.main))


def newest(run: Run) -> dict[str, dict[str, float]]:
    """The newest value of every main score, with its step."""
    latest: dict[str, dict[str, float]] = {}
    for name in run.main_scores:
        steps, values = run.scores.finite(name)
        if len(steps):
            latest[name] = {"step": int(steps[-1]), "value": float(values[-1])}
    return latest
