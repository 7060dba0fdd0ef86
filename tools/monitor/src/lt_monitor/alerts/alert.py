"""`lt-monitor alert`: report each problem of the runs in the logs once.

A pass takes new records, evaluates the rules, prints the findings that are not in the state file, delivers them, and writes the
state last. If a pass is killed before it writes the state, the next pass repeats its findings; none is lost. Two passes with one
state exclude each other (exit code 75).
"""

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from lt_monitor.alerts import delivery, rules, thresholds
from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.collect.command_state import CommandState
from lt_monitor.events.alert_findings import Finding, duration, worst
from lt_monitor.events.records import Record
from lt_monitor.logs import log_files
from lt_monitor.runs.rank_faults import faults_after_step
from lt_monitor.runs.run_state import RunState, seconds_of
from lt_monitor.runs.state_lookup import state_for
from lt_shared import console
from lt_shared.console import BadData, ExitCode, IoFailure, warn
from lt_shared.contracts import checkpoint_layout

# Not 2, which a wrong command line has.
EXIT_CODES = {"info": ExitCode.OK, "warning": ExitCode.FOUND, "critical": ExitCode.CRITICAL}
MAXIMUM_UNDELIVERED = 1000
CAUSE_ORDER = {"root": 0, "unknown": 1, None: 2, "cascade": 3}


@dataclasses.dataclass(frozen=True)
class Channels:
    """Where findings go besides stdout: a command, a webhook."""

    command: str | None = None
    webhook: str | None = None


def alert(
    patterns: Sequence[str],
    rules_file: str = thresholds.DEFAULT,
    state_file: str | None = None,
    channels: Channels = Channels(),
    heartbeat: str | None = None,
    as_json: bool = False,
    now: float | None = None,
) -> int:
    """One pass; returns the exit code: 0 when nothing is wrong, 1 with a warning, 3 with something critical.

    Raises what `CommandState.open` does, BadConfig for a bad rules file, UsageError for a bad webhook.
    """
    limits = thresholds.read(rules_file)
    if channels.webhook:
        delivery.check_webhook(channels.webhook)
    moment = time.time() if now is None else now
    with CommandState.open(state_file, "alert", patterns) as state:
        alert_pass = AlertPass(state.runs, limits, moment)
        state.feed(alert_pass.take)
        findings = [*alert_pass.findings(), *_blind(state, limits, moment)]
        active = {_identity(finding) for finding in findings}
        new = [finding for finding in findings if _identity(finding) not in state.known]
        _print(new, as_json)
        state.known = {identity: state.known.get(identity, moment) for identity in _remembered(state, active)}
        undelivered = _deliver([*state.undelivered, *(_pending(finding, channels) for finding in new)], channels)
        state.undelivered = undelivered
        state.save()
    severity = worst(finding.severity for finding in findings)
    if heartbeat:
        delivery.beat(heartbeat, moment, severity)
    return max(int(EXIT_CODES[severity]), int(bool(undelivered)))


class AlertPass:
    """One pass over records: takes them into `runs` and collects the findings, each once."""

    def __init__(self, runs: dict[str, RunState], limits: Thresholds, now: float):
        self._runs = runs
        self._limits = limits
        self._now = now
        self._found: dict[tuple[str, str], Finding] = {}
        for state in runs.values():
            if state.attempt.last_step is None and not state.arguments:
                # Faults in a log without training, such as a system log, were reported in the pass that read them.
                state.faults = []

    def take(self, record: Record) -> None:
        state = state_for(self._runs, record)
        if state.faults and record["kind"] in ("step", "start", "load") and self._ends_episode(state, record):
            self._add(rules.failures(state))
        if state.take(record, self._now):
            # An episode is reported by its first record, a failure with all that followed it.
            self._add(rules.on_record(state, record, self._limits), newer=False)

    def _ends_episode(self, state: RunState, record: Record) -> bool:
        if record["kind"] != "step":
            return True
        after = faults_after_step(state.faults, record, seconds_of(record.get("time")), self._now)
        return len(after) < len(state.faults)

    def findings(self) -> list[Finding]:
        """All findings of this pass, by run, causes before what follows from them."""
        snapshot = observe(self._runs.values(), self._now)
        for state in self._runs.values():
            self._add(rules.on_pass(state, snapshot, self._limits))
        return sorted(self._found.values(), key=lambda one: (one.run, CAUSE_ORDER.get(one.fields.get("cause"), 2)))

    def _add(self, findings: Iterable[Finding], newer: bool = True) -> None:
        for finding in findings:
            identity = (finding.run, finding.key)
            if self._limits.is_enabled(finding.rule) and (newer or identity not in self._found):
                severity = self._limits.severity(finding.rule, finding.severity)
                self._found[identity] = dataclasses.replace(finding, severity=severity)


