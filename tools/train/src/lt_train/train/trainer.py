"""The training loop of one rank: megatron-core's schedules do the forward and backward passes, this file puts them together.

Every rank builds its share of the model, reads its own samples, and runs the same steps. Rank 0 reports and publishes
checkpoints.
"""

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from lt_shared import run_log
from lt_shared.console import BadConfig, ExitCode, TryAgain
from lt_shared.run_log import CheckpointLoaded, Evaluation, Step
from lt_shared.sample_order.log_notes import PhaseBegins, Skipped
from lt_shared.sample_order.samples import Samples
from lt_train.checkpoint import starting_point, training_state
from lt_train.checkpoint.local.copies import LocalCopies
from lt_train.checkpoint.local.local_saver import LocalSaver
from lt_train.checkpoint.local.unused import UnusedCopies
from lt_train.checkpoint.saver import Saver
from lt_train.checkpoint.training_state import TrainingState, Unlogged
from lt_train.config import megatron_arguments, optional_packages
from lt_train.config.kernels import Kernels
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.model.description import describe
from lt_train.data import loader, order_record
from lt_train.data.arrivals import Arrival, Arrivals
from lt_train.data.loader import Batch
from lt_train.metrics.log import Log
from lt_train.metrics.profiling import Profiler
from lt_train.metrics.step_timer import Clock
from lt_train.metrics.throughput import Speedometer
from lt_train.models import build_gpt
from lt_train.optim import optimizer
from lt_train.parallel import ddp
from lt_train.runtime import agreement, device
from lt_train.runtime.failure_watch import FailureWatch
from lt_train.runtime.rank_environment import RankEnvironment
from lt_train.runtime.restart_policy import NEXT_PHASE
from lt_train.runtime.signals import Limits, Reason
from lt_train.runtime.start_clock import clock
from lt_train.runtime.watchdog import Watchdog
from lt_train.train import process_groups, timers
from lt_train.train.anomalies import Anomalies
from lt_train.train.bench import Measurement
from lt_train.train.crash_loop import Attempt
from lt_train.train.kernel_trials import Trials
from lt_train.train.replay import Comparison
from lt_train.train.train_step import Stepper, StepResult
from lt_train.train.waiting import Waiting


def train(config: RunConfig, rank_environment: RankEnvironment, where: torch.device) -> int:
    """Run `config` as the rank of `rank_environment`: TRY_AGAIN when it was ended before its last iteration, and saved, or
    NEXT_PHASE.

    Manifest lines of checkpoints go to stdout of rank 0.
    """
    trials = Trials(config, where)
    process_groups.form(config, rank_environment, where)
    clock.lap("process groups")
    with FailureWatch():
        return _train(config, rank_environment, where, trials)


