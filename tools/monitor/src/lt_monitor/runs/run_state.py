"""The state of a run after some of its events, small enough to be kept between two runs of cron.

Everything that is printed for machines (alerts, metrics, goodput) is computed from this state, so an event has to be read once
only. The state of a run is about 10 kB, whatever its length: the recent steps, sums, the last checkpoint, the faults since the
last step, and the attempts' totals (`time_accounting`).

`attempt_boundary` decides where an attempt begins. Logs of several ranks and files are merged. A step counts once in an attempt.
"""

import dataclasses
import math
import statistics
from typing import Any, Self

from lt_monitor.events.records import CAUSES, FAULTS, SEVERITIES, Record, ends_job
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.runs.attempt_boundary import begins_attempt, guessed_resume, log_interval, start_key
from lt_monitor.runs.fault_costs import FaultCosts
from lt_monitor.runs.log_state import LogState
from lt_monitor.runs.loss_trend import FIRST_LINES, LossTrend
from lt_monitor.runs.rank_faults import add_fault, faults_after_step
from lt_monitor.runs.rank_waits import RankWaits
from lt_monitor.runs.time_accounting import AttemptTotals
from lt_shared.contracts.recovery_notes import LocalCheckpoint, Started

RECENT_STEPS = 100
RECENT_FAULTS = 100
RECENT_SAVES = 8
SAVED_STEPS = 64
MAXIMUM_ATTEMPTS = 1000
# What nobody has that many of, so that a log which makes up names cannot fill the memory: the oldest are forgotten.
MAXIMUM_LOGS = 10_000
MAXIMUM_STREAMS = 1 << 16
MAXIMUM_GPUS = 1 << 16
_MODEL_ARGUMENTS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "vocab_size"),
    *("padded_vocab_size", "num_experts", "moe_ffn_hidden_size", "moe_router_topk", "group_query_attention", "swiglu", "fp8"),
)
_ARGUMENTS = (
    *("seq_length", "global_batch_size", "world_size", "train_iters", "save", "save_interval", "log_interval"),
    "pipeline_model_parallel_size",
    *_MODEL_ARGUMENTS,
)


