"""`lt-monitor goodput`: the share of a run's allocated time that went into productive steps, and the causes of lost time.

If a run has several logs, one for each job, they are joined as in `lt-monitor runs`. If log lines have no times, only losses
within steps are known: compilation, slow steps, and repeated work.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from lt_monitor.events.alert_findings import duration
from lt_monitor.events.escaping import printable
from lt_monitor.events.plausible_times import PlausibleTimes
from lt_monitor.logs import log_files, rank_series
from lt_monitor.runs import time_accounting
from lt_monitor.runs.fault_costs import FaultCosts
from lt_monitor.runs.run_loader import Job, checkpoint_directory, jobs_of_one_run
from lt_monitor.runs.run_state import RunState, positive
from lt_monitor.runs.state_lookup import state_for
from lt_monitor.runs.time_accounting import Account
from lt_shared.console import BadData, counted, warn

NO_TIMES = "the lines of this log have no times: only losses within steps are known"


@dataclasses.dataclass(frozen=True)
class Goodput:
    """`gpus` is the world size. `cost` (of the allocated time) and `lost_cost` (of the lost time) have the price's unit."""

    run: str
    account: Account
    gpus: int | None
    cost: float | None
    lost_cost: float | None
    costs: FaultCosts

    def to_record(self) -> dict[str, Any]:
        """One JSON object: seconds are rounded to milliseconds, causes without seconds are omitted."""
        account = self.account
        return {
            "v": 1,
            "kind": "goodput",
            "run": self.run,
            "goodput": None if account.goodput is None else round(account.goodput, 6),
            "allocated_seconds": round(account.allocated_seconds, 3),
            "productive_seconds": round(account.productive_seconds, 3),
            "lost_seconds": {cause: round(seconds, 3) for cause, seconds in account.lost_seconds.items() if seconds >= 0.001},
            "lost_steps": account.lost_steps,
            "restarts": account.restarts,
            "checkpoints": self.costs.per_checkpoint(),
            "recoveries": self.costs.recoveries,
            "recovery_seconds": self.costs.mean_recovery_seconds,
            "has_times": account.has_times,
            "gpus": self.gpus,
            "cost": self.cost,
            "lost_cost": self.lost_cost,
        }


def goodput(patterns: Sequence[str], price_per_gpu_hour: float | None = None, gpus: int | None = None) -> list[Goodput]:
    """Compute the goodput of the runs in the logs. `gpus` is used if the logs do not show the number of GPUs.

    Raises NoInput if a log is missing, BadData if no log has a training step.
    """
    runs: dict[str, RunState] = {}
    times = PlausibleTimes(time.time())
    paths = log_files.expand(patterns)
    log_files.require_text(paths)
    for path, run in rank_series.run_names(paths).items():
        for block in log_files.event_blocks(path, run):
            for record in block:
                state_for(runs, record).take(times.with_plausible_time(record), times.latest)
    times.warn()
    trained = [run for run in runs.values() if run.step_lines]
    if not trained:
        raise BadData("no training steps in the logs", "expected logs of a trainer, or the output of lt-monitor scrape")
    return [_goodput(group, price_per_gpu_hour, gpus) for group in _joined(trained)]


def _joined(runs: Sequence[RunState]) -> list[list[RunState]]:
    """Jobs with a log file each that resumed from each other's checkpoints are one run."""
    jobs = [
        Job(
            checkpoint_directory([run.arguments.get("save"), run.checkpoint.get("path")]),
            run.attempts[0].resumed_at == 0,
            run.attempts[0].begin,
        )
        for run in runs
    ]
    return [[runs[index] for index in indexes] for indexes in jobs_of_one_run(jobs)]


def _goodput(group: Sequence[RunState], price: float | None, gpus: int | None) -> Goodput:
    attempts = [attempt for run in group for attempt in run.attempts]
    if all(attempt.begin is not None for attempt in attempts):
        attempts.sort(key=lambda attempt: attempt.begin or 0.0)
    account = time_accounting.account(attempts)
    sizes = (positive(run.arguments.get("world_size")) or positive(run.job.get("gpus")) for run in group)
    gpus = gpus or next((size for size in sizes if size), None)
    cost = lost_cost = None
    if price is not None and gpus is not None:
        cost = round(account.allocated_seconds / 3600 * gpus * price, 2)
        lost_cost = round((account.allocated_seconds - account.productive_seconds) / 3600 * gpus * price, 2)
    elif price is not None:
        warn(f"{printable(group[0].run)}: the log does not show the number of GPUs; set it with --gpus")
    costs = FaultCosts.joined(run.costs for run in group)
    return Goodput(group[0].run, account, gpus, cost, lost_cost, costs)


def _cost_lines(costs: FaultCosts) -> list[str]:
    """The mean cost of a checkpoint and of a failure, in words."""
    lines = [
        f"{counted(int(mean['count']), f'{store} checkpoint')}: stall {mean['stall_seconds']:.3g} s,"
        f" complete after {mean['write_seconds']:.3g} s"
        for store, mean in costs.per_checkpoint().items()
    ]
    if costs.mean_recovery_seconds is not None:
        count = "1 recovery" if costs.recoveries == 1 else f"{costs.recoveries:,} recoveries"
        lines.append(f"{count}: {costs.mean_recovery_seconds:.3g} s each")
    return lines


def table(results: Sequence[Goodput]) -> str:
    """For people: a block for each run, its seconds by cause with their shares of the allocated time."""
    return "\n\n".join(_block(one) for one in results) + "\n"


def _block(one: Goodput) -> str:
    account = one.account
    share = "unknown" if account.goodput is None else f"{account.goodput:.1%}"
    lines = [f"{printable(one.run)}: goodput {share}"]
    lost = [(cause, seconds) for cause, seconds in account.lost_seconds.items() if seconds >= 0.5 and cause != "queue"]
    for name, seconds in [("productive", account.productive_seconds), *sorted(lost, key=lambda row: -row[1])]:
        part = f"{seconds / account.allocated_seconds:7.1%}" if account.allocated_seconds else ""
        lines.append(f"  {name:<12} {duration(seconds):>9} {part}".rstrip())
    if account.lost_seconds["queue"] >= 0.5:
        lines.append(f"  {'queue':<12} {duration(account.lost_seconds['queue']):>9}")
    lines.append(f"  {counted(account.restarts, 'restart')}, {counted(account.lost_steps, 'step')} repeated")
    lines += [f"  {line}" for line in _cost_lines(one.costs)]
    if one.cost is not None:
        lines.append(f"  cost {one.cost:,.2f} for {one.gpus} GPUs, of which {one.lost_cost:,.2f} were lost")
    if not account.has_times:
        lines.append(f"  ({NO_TIMES})")
    return "\n".join(lines)