def _train(config: RunConfig, rank_environment: RankEnvironment, where: torch.device, trials: Trials) -> int:
    is_first = rank_environment.rank == 0
    # Nodes may see a shared filesystem at different moments.
    start, continues = agreement.from_first_rank([config.checkpointing.start, config.checkpointing.continues])
    if start is not None:
        config = config.starting_at(start, continues)
    copies = LocalCopies(config, where) if config.checkpointing.save_local else None
    unused = None if copies else UnusedCopies(config)
    if copies:
        config = starting_point.fetched(copies.starting(config), ranks_decide=False)
        start = config.checkpointing.start
    chosen = trials.chosen(is_first)
    model_parallel_cuda_manual_seed(config.seed)
    versions = optional_packages.versions()
    with _log(config, is_first, where, chosen, versions) as log, contextlib.ExitStack() as at_end:
        arguments = megatron_arguments.of(config)
        log.arguments(arguments)
        for line in describe(config.architecture):
            log.line(line, brief=())
        log.line(f"  kernels: {chosen}")
        log.line("  versions: " + ", ".join(f"{package} {version}" for package, version in versions.items()), ())
        chunks = build_gpt.build(config, chosen, where)
        at_end.callback(ddp.release, chunks)
        clock.lap("model")
        state = TrainingState(chunks, *optimizer.build(config, chosen, chunks))
        clock.lap("optimizer")
        if start is not None:
            watchdog = Watchdog(config.faults.timeout_seconds, rank_environment, config.checkpointing.directory)
            with watchdog, watchdog.slow():
                training_state.load(Path(start), config, state, copies.supplied() if copies else None)
                log.line(CheckpointLoaded(state.iteration, str(Path(start).parent), _now()).format())
                torch.distributed.barrier()
            starting_point.forget(config)
        if copies:
            copies.forget_others()
        elif unused:
            unused.delete()
        optimizer.create_state(state.optimizer)
        clock.lap("loading")
        loop = Loop(config, chosen, state, log, where, rank_environment, copies)
        loop.after_first_step = trials.confirm
        if is_first and config.checkpointing.directory:
            order_record.write(config, state.consumed_samples, state.iteration, loop.saver.datasets)
        log.begin(state.iteration, arguments)
        clock.lap("data")
        with Profiler(config.reporting.profile, rank_environment.rank, where, state.iteration) as profiler:
            stopped = loop.run(profiler)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if isinstance(log, Comparison):
        return log.code()
    return NEXT_PHASE if stopped == Reason.PHASE else ExitCode.TRY_AGAIN if stopped else ExitCode.OK


def _log(config: RunConfig, is_first: bool, where: torch.device, chosen: Kernels, versions: dict[str, str]) -> Log:
    if config.benchmark:
        return Measurement(config, is_first, device.name(where), chosen, versions)
    return Comparison(config, is_first) if config.replay else Log(config, is_first)


def _now() -> datetime.datetime:
    return datetime.datetime.now()


