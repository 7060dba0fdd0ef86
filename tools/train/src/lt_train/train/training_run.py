"""Build a training run on a rank and train: process groups, model, optimizer, data, and the hooks around the steps.

Every rank builds its shard of the model, reads its samples, and runs the same steps. Rank 0 reports and publishes checkpoints.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from lt_shared.console import ExitCode, note
from lt_shared.contracts import run_log
from lt_shared.contracts.recovery_notes import Nodes
from lt_shared.contracts.run_log import CheckpointLoaded
from lt_train.checkpoint import starting_point, training_state
from lt_train.checkpoint.local.copies import LocalCopies
from lt_train.checkpoint.local.local_saver import LocalSaver
from lt_train.checkpoint.local.unused import UnusedCopies, resumed_iteration
from lt_train.checkpoint.memory import stored_start
from lt_train.checkpoint.saver import Saver
from lt_train.checkpoint.training_state import TrainingState
from lt_train.config import megatron_arguments, optional_packages
from lt_train.config.kernels import Kernels, delta_kernel_hint
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.model.description import describe
from lt_train.data import blended_dataset, order_record
from lt_train.data.arrivals import Arrivals
from lt_train.data.batch import Batch
from lt_train.data.blended_dataset import SampleOrder
from lt_train.data.loader import Loader
from lt_train.metrics import recorded_steps
from lt_train.metrics.log import Log
from lt_train.metrics.profiling import Profiler
from lt_train.metrics.step_timer import Clock
from lt_train.metrics.throughput import Speedometer
from lt_train.models import builder
from lt_train.optim import optimizer
from lt_train.optim.weight_average import WeightAverage
from lt_train.parallel import ddp
from lt_train.process import agreement, device
from lt_train.process.failure_watch import FailureWatch
from lt_train.process.rank_environment import RankEnvironment
from lt_train.process.restart_policy import NEXT_PHASE
from lt_train.process.signals import Limits, Reason
from lt_train.process.start_clock import clock
from lt_train.process.watchdog import Watchdog
from lt_train.train import crash_loop, process_groups
from lt_train.train.bench import Measurement
from lt_train.train.crash_loop import Attempt
from lt_train.train.forward_backward import ForwardBackward
from lt_train.train.hooks import timers
from lt_train.train.hooks.anomalies import Anomalies, AnomalyCheck
from lt_train.train.hooks.checkpoints import Checkpoints, LocalCheckpoints
from lt_train.train.hooks.evaluation import Evaluation
from lt_train.train.hooks.hook import Hook
from lt_train.train.hooks.memory_copies import MemoryCopies
from lt_train.train.hooks.phases import Phases
from lt_train.train.hooks.profile import Profile
from lt_train.train.hooks.progress import Progress
from lt_train.train.hooks.recovery import Recovery
from lt_train.train.hooks.reports import Reports
from lt_train.train.hooks.streams import Streams
from lt_train.train.kernel_trials import Trials
from lt_train.train.replay import Comparison
from lt_train.train.train_step import Stepper
from lt_train.train.trainer import Trainer


def train(config: RunConfig, rank_environment: RankEnvironment, rank_device: torch.device) -> int:
    """Run `config` as the rank of `rank_environment` and return an exit code.

    The code is TRY_AGAIN if the run was saved and ended before its last iteration, and NEXT_PHASE if ranks that lt-train starts
    next continue: in the next phase, or with more nodes. Rank 0 prints the manifest lines of checkpoints on stdout.
    """
    trials = Trials(config, rank_device)
    process_groups.create(
        config.parallelism,
        config.expert_tensor_parallel,
        config.architecture.num_query_groups,
        config.memory,
        config.faults,
        rank_environment,
        rank_device,
        config.digests(),
    )
    clock.lap("process groups")
    with FailureWatch():
        return _train(config, rank_environment, rank_device, trials)


def _train(config: RunConfig, rank_environment: RankEnvironment, rank_device: torch.device, trials: Trials) -> int:
    is_first = rank_environment.rank == 0
    # Rank 0 decides, because nodes may see changes of a shared filesystem at different times.
    start, continues = agreement.from_first_rank([config.checkpointing.start, config.checkpointing.continues])
    if start is not None:
        config = config.starting_at(start, continues)
    copies = (
        LocalCopies(config.checkpointing, config.faults.timeout_seconds, rank_device) if config.checkpointing.save_local else None
    )
    unused = None if copies else UnusedCopies(config.checkpointing)
    stored_step = stored_start.agree(config.checkpointing, rank_device)
    if copies:
        config = starting_point.fetch_start(copies.choose_start(config, stored_step), ranks_decide=False)
        start = config.checkpointing.start
    chosen = trials.choose_kernels(is_first)
    model_parallel_cuda_manual_seed(config.seed)
    versions = optional_packages.versions()
    with _log(config, is_first, rank_device, chosen, versions) as log, contextlib.ExitStack() as at_end:
        arguments = megatron_arguments.run_arguments(config)
        log.arguments(arguments)
        for line in describe(config.architecture):
            log.line(line, brief=())
        hint = delta_kernel_hint(config, device.capability_of(rank_device))
        log.line(f"  kernels: {chosen}{hint and f' ({hint})'}")
        log.line("  versions: " + ", ".join(f"{package} {version}" for package, version in versions.items()), ())
        log.line(clock.starting("building the model").format(_now()), ())
        chunks = builder.build(config, chosen, rank_device)
        at_end.callback(ddp.break_cycles, chunks)
        clock.lap("model")
        optimization, precision, train_samples = config.optimization, config.precision, config.batches.length
        state = TrainingState(chunks, *optimizer.build(optimization, precision, train_samples, chosen.adamw, chunks))
        if optimization.ema_decay is not None:
            state.average = WeightAverage(optimization.ema_decay, state.optimizer, chunks)
        clock.lap("optimizer")
        resumed = config
        if stored_step > resumed_iteration(config.checkpointing):
            stored_start.restore(stored_step, state, rank_device)
            resumed = config.continued(state.iteration, state.consumed_samples)
            log.line(CheckpointLoaded(state.iteration, stored_start.PLACE, _now()).format())
        elif start is not None:
            log.line(clock.starting(f"loading {start}").format(_now()), ())
            watchdog = Watchdog(config.faults.timeout_seconds, rank_environment, config.checkpointing.directory)
            with watchdog, watchdog.slow():
                training_state.load(Path(start), config, state, copies.fetching_missing_files() if copies else None)
                resumed = config.continued(state.iteration, state.consumed_samples)
                log.line(CheckpointLoaded(state.iteration, str(Path(start).parent), _now()).format())
                torch.distributed.barrier()
            starting_point.forget(config.checkpointing)
        if copies:
            copies.delete_other_sets()
        elif unused:
            unused.delete()
        state.create_optimizer_state()
        clock.lap("loading")
        log.line(clock.starting("preparing the data").format(_now()), ())
        run = Run(resumed, chosen, state, log, rank_device, rank_environment, copies)
        if is_first and config.checkpointing.directory:
            command, datasets, lengths = config.reporting.command, run.saver.datasets, state.ordered_samples
            order_record.write(
                config.checkpointing.directory, run.order, command, state.consumed_samples, state.iteration, lengths, datasets
            )
        log.begin(recorded_steps.Attempt(state.iteration, config, versions), config.batches, config.schedule, arguments)
        faults = config.faults
        if faults.all_nodes > 1 and (state.iteration or faults.present_nodes < faults.all_nodes):
            log.nodes(Nodes(faults.present_nodes, faults.all_nodes, state.iteration))
        clock.lap("data")
        log.line(clock.starting("computing the first step").format(_now()), ())
        with Profiler(config.reporting.profile, rank_environment.rank, rank_device, state.iteration) as profiler:
            stopped = run.train(trials.confirm, profiler)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if isinstance(log, Comparison):
        return log.code()
    if stopped in (Reason.PHASE, Reason.NODES):
        return NEXT_PHASE
    return ExitCode.TRY_AGAIN if stopped else ExitCode.OK


def _log(config: RunConfig, is_first: bool, rank_device: torch.device, chosen: Kernels, versions: dict[str, str]) -> Log:
    if config.benchmark:
        return Measurement(config, is_first, device.name(rank_device), chosen, versions)
    if config.replay:
        return Comparison(config.replay, config.checkpointing.start, config.reporting, is_first)
    return Log(config.reporting, config.checkpointing.directory, is_first)


def _now() -> datetime.datetime:
    return datetime.datetime.now()


class Run:
    """The steps of a run from the iteration of `state`, with the objects that the steps need."""

    def __init__(
        self,
        config: RunConfig,
        chosen: Kernels,
        state: TrainingState,
        log: Log,
        rank_device: torch.device,
        rank_environment: RankEnvironment,
        copies: LocalCopies | None,
    ):
        self.config = config
        self.state = state
        self.log = log
        self.device = rank_device
        self.copies = copies
        batches, parallelism, settings = config.batches, config.parallelism, config.checkpointing
        datasets = len(config.data.datasets)
        self.forward_backward = ForwardBackward(
            batches,
            parallelism,
            state.chunks,
            rank_device,
            sources=datasets if datasets > 1 else 0,
            keeps_samples=config.reporting.sample_losses,
            averages_tokens=config.averages_tokens,
        )
        self.stepper = Stepper(
            self.forward_backward, config.optimization, config.precision, config.skipping, config.faults, state
        )
        self.limits = Limits(state.iteration, settings.exit_interval, settings.exit_duration_minutes, settings.save_interval)
        self.order = SampleOrder.from_config(config)
        _order_samples(self.order, state, rank_environment.rank == 0)
        cache = blended_dataset.cache_directory(config.data, settings.directory)
        self.data = blended_dataset.build(self.order, cache, state.ordered_samples)
        vocab_size, streams = config.architecture.vocab_size, self.data.streams
        self.loader = Loader(config.data, batches, vocab_size, rank_device)
        self.arrivals = Arrivals(config.data, vocab_size, settings, self.data.training, streams, rank_environment.rank)
        self.saver = Saver(config, chosen, state, rank_device, log, self.arrivals)
        self.local_saver = LocalSaver(self.saver, copies) if copies else None
        self.copier = stored_start.copier(
            state, settings, rank_device, rank_environment.world_size // rank_environment.local_world_size
        )
        self.stepper.before_update = self._hold_back_update
        self.stepper.check.tell = log.failure
        devices, device_name = parallelism.world_size, device.name(rank_device)
        self.speedometer = Speedometer(config.architecture, batches, config.precision, devices, device_name)
        self.clock = Clock()
        self.timers = timers.attach(config.reporting, state)
        self.watchdog = Watchdog(config.faults.timeout_seconds, rank_environment, settings.directory)
        self.attempt: Attempt | None = None
        if rank_environment.rank == 0 and settings.directory is not None:
            self.attempt = Attempt(Path(settings.directory), crash_loop.fingerprint(config), state.iteration)

    def train(self, after_first_step: Callable[[], None], profiler: Profiler) -> Reason:
        """Train. Return the reason if the run ended before its last step, else NONE."""
        config, state = self.config, self.state
        last_step = config.schedule.end_of_form(config.batches, state.iteration)
        trainer = Trainer(
            state,
            self.stepper,
            self.clock.reading(self._batches(last_step)),
            self.clock,
            self.limits,
            last_step,
            config.batches.train_iters,
            self.hooks(after_first_step, profiler),
        )
        with self.saver, self.local_saver or contextlib.nullcontext(), self.copier or contextlib.nullcontext(), self.watchdog:
            stop = trainer.run(lambda number: agreement.reduce_maximum(number, self.device))
        trainer.finish(stop)
        if stop:
            is_saved = config.checkpointing.save and not config.checkpointing.no_save_optim
            next_step_hint = "the same command continues" if is_saved else "nothing is saved to continue from"
            self.log.line(run_log.format_ended(state.iteration, stop.text, next_step_hint, _now()))
        else:
            self.log.end()
        return stop

    def _hold_back_update(self) -> None:
        """Order the update after the copies of weights and optimizer state that are being made."""
        self.saver.hold_back_update()
        if self.copier:
            self.copier.hold_back()

    def _batches(self, last_step: int) -> Iterator[Batch]:
        assert self.data.training
        state, skipping, is_ready = self.state, self.config.skipping, self.arrivals.is_ready
        samples = self.data.training
        return self.loader.training(samples, skipping, state.consumed_samples, state.iteration, last_step, is_ready)

    def hooks(self, after_first_step: Callable[[], None], profiler: Profiler) -> list[Hook]:
        """Return the hooks, in the training loop's order of calls."""
        config, state, log, watchdog = self.config, self.state, self.log, self.watchdog
        steps, names = config.batches.train_iters, config.data.names
        streams = Streams(self.arrivals, config.batches, self.limits, state, log, watchdog, self.clock, self.device)
        interval = config.reporting.log_interval
        reports = Reports(state, log, self.clock, self.speedometer, self.device, names, interval, steps, self.timers)
        checkpoints = Checkpoints(self.saver, config.checkpointing.save_interval, steps, state, self.device, watchdog)
        hooks: list[Hook] = [Profile(profiler), Progress(state, log, watchdog, after_first_step)]
        if self.attempt:
            hooks.append(Recovery(state, log, self.attempt))
        hooks += [streams, Phases(config.schedule, config.batches, names, state, log)]
        hooks += [AnomalyCheck(Anomalies(config.optimization.max_nan_steps), state, log, reports), reports]
        if not config.replay:
            hooks.append(self._evaluation())
        hooks.append(checkpoints)
        if self.local_saver and self.copies:
            hooks.append(LocalCheckpoints(self.local_saver, self.copies, checkpoints, state, watchdog))
        if self.copier:
            hooks.append(MemoryCopies(self.copier, state, config.checkpointing.replicate_interval or 0, log))
        return hooks

    def _evaluation(self) -> Evaluation:
        settings, batches_of = self.config.data, self.loader.evaluating
        return Evaluation(
            *(self.data.validation, self.data.test, batches_of, settings.eval_interval, settings.eval_iters),
            *(self.config.batches.train_iters, self.state, self.forward_backward, self.log, self.watchdog),
            self._hold_back_update,
        )


def _order_samples(order: SampleOrder, state: TrainingState, is_first: bool) -> None:
    """Store the number of shuffled samples in `state`. Rank 0 says if the run has become longer and needs more epochs."""
    samples = order.training_samples(state.consumed_samples, state.iteration)
    before = state.ordered_samples if state.consumed_samples else ()
    state.ordered_samples = blended_dataset.extended_lengths(order, before, samples)
    if is_first and before and len(state.ordered_samples) > len(before):
        note(
            f"the run was {before[-1]} samples long and is {samples}: the samples of the shorter run keep their order, and"
            " further epochs come after them"
        )