def observe(states: Iterable[RunState], now: float) -> rules.Snapshot:
    """Collect the facts about the file system that the rules need."""
    modified: dict[str, float] = {}
    damaged: dict[str, rules.Damage] = {}
    for state in states:
        for file in state.logs:
            try:
                modified[file] = min(Path(file).stat().st_mtime, now)
            except (OSError, ValueError):
                continue
        damage = checkpoint_damage(state)
        if damage:
            damaged[state.run] = damage
    return rules.Snapshot(now, modified, damaged)


def checkpoint_damage(state: RunState) -> rules.Damage | None:
    """Check on disk the newest checkpoint that the log claims. None if it is good or cannot be checked from this machine.

    Relative paths, object stores and checkpoints of finished runs are not checked; the latter may have been moved.
    """
    path = state.checkpoint.get("path")
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or state.is_over:
        return None
    directory = Path(path)
    try:
        if not directory.is_dir():
            return None if directory.is_file() else rules.Damage(f"{directory} does not exist on this machine", False)
        problem = _problem(directory, state.checkpoint["step"])
    except BadData as error:
        problem = str(error)
    except OSError as error:
        problem = f"{directory}: {(error.strerror or str(error)).lower()}"
    return rules.Damage(problem) if problem else None


def _problem(directory: Path, step: int) -> str | None:
    """`directory` is the checkpoint's directory or, in Megatron's logs, its parent directory."""
    numbered = checkpoint_layout.iteration_directory(directory, step)
    if numbered.is_dir():
        directory = numbered
    elif checkpoint_layout.read_tracker(directory) is not None or checkpoint_layout.checkpoints(directory):
        return f"{numbered} does not exist"
    if not any(directory.iterdir()):
        return f"{directory} is empty"
    return checkpoint_layout.damage(directory) if (directory / checkpoint_layout.RECORD).is_file() else None


def _blind(state: CommandState, limits: Thresholds, now: float) -> Iterable[Finding]:
    """A finding when the logs have no training events although the trainer has had time to start, nor say why."""
    if any(_says_something(run) for run in state.runs.values()) or not limits.is_enabled("blind"):
        return
    logs = [path for path in log_files.expand(state.patterns, quiet=True) if os.path.isfile(path)]
    silent = now - max((os.path.getmtime(path) for path in logs), default=now)
    if silent > limits.of("hang", "startup_seconds"):
        message = f"no training events in {len(logs)} logs, the newest of which is {duration(silent)} old"
        yield Finding("blind", limits.severity("blind", "warning"), log_files.run_name(logs[0]), "blind:no events", message)


def _says_something(run: RunState) -> bool:
    return bool(run.step_lines or run.arguments or run.fault_counts or run.end or run.validation or run.checkpoint)


def _print(findings: Iterable[Finding], as_json: bool) -> None:
    """Each line is out before the state says so. Names stdout in its errors: the state file is open at the same time."""
    try:
        for finding in findings:
            if as_json:
                console.print_json(finding.to_record())
            else:
                console.print_text(finding.line())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise IoFailure(f"standard output: {(error.strerror or str(error)).lower()}") from None


def _identity(finding: Finding) -> str:
    return f"{finding.run}\t{finding.key}"


def _remembered(state: CommandState, active: set[str]) -> set[str]:
    """The findings to keep in mind: those that hold, and earlier ones of the runs' present attempts, which may come again."""
    oldest_first = sorted(state.known, key=lambda identity: state.known[identity])
    return active | set(oldest_first[-10_000:])


def _pending(finding: Finding, channels: Channels) -> Record:
    names = [name for name in ("command", "webhook") if getattr(channels, name)]
    return {"finding": dataclasses.asdict(finding), "channels": names}


def _deliver(pending: Sequence[Record], channels: Channels) -> list[Record]:
    """Deliver the pending findings. Return the findings that remain for the next pass; warn about failures."""
    problems: dict[str, None] = {}
    remaining = []
    for one in pending:
        open_channels = [name for name in one["channels"] if getattr(channels, name)]
        # A command that hangs would hang for each of a thousand findings.
        if "command" in open_channels and channels.command and not any(delivery.KILLED in problem for problem in problems):
            problem = delivery.run_command(channels.command, Finding(**one["finding"]))
            if problem is None:
                open_channels.remove("command")
            else:
                problems[problem] = None
        remaining.append({**one, "channels": open_channels})
    for_webhook = [one for one in remaining if "webhook" in one["channels"]]
    if for_webhook and channels.webhook:
        problem = delivery.post(channels.webhook, [Finding(**one["finding"]) for one in for_webhook])
        if problem is None:
            for one in for_webhook:
                one["channels"].remove("webhook")
        else:
            problems[problem] = None
    for problem in problems:
        warn(problem)
    undelivered = [one for one in remaining if one["channels"]]
    excess = len(undelivered) - MAXIMUM_UNDELIVERED
    if excess > 0:
        warn(f"{excess} findings are given up: more than {MAXIMUM_UNDELIVERED} could not be delivered")
    return undelivered[:MAXIMUM_UNDELIVERED]