@dataclasses.dataclass
class RunState:
    """One run. `last` is the record of its last step, `last_at` the time in it, `seen` when it was read; `recent` are the last
    steps with the fields that rules need. `first_seen` and `attempt_seen` are when the first record of the run and of the present
    attempt were read.

    Times are seconds since 1970. `losses_missing` and `skipped_in_a_row` count step lines in a row without a loss and with a
    skipped step. `episodes` is for rules that must not report one episode at each of its steps.
    `failed_before` has the faults of the previous attempt, if it failed, and its last step.
    """

    run: str
    attempts: list[AttemptTotals] = dataclasses.field(default_factory=lambda: [AttemptTotals()])
    logs: dict[str, LogState] = dataclasses.field(default_factory=dict)
    arguments: Record = dataclasses.field(default_factory=dict)
    last: Record = dataclasses.field(default_factory=dict)
    last_at: float | None = None
    recent: list[Record] = dataclasses.field(default_factory=list)
    seen: float | None = None
    first_seen: float | None = None
    attempt_seen: float | None = None
    highest_step: int = 0
    step_lines: int = 0
    skipped_steps: int = 0
    nan_steps: int = 0
    losses_missing: int = 0
    skipped_in_a_row: int = 0
    maximum_loss: float | None = None
    validation: Record = dataclasses.field(default_factory=dict)
    checkpoint: Record = dataclasses.field(default_factory=dict)
    saving: float | None = None
    save_seconds: list[float] = dataclasses.field(default_factory=list)
    saved_steps: list[int] = dataclasses.field(default_factory=list)
    faults: list[Record] = dataclasses.field(default_factory=list)
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    end: Record = dataclasses.field(default_factory=dict)
    job: Record = dataclasses.field(default_factory=dict)
    episodes: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    best_seconds: float | None = None
    gpus: dict[str, Record] = dataclasses.field(default_factory=dict)
    costs: FaultCosts = dataclasses.field(default_factory=FaultCosts)
    loss_trend: LossTrend | None = None
    rank_waits: RankWaits | None = None
    failed_before: Record = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read: set[str] = set()
        self._loss_median: float | None = None
        self._loss_median_line = -1

    @property
    def attempt(self) -> AttemptTotals:
        return self.attempts[-1]

    @property
    def is_over(self) -> bool:
        """Whether it ended normally, or did its last step."""
        step, total = self.last.get("step"), self.last.get("total_steps") or positive(self.arguments.get("train_iters"))
        return bool(self.end) or (step is not None and total is not None and step >= total)

    @property
    def has_failed(self) -> bool:
        """Whether a critical fault followed the last step."""
        return any(fault["severity"] == "critical" for fault in self.faults)

    @property
    def has_ended(self) -> bool:
        """Whether it is over, or something that ends jobs followed the last step: a failure, a time limit, scancel."""
        return self.is_over or any(map(ends_job, self.faults))

    @property
    def last_step_time(self) -> float | None:
        """When the last step was logged, or read where the log has no times."""
        return self.seen if self.last_at is None else self.last_at

    def take(self, record: Record, now: float) -> bool:
        """Add a record of this run. False for a repetition: another rank's line, or a record that was taken before."""
        self.first_seen = now if self.first_seen is None else self.first_seen
        self.attempt_seen = now if self.attempt_seen is None else self.attempt_seen
        kind = record["kind"]
        if kind in ("gpu", "neuron"):
            if kind == "gpu":
                name = str(record.get("uuid", record.get("gpu")))
                self.gpus[name] = {key: record[key] for key in ("gpu", "uuid", "utilization", "sm_clock_hertz") if key in record}
                forget_oldest(self.gpus, MAXIMUM_GPUS)
            return True
        if kind == "job":
            self.job = _with_earlier(self.job, record) | {"seen": now}
            return True
        time = seconds_of(record.get("time"))
        at = min(time, now) if time is not None else None
        file = str(record["src"]["file"])
        log = self.logs.get(file)
        if log is None:
            log = self.logs[file] = LogState(self._attempt_at(record, at))
            forget_oldest(self.logs, MAXIMUM_LOGS)
        first = file not in self._read
        self._read.add(file)
        if log.is_repeated(record, first):
            return False
        attempts = len(self.attempts)
        self._enter(log, record)
        if len(self.attempts) > attempts:
            self.attempt_seen = now
        totals = self.attempts[log.attempt]
        current = log.attempt == len(self.attempts) - 1
        if kind == "step":
            return self._step(log, totals, current, record, at, now)
        totals.note_time(at)
        if current:
            self._other(totals, record, at, now)
        return True

    def tokens_per_second(self) -> float | None:
        """Return the rate of the last step: the logged rate, or batch size times sequence length divided by the step's time."""
        step = self.last
        if step.get("tokens_per_second") is not None:
            return float(step["tokens_per_second"])
        if step.get("tokens_per_second_per_gpu") is not None and positive(self.arguments.get("world_size")):
            return float(step["tokens_per_second_per_gpu"] * self.arguments["world_size"])
        batch = positive(step.get("global_batch_size")) or positive(self.arguments.get("global_batch_size"))
        length, seconds = positive(self.arguments.get("seq_length")), step.get("step_seconds")
        return batch * length / seconds if batch and length and seconds else None

    def median_step_seconds(self) -> float | None:
        """The median of the recent steps, of the whole attempt where there are none."""
        seconds = [step["step_seconds"] for step in self.recent if step.get("step_seconds")]
        return statistics.median(seconds) if seconds else self.attempt.median_seconds()

    def loss_median(self) -> float | None:
        """The median loss of the recent steps, at most ten lines old."""
        if not 0 <= self.step_lines - self._loss_median_line < 10:
            losses = [step["loss"] for step in self.recent[:-1] if step.get("loss") is not None]
            self._loss_median = statistics.median(losses) if losses else None
            self._loss_median_line = self.step_lines
        return self._loss_median

    def save_interval_seconds(self) -> float | None:
        """Seconds between checkpoints: the median of the measured intervals, else the interval in the arguments."""
        if self.save_seconds:
            return statistics.median(self.save_seconds)
        interval, seconds = positive(self.arguments.get("save_interval")), self.median_step_seconds()
        return interval * seconds if interval and seconds else None

    def episode(self, rule: str, step: int, gap: int) -> int:
        """The first step of the episode of `rule` that `step` belongs to; after `gap` quiet steps a new one begins."""
        begin, last = self.episodes.get(rule, [step, step])
        if step - last > gap or step < begin:
            begin = step
        self.episodes[rule] = [begin, step]
        return begin

    def to_record(self) -> Record:
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Raises TypeError, KeyError or ValueError when the record is none."""
        fields = dict(record)
        fields["attempts"] = [AttemptTotals(**entry) for entry in fields["attempts"]]
        fields["costs"] = FaultCosts(**fields.get("costs", {}))
        fields["loss_trend"] = LossTrend(**fields["loss_trend"]) if fields.get("loss_trend") else None
        fields["rank_waits"] = RankWaits(**fields["rank_waits"]) if fields.get("rank_waits") else None
        fields["logs"] = {file: LogState(**entry) for file, entry in fields["logs"].items()}
        if not fields["attempts"] or not isinstance(fields["run"], str):
            raise ValueError("a run without a name or without attempts")
        return cls(**fields)

    def _attempt_at(self, record: Record, at: float | None) -> int:
        """The attempt that a log which was not seen before begins with."""
        last = len(self.attempts) - 1
        if at is not None:
            running = [index for index, totals in enumerate(self.attempts) if totals.end is not None and totals.end >= at]
            if running:
                return running[0]
            if record["kind"] in ("start", "load") and self.attempt.first_step is not None:
                return self._open()
            return last
        if record["kind"] == "step" and self.attempt.last_step is not None and record["step"] <= self.attempt.last_step:
            return 0
        return last

    def _enter(self, log: LogState, record: Record) -> None:
        """Move the log on to its next attempt where this record begins one."""
        stream = f"{record.get('task')}/{record.get('rank')}/{record.get('node')}"
        if begins_attempt(record, stream, log.steps, log.started):
            log.steps, log.started = {}, {}
            log.attempt = log.attempt + 1 if log.attempt + 1 < len(self.attempts) else self._open()
        if record["kind"] == "step":
            log.steps[stream] = record["step"]
            forget_oldest(log.steps, MAXIMUM_STREAMS)
        elif record["kind"] == "start":
            log.started[start_key(record, stream)] = None
            forget_oldest(log.started, MAXIMUM_STREAMS)

    def _open(self) -> int:
        """Begin an attempt and forget what only concerned the one before."""
        median = self.attempt.median_seconds()
        if median is not None and sum(steps for steps, _ in self.attempt.histogram.values()) >= 20:
            self.best_seconds = min(median, self.best_seconds or median)
        step, faults = self.attempt.last_step, self.faults
        self.failed_before = {"attempt": len(self.attempts), "step": step, "faults": faults} if faults else {}
        if len(self.attempts) < MAXIMUM_ATTEMPTS:
            self.attempts.append(AttemptTotals())
        self.recent, self.faults, self.end, self.saving, self.episodes = [], [], {}, None, {}
        self.losses_missing = self.skipped_in_a_row = 0
        return len(self.attempts) - 1

    def _step(self, log: LogState, totals: AttemptTotals, current: bool, record: Record, at: float | None, now: float) -> bool:
        step = record["step"]
        totals.note_time(at)
        if not current or (totals.last_step is not None and step <= totals.last_step):
            return False
        is_first, is_second = totals.first_step is None, totals.first_step is not None and totals.interval is None
        if is_first:
            totals.is_guessed = totals.resumed_at is None
            self._guess_resume(totals, step)
        totals.take_step(step, record.get("step_seconds"), at, self._log_interval(totals))
        if is_second and totals.first_step is not None:
            # The distance of two lines is the log interval, which is also how many steps the first line covers.
            self._guess_resume(totals, totals.first_step)
            totals.correct_first_line(self._log_interval(totals))
        self.last, self.last_at = record, at
        if self.faults:
            self.faults = faults_after_step(self.faults, record, at, now)
        self.seen, self.saving, self.end = now, None, {}
        loss, seconds = record.get("loss"), record.get("step_seconds")
        self.recent.append({"step": step, "loss": loss, "step_seconds": seconds, "tokens_per_second": self.tokens_per_second()})
        del self.recent[:-RECENT_STEPS]
        self.step_lines += 1
        self.highest_step = max(self.highest_step, step)
        self.skipped_steps += record.get("skipped_steps") or 0
        self.nan_steps += record.get("nan_steps") or 0
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if record.get("skipped_steps") else 0
        self.losses_missing = 0 if loss is not None else self.losses_missing + 1
        if self.step_lines % FIRST_LINES == 0:
            self.loss_trend = self.loss_trend or LossTrend()
            self.loss_trend.take(step, [line["loss"] for line in self.recent[-FIRST_LINES:] if line["loss"] is not None])
        if loss is not None and (self.maximum_loss is None or loss > self.maximum_loss):
            self.maximum_loss = loss
        return True

    def _guess_resume(self, totals: AttemptTotals, first_step: int) -> None:
        if totals.is_guessed:
            is_first = not any(other.first_step is not None for other in self.attempts[:-1])
            totals.resumed_at = guessed_resume(first_step, self._log_interval(totals), self.saved_steps, is_first)

    def _log_interval(self, totals: AttemptTotals) -> int:
        argument = positive(self.arguments.get("log_interval"))
        return log_interval(argument, totals.interval, (other.interval for other in self.attempts[:-1]))

    def _other(self, totals: AttemptTotals, record: Record, at: float | None, now: float) -> None:
        kind = record["kind"]
        self.costs.take(record)
        if kind == "note" and record["note"] == LocalCheckpoint.NOTE:
            self._local_checkpoint(totals, record.get("fields") or {}, at)
        elif kind == "note" and record["note"] == "timers":
            self.rank_waits = self.rank_waits or RankWaits()
            self.rank_waits.take(record.get("fields") or {})
        elif kind == "note" and record["note"] == Started.NOTE:
            self._started(totals, record.get("fields") or {}, at)
        elif kind == "start":
            arguments = {key: record["arguments"].get(key) for key in _ARGUMENTS}
            self.arguments |= {key: value for key, value in arguments.items() if positive(value) or isinstance(value, str | bool)}
            if record.get("first_step") and totals.resumed_at is None:
                totals.resumed_at = record["first_step"] - 1
            self.end = {}
        elif kind == "load":
            if record.get("step") is not None and totals.first_step is None:
                totals.resumed_at = record["step"]
        elif kind == "checkpoint":
            self._checkpoint(totals, record, at, now)
        elif kind == "eval":
            totals.take_pause("evaluation", record.get("seconds"), at)
            if record.get("split", "validation") == "validation":
                self.validation = {"step": record["step"], "loss": record["loss"]}
        elif kind == "end":
            self.end = {"reason": record["reason"], "at": at or now}
        elif kind == "fault":
            fault = _fault(record)
            totals.failed = totals.failed or fault["severity"] == "critical"
            fault["seen"] = now
            add_fault(self.faults, fault, RECENT_FAULTS)
            self.fault_counts[fault["fault"]] = self.fault_counts.get(fault["fault"], 0) + 1

    def _started(self, totals: AttemptTotals, fields: Record, at: float | None) -> None:
        """What came before the first line was the attempt's, too, as far as the one before had ended."""
        phases, seconds = fields.get("phases"), fields.get("seconds")
        if isinstance(phases, dict):
            was_launched = any(other.launched for other in self.attempts)
            totals.launched = "launcher" in phases or ("interpreter" in phases and not was_launched)
        if at is not None and isinstance(seconds, int | float) and 0 <= seconds < math.inf:
            ends = [other.end for other in self.attempts if other is not totals and other.end is not None]
            totals.note_time(max([at - seconds, *ends]))

    def _local_checkpoint(self, totals: AttemptTotals, fields: Record, at: float | None) -> None:
        """The run may resume from it, too."""
        waited, step = fields.get("waited_seconds"), fields.get("step")
        totals.take_pause("checkpoint", waited if isinstance(waited, int | float) else None, at)
        if isinstance(step, int):
            self.saved_steps = [*self.saved_steps[1 - SAVED_STEPS :], step]
            totals.mark(step)

    def _checkpoint(self, totals: AttemptTotals, record: Record, at: float | None, now: float) -> None:
        totals.take_pause("checkpoint", record.get("waited_seconds", record.get("seconds")), None if record.get("begun") else at)
        if record.get("begun"):
            self.saving = at if at is not None else now
            return
        self.saving = None
        if record.get("step") is not None:
            self.saved_steps = [*self.saved_steps[1 - SAVED_STEPS :], record["step"]]
        step = record.get("step", totals.last_step)
        time = at if at is not None else now
        if step is None or step == self.checkpoint.get("step"):
            return
        totals.mark(step)
        before = self.checkpoint.get("at")
        if at is not None and before is not None and self.checkpoint.get("exact") and at > before:
            self.save_seconds = [*self.save_seconds[1 - RECENT_SAVES :], at - before]
        self.checkpoint = {"step": step, "at": time, "exact": at is not None, "seen": now, "attempt": len(self.attempts)}
        if isinstance(record.get("path"), str):
            self.checkpoint["path"] = record["path"]