class Loop:
    """The steps from a state's iteration to the run's last."""

    def __init__(
        self,
        config: RunConfig,
        chosen: Kernels,
        state: TrainingState,
        log: Log,
        where: torch.device,
        rank_environment: RankEnvironment,
        copies: LocalCopies | None,
    ):
        self.config = config
        self.state = state
        self.log = log
        self.where = where
        self.stepper = Stepper(config, state, where)
        settings = config.checkpointing
        self.limits = Limits(state.iteration, settings.exit_interval, settings.exit_duration_minutes)
        self.data = loader.build(config, state.consumed_samples, state.iteration)
        self.sources = config.data.names
        if config.replay:
            self.data = dataclasses.replace(self.data, validation={}, test=None)
        self.arrivals = Arrivals(config, self.data.training, self.data.streams, rank_environment.rank)
        self.saver = Saver(config, chosen, state, where, log, self.arrivals)
        self.copies = copies
        self.local_saver = LocalSaver(self.saver, copies) if copies else None
        self.stepper.before_update = self.saver.hold_back_update
        self.stepper.check.tell = log.failure
        self.after_first_step: Callable[[], None] = lambda: None
        self.speedometer = Speedometer(config, device.name(where))
        self.clock = Clock()
        self.timers = timers.attach(config, state)
        self.logged_samples = state.consumed_samples
        self.saved = state.iteration
        self.loss: float | None = None
        self.arrival: int = Arrival.WAITING
        self.last_step = config.schedule.end_of_form(config.batches, state.iteration)
        self.anomalies = Anomalies(config.optimization.max_nan_steps)
        self.watchdog = Watchdog(config.faults.timeout_seconds, rank_environment, settings.directory)
        keeps_attempts = rank_environment.rank == 0 and settings.directory is not None
        self.attempt = Attempt(Path(str(settings.directory)), config, state.iteration) if keeps_attempts else None

    def run(self, profiler: Profiler) -> Reason:
        """Train to the last step, or to the first after which the run has a reason to end."""
        config, state, clock = self.config, self.state, self.clock
        stop = Reason(agreement.largest(Limits.received(), self.where))
        assert self.data.training
        ready = self.arrivals.is_ready
        planned = loader.training(self.data.training, config, self.where, state.consumed_samples, state.iteration, ready)
        batches = clock.reading(planned)
        self.waiting = Waiting(self.arrivals, self.limits, self.log, self.watchdog, self.where)
        clock.start()
        with self.saver, self.local_saver or contextlib.nullcontext(), self.watchdog:
            stop = self._steps(batches, profiler, stop)
        if self.copies and not stop:
            self.copies.delete()
        if self.attempt:
            self.attempt.end(state.iteration)
        if stop == Reason.NO_DATA and self.arrivals.failure:
            hint = "the same pipe continues both: what is trained and what is tokenized is kept"
            raise self.arrivals.problem or TryAgain(self.arrivals.failure, hint)
        if stop:
            is_saved = config.checkpointing.save and not config.checkpointing.no_save_optim
            then = "the same command continues" if is_saved else "nothing is saved to continue from"
            self.log.line(run_log.format_ended(state.iteration, stop.text, then, _now()))
        else:
            self.log.end()
        return stop

    def _steps(self, batches: Iterator[Batch], profiler: Profiler, stop: Reason) -> Reason:
        while self.state.iteration < self.last_step and not stop:
            if stop := self._await_data():
                self._save_before_end()
                return stop
            self._announce_phase()
            with self.clock.step():
                result = self.stepper.train(batches, partial(self._own, self.state.iteration + 1))
            with self.clock.pause():
                profiler.step()
            self._note_progress(result)
            stop = self._reason_to_end(result)
            if self._is_last or self.state.iteration % self.config.reporting.log_interval == 0:
                self._report(result)
            with self.clock.pause():
                self._evaluate_when_due()
                self._save_when_due(result, bool(self._is_last or stop))
        return stop

    @property
    def _is_last(self) -> bool:
        return self.state.iteration == self.config.batches.train_iters

    def _await_data(self) -> Reason:
        """Wait for the samples of the next step where not all ranks have them; returns why the run ends instead."""
        end = self.state.consumed_samples + self.config.batches.size_at(self.state.consumed_samples)
        if self.arrival != Arrival.READY:
            with self.clock.waiting():
                stop = self.waiting.wait(self.state.iteration, end)
            if stop:
                return stop
        for line in self.arrivals.new_epochs(end):
            self.log.line(line)
        return Reason.NONE

    def _note_progress(self, result: StepResult) -> None:
        """All that is told of each step."""
        state = self.state
        self.watchdog.beat(state.iteration)
        if started := clock.end(state.iteration):
            self.after_first_step()
            self.log.started(started)
        if self.attempt:
            self.attempt.reached(state.iteration)
            if recovery := self.attempt.recovered(state.iteration):
                self.log.recovery(recovery)
        self.log.advance()
        state.unlogged.add(result.loss, result.updated, result.source_sums)
        if result.left_out:
            self._report_skipped(result)
        if result.sample_losses is not None:
            self.log.sample_losses(state.iteration, state.consumed_samples - result.samples, result.sample_losses)
        try:
            spike = self.anomalies.observe(state.iteration, result)
        except BadConfig:
            self._report(result)
            raise
        if spike:
            self.log.line(spike)

    def _reason_to_end(self, result: StepResult) -> Reason:
        """What the ranks have agreed on with the step."""
        reason, _, _, self.arrival = result.largest
        if self._is_last:
            return Reason.NONE
        return Reason(max(reason, Reason.PHASE if self.state.iteration == self.last_step else Reason.NONE))

    def _evaluate_when_due(self) -> None:
        if self._is_last or self.state.iteration % self.config.data.eval_interval == 0:
            for number, (name, samples) in enumerate(self.data.validation.items()):
                self._evaluate("validation", samples, name, number == 0)
        if self.data.test and self._is_last:
            self._evaluate("test", self.data.test)

    def _save_when_due(self, result: StepResult, is_final: bool) -> None:
        self.loss = result.loss
        self.saver.poll(result.loss, self.watchdog.slow)
        if is_final or self.state.iteration % self.config.checkpointing.save_interval == 0:
            with self.watchdog.slow():
                device.release(self.where)
                self.saver.save(result.loss, is_final=is_final)
            self.saved = self.state.iteration
        elif self.local_saver:
            self.local_saver.after_step(result.loss, self.watchdog.slow)

    def _save_before_end(self) -> None:
        """Of a run that ends while it waits: the steps since the last checkpoint."""
        if self.state.iteration != self.saved:
            self.saver.save(self.loss, is_final=True)

    def _own(self, iteration: int) -> list[int]:
        """What this rank says after `iteration` steps: why it would end, the most memory it needed, and reserved, and whether the
        next step's data is there."""
        needed, reserved = device.peak_memory(self.where)
        return [self.limits.reached(iteration), needed, reserved or 0, self._arrival_after_step()]

    def _arrival_after_step(self) -> Arrival:
        """For the step after the one that is under way."""
        sizes, consumed = self.config.batches, self.state.consumed_samples
        consumed += sizes.size_at(consumed)
        return self.arrivals.of(consumed + sizes.size_at(consumed))

    def _announce_phase(self) -> None:
        """Say that a phase begins."""
        schedule, done = self.config.schedule, self.state.iteration
        phase = schedule.begins(self.config.batches, done)
        if phase is not None:
            weights = {name: weight for name, weight in zip(self.sources, phase.weights, strict=True) if weight}
            size = self.config.batches.size_at(self.state.consumed_samples) if self.config.batches.phase_sizes else None
            self.log.phase(PhaseBegins(done + 1, phase.name, phase.seq_length, weights, size))

    def _report_skipped(self, result: StepResult) -> None:
        self.log.skipped(Skipped(self.state.iteration, result.left_out, result.samples))
        if result.loss is None:
            # No tokens per second of samples that were passed over.
            self.logged_samples += result.samples

    def _report(self, result: StepResult) -> None:
        """A log line about the steps since the last one; all ranks call it."""
        config, state = self.config, self.state
        lap = self.clock.lap()
        # The ranks were asked before the optimizer's step.
        needed, reserved = device.peak_memory(self.where)
        speed = self.speedometer.speed(state.consumed_samples - self.logged_samples, lap.step_seconds * lap.steps)
        step = Step(
            step=state.iteration,
            total_steps=config.batches.train_iters,
            consumed_samples=state.consumed_samples,
            step_seconds=lap.step_seconds,
            tflops_per_gpu=speed.tflops_per_gpu,
            learning_rate=state.optimizer.param_groups[0]["lr"],
            global_batch_size=result.samples,
            loss=state.unlogged.mean_loss,
            loss_scale=result.loss_scale,
            grad_norm=result.grad_norm,
            skipped_steps=state.unlogged.skipped_steps,
            nan_steps=state.unlogged.nan_steps,
            time=_now(),
            tokens_per_second_per_gpu=speed.tokens_per_second_per_gpu,
            mfu=speed.mfu,
            memory_bytes=max(result.largest[1], needed),
            reserved_memory_bytes=max(result.largest[2], reserved or 0) or None,
            prediction_loss=result.prediction_loss,
            source_losses=self._source_losses(),
        )
        self.log.step(step, speed.tokens_per_second, lap)
        if self.timers:
            for line in timers.report(self.timers, lap.steps):
                self.log.line(line)
        state.unlogged, self.logged_samples = Unlogged(), state.consumed_samples

    def _source_losses(self) -> dict[str, float]:
        """Of the datasets that had a token since the last line, by their names."""
        found = zip(self.sources, self.state.unlogged.source_losses, strict=False)
        return {name: loss for name, loss in found if loss is not None and math.isfinite(loss)}

    def _evaluate(self, split: str, samples: Samples, name: str = "", is_first: bool = True) -> None:
        """Over the same `eval_iters` global batches each time, so that evaluations can be compared."""
        batches = loader.evaluating(samples, self.config, self.where)
        with self.watchdog.slow():
            loss = self.stepper.evaluate(batches, self.config.data.eval_iters)
        self.log.evaluation(Evaluation(self.state.iteration, loss, split, name or None, is_first))