def _with_earlier(earlier: Record, record: Record) -> Record:
    """Add to a job's record the fields that Slurm's controller reported earlier and that Slurm's accounting lacks."""
    job = {key: value for key, value in record.items() if key not in ("v", "kind", "run", "src")}
    names = ("log", "restarts", "gpus", *(("exit_code", "signal", "reason") if earlier.get("state") == job["state"] else ()))
    inherited = {name: earlier[name] for name in names if name in earlier and earlier.get("job") == job["job"]}
    return {key: value for key, value in (inherited | job).items() if key != "exit_codes" or "exit_code" not in inherited}


def forget_oldest(entries: dict[str, Any], most: int) -> None:
    """Drop the entry that was made first when there are more than `most`."""
    if len(entries) > most:
        del entries[next(iter(entries))]


def _fault(record: Record) -> Record:
    """Reduce a fault to the state's fields. Names that the rules lack (newer version, forged log) become `other` and the like."""
    fault = {key: value for key, value in record.items() if key not in ("v", "kind", "run")}
    fault["fault"] = record["fault"] if record["fault"] in FAULTS else "other"
    fault["cause"] = record["cause"] if record["cause"] in CAUSES else "unknown"
    fault["severity"] = record["severity"] if record["severity"] in SEVERITIES else "warning"
    return fault


def seconds_of(time: object) -> float | None:
    """Convert a record's time to seconds since 1970; None if it is no time."""
    seconds = epoch_seconds(time)
    return None if math.isnan(seconds) else seconds


def positive(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 53 else None
