"""Launch a run from resolved settings: check all that needs no torch, then start the ranks or become a rank."""

import contextlib
import dataclasses
import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lt_shared import credentials
from lt_shared.console import BadConfig, CannotCreate, ExitCode, ToolError, TryAgain, Unavailable, note, warn
from lt_shared.contracts import checkpoint_layout, manifest
from lt_shared.files import local_files, ownership, storage
from lt_train.checkpoint import remote_run, resume, starting_point
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import streaming
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data, check_datasets
from lt_train.config.settings.faults import Faults
from lt_train.config.settings.reporting import Reporting
from lt_train.config.settings.streaming import Streaming
from lt_train.data import remote_datasets
from lt_train.launch import elastic_run, kept_files, rank_processes, spare_run, worker
from lt_train.launch.next_steps import note_next_steps, note_start
from lt_train.planner import memory_estimate
from lt_train.planner.stage_work import PipelineWork
from lt_train.preflight import check_runner
from lt_train.process import process_lifetime, rank_environment, restart_policy, run_files, stream_intake
from lt_train.process.launchers import presence
from lt_train.process.private_directory import private_directory
from lt_train.process.rank_environment import Node, RankEnvironment
from lt_train.process.start_clock import clock
from lt_train.train import crash_loop

LOCK_POLL_SECONDS = 0.2
NO_LOCKS = "start the job again: it goes on from SAVE"


def prepare(config: RunConfig, is_first: bool = True) -> RunConfig:
    """Check the data and the checkpoint to start from. Returns the configuration with this checkpoint.

    Only the first rank (`is_first`) checks the checkpoint's files.
    """
    check_datasets(config.data, config.architecture.vocab_size)
    config = resume.choose_start(config, is_first)
    config = resume.continue_samples(config)
    config = config.at_step(resume.steps_done(config.checkpointing))
    # Every node checks, because if only the first node ended, the others would wait for it. The check reads only: an attempt is
    # recorded when all ranks have met.
    crash_loop.check(config.checkpointing, lambda: crash_loop.fingerprint(config))
    start = config.checkpointing.start
    if start is not None:
        if not storage.is_remote(start):
            ownership.check_link(start)
            if is_first:
                starting_point.check_files(Path(start), config.checkpointing.verify)
        resume.check_compatible(config, start)
    return config


def launch(config: RunConfig, resolve: elastic_run.Resolve | None = None) -> int:
    """Run `config` to its end, or report that the run is up to date. Returns the exit code.

    `resolve` resolves the configuration on another number of nodes, for --min-nodes.
    """
    rank_env, node = rank_environment.find(), rank_environment.find_node()
    if rank_or_node := rank_env or node:
        rank_environment.check_rendezvous(rank_or_node)
    if rank_env and rank_env.is_mpi_on_one_machine:
        presence.wait_for_ranks(rank_env.rank, rank_env.world_size, rank_env.master_port, rank_env.launcher)
    _check_min_nodes(config.faults.min_nodes, rank_env, node)
    if config.faults.max_restarts and rank_env:
        raise BadConfig(
            f"--max-restarts starts the ranks of lt-train again, and {rank_env.launcher} has started this one",
            "give --max-restarts to torchrun, or put the job back into the queue (lt-train render slurm)",
        )
    is_first = not (rank_env.rank if rank_env else node.node_rank if node else 0)
    directory = _directory_of_elastic_run(config.faults, config.checkpointing, config.data.streaming)
    # Another node leads if the first one was lost and is back.
    is_first = is_first and not elastic_run.has_leader(directory)
    config = prepare(config, is_first)
    if resume.is_finished(config.checkpointing, config.batches.train_iters):
        if is_first:
            _delete_abandoned(config.checkpointing, config.data)
            _report_finished(config.checkpointing, config.reporting)
        return ExitCode.OK
    check_runner.check_at_start(config)
    data = remote_datasets.fetch(config.data, config.architecture.vocab_size)
    config = starting_point.fetch_start(dataclasses.replace(config, data=data))
    if rank_env is not None:
        clock.begin()
        clock.lap("launcher")
        os.environ.update(rank_env.variables())
    with contextlib.ExitStack() as stack:
        if is_first:
            if rank_or_node:
                note(rank_or_node.described)
            _describe(config)
            stack.enter_context(_run_directory(config.checkpointing, config.data))
        if rank_env is not None:
            return restart_policy.launcher_code(worker.start(config, rank_env))
        stack.enter_context(_forward_stream_pipes(config.data.streaming, config.checkpointing, is_first))
        if config.faults.min_nodes and node and node.nodes > 1 and resolve:
            own_run = partial(_run_directory, config.checkpointing, config.data, needs_lock=True)
            return _run_elastic(elastic_run.Nodes(node, config, resolve, prepare, own_run, directory), is_first)
        if config.faults.max_restarts and node and node.nodes > 1 and resolve:
            nodes = elastic_run.Nodes(node, config, resolve, prepare)
            open_directory = partial(_run_directory, config.checkpointing, config.data)
            return _run_with_spares(spare_run.SpareNodes(nodes, config.faults.spare_nodes, open_directory))
        return LaunchedRun(config, is_first).run()


def _check_min_nodes(min_nodes: int | None, rank_env: RankEnvironment | None, node: Node | None) -> None:
    """Raise BadConfig if another launcher has started the ranks, or if the job has fewer nodes."""
    if min_nodes and rank_env:
        raise BadConfig(
            f"--min-nodes follows lost nodes if lt-train starts the ranks, and {rank_env.launcher} has started this one",
            "start one lt-train on each node: srun --ntasks-per-node 1 lt-train ...",
        )
    nodes = node.nodes if node else 1
    if (min_nodes or 1) > nodes:
        raise BadConfig(f"--min-nodes {min_nodes}, and the job has {nodes} node(s)", f"--min-nodes {max(1, nodes - 1)}")


def _directory_of_elastic_run(faults: Faults, checkpointing: Checkpointing, streams: Streaming | None) -> Path | None:
    """Return the run's directory if all nodes see it and any node may lead an elastic run, else None.

    The lines of a pipe reach the first node only.
    """
    has_pipe = streams is not None and any(place and place.startswith(streaming.PIPE) for place in streams.lists)
    if not faults.min_nodes or checkpointing.is_remote or checkpointing.directory is None or has_pipe:
        return None
    return Path(checkpointing.directory)


def _run_with_spares(nodes: spare_run.SpareNodes) -> int:
    """Run this node's part of a run whose lost nodes and ranks are replaced. Return the exit code."""
    with rank_processes.Ranks(has_spare=True) as ranks:
        code = spare_run.run(nodes, ranks)
        is_interrupted = ranks.is_interrupted and code == ExitCode.TRY_AGAIN
    if is_interrupted and nodes.nodes.node.node_rank == 0:
        _note_command(nodes.nodes.config.reporting)
    return ExitCode.INTERRUPTED if is_interrupted else _exit_code_of_node(code)


def _run_elastic(nodes: elastic_run.Nodes, is_first: bool) -> int:
    """Run this node's part of an elastic run. Return the exit code."""
    with rank_processes.Ranks(has_spare=False) as ranks:
        code = elastic_run.run(nodes, ranks, is_first)
        is_interrupted = ranks.is_interrupted and code == ExitCode.TRY_AGAIN
    if is_interrupted and is_first:
        _note_command(nodes.config.reporting)
    return ExitCode.INTERRUPTED if is_interrupted else _exit_code_of_node(code)


@dataclasses.dataclass
class LaunchedRun:
    """A run whose ranks this process starts, one attempt after another. `config` belongs to the next attempt.

    `is_first`: this is the first of the run's nodes.
    """

    config: RunConfig
    is_first: bool

    def run(self) -> int:
        """Run this node's ranks. If they fail, run them again from the newest checkpoint, up to --max-restarts times."""
        code: int = ExitCode.OK
        with rank_processes.Ranks(has_spare=self.config.faults.max_restarts > 0) as ranks:
            for restarts_left in reversed(range(self.config.faults.max_restarts + 1)):
                try:
                    code = self._attempt(ranks)
                    while code == restart_policy.NEXT_PHASE:
                        self._go_to_next_phase()
                        code = self._attempt(ranks)
                except rank_processes.RankKilled as error:
                    if not restarts_left and not error.has_hung:
                        raise
                    warn(str(error))
                    code = error.exit_code
                if not restarts_left or not restart_policy.starts_ranks_again(code):
                    break
                self.config = starting_point.fetch_start(prepare(self.config))
                note(f"starting the ranks again, {restarts_left - 1} more time(s) after this")
            is_interrupted = ranks.is_interrupted and code == ExitCode.TRY_AGAIN
        if is_interrupted and self.is_first:
            _note_command(self.config.reporting)
        if code == ExitCode.OK and not is_interrupted and self.is_first:
            note_next_steps(self.config.checkpointing, self.config.batches.train_iters)
        # A script that repeats a run which ends with TRY_AGAIN would start it again.
        return ExitCode.INTERRUPTED if is_interrupted else _exit_code_of_node(code)

    def _attempt(self, ranks: rank_processes.Ranks) -> int:
        """As `Ranks.run`. The first node writes down a failure before the first step, too, which ranks themselves do not."""
        config = self.config
        directory = config.checkpointing.directory
        attempts_before = crash_loop.attempts(directory)
        code: int = ExitCode.OK
        try:
            code = ranks.run(config.to_json(), config.parallelism.world_size, saves=config.checkpointing.save is not None)
        except rank_processes.RankKilled as error:
            code = error.exit_code
            raise
        finally:
            if self.is_first and restart_policy.starts_ranks_again(code) and crash_loop.attempts(directory) == attempts_before:
                crash_loop.add_failed_start(config.checkpointing, crash_loop.fingerprint(config))
        return code

    def _go_to_next_phase(self) -> None:
        # Another node may not see the newest checkpoint yet. So the step follows from the schedule, and rank 0 tells the
        # checkpoint.
        reached = self.config.schedule.end_of_form(self.config.batches, resume.steps_done(self.config.checkpointing))
        self.config = starting_point.fetch_start(prepare(self.config, self.is_first).at_step(reached))


def _note_command(reporting: Reporting) -> None:
    words = map(credentials.without_tokens, reporting.command)
    note(f"interrupted; this continues the run: {shlex.join(['lt-train', *words])}")


def _exit_code_of_node(code: int) -> int:
    """Return this node's exit code. After a hang the run can resume: TRY_AGAIN, or NO_PROGRESS under srun, which ends all nodes.

    After a rank that computes wrong it is NO_PROGRESS with every launcher, because the same machine should not simply continue.
    """
    if code == process_lifetime.MISCOMPUTED:
        return ExitCode.NO_PROGRESS
    node = rank_environment.find_node()
    if code == ExitCode.NO_PROGRESS and not (node and node.launcher == "srun"):
        return ExitCode.TRY_AGAIN
    return code


def _describe(config: RunConfig) -> None:
    """Print the run's settings, and a warning if the model would be lost without --save."""
    parallel, architecture, batches = config.parallelism, config.architecture, config.batches
    note(
        f"{architecture.name}: {architecture.parameters():,} parameters, {_described_data(config.data)},"
        f" {batches.train_iters:,} steps of {batches.described} on {parallel.world_size}"
        f" {parallel.device} rank(s): {parallel.described}"
    )
    if config.schedule:
        note(f"phases: {'; '.join(config.schedule.described(batches))}")
    if config.skipping:
        note(f"skipped: {config.skipping.described(batches.train_iters, batches.train_samples)}")
    if parallel.pipeline > 1:
        note(f"pipeline: {PipelineWork.from_config(config)}")
    note(f"memory: {memory_estimate.estimate(config).fullest_rank}")
    trains = config.benchmark is None and config.replay is None and config.scoring is None
    if trains and config.checkpointing.save is None:
        warn("no --save: the trained model will be lost when the run ends")
    note_start()


def _described_data(data: Data) -> str:
    if data.streaming is None:
        return "mock data" if data.mock else f"{len(data.datasets)} dataset(s)"
    streams = sum(place is not None for place in data.streaming.lists)
    fixed = len(data.datasets) - streams
    return f"{streams} stream(s)" + (f" and {fixed} dataset(s)" if fixed else "")


def _delete_abandoned(checkpointing: Checkpointing, data: Data) -> None:
    """Delete the remains of a killed deletion, unless another run has the lock or the directory is read-only."""
    run = checkpointing.directory
    if run is not None and not checkpointing.is_remote and run_files.find_abandoned(Path(run)):
        with contextlib.suppress(ToolError), _run_directory(checkpointing, data):
            run_files.delete_abandoned(Path(run))


def _report_finished(checkpointing: Checkpointing, reporting: Reporting) -> None:
    start = str(checkpointing.start)
    record = resume.record(start)
    iteration = checkpoint_layout.iteration_of(Path(start)) or 0
    note(f"{start}: up to date, {iteration} iterations are done")
    reports = manifest.Writer(reporting.plain)
    path = start if storage.is_remote(start) else os.path.abspath(start)
    reports.write(
        manifest.Checkpoint(path, checkpoint_layout.torch_dist_format(Path(start)), iteration, record.loss if record else None)
    )
    reports.end()


@contextlib.contextmanager
def _run_directory(
    checkpointing: Checkpointing,
    data: Data,
    wait_seconds: float = 0.0,
    is_signalled: Callable[[], object] = bool,
    needs_lock: bool = False,
) -> Iterator[None]:
    """Make SAVE, lock it against a second run, and copy the tokenizer and the model's files to it.

    Wait up to `wait_seconds` for the lock, and no longer once `is_signalled`. A filesystem without locks is an error if
    `needs_lock`, else a warning.
    """
    if checkpointing.save is None or checkpointing.directory is None:
        yield
        return
    run = Path(checkpointing.directory)
    if checkpointing.is_remote:
        remote_run.prepare(run, checkpointing.save)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"{run}: {error.strerror}") from None
    lock = run_files.open_descriptor(run / ".lock", os.O_RDWR)
    try:
        try:
            _lock(lock, run, wait_seconds, is_signalled)
        except BlockingIOError:
            raise _lock_error(run, lock) from None
        except OSError:
            if needs_lock:
                raise Unavailable(
                    f"{run}: the filesystem has no locks, and another part of the run may go on", NO_LOCKS
                ) from None
            warn(f"{run}: the filesystem has no locks; make sure that no other lt-train writes there")
        os.ftruncate(lock, 0)
        _check_tracker(run / checkpoint_layout.TRACKER)
        kept_files.keep_tokenizer(data.tokenizer, run)
        kept_files.keep_model_files(checkpointing.load, run)
        if checkpointing.is_remote:
            remote_run.send_kept_files(run, checkpointing.save)
        yield
        if checkpointing.is_remote:
            remote_run.send_log(run, checkpointing.save)
    finally:
        os.close(lock)


def _lock(lock: int, run: Path, wait_seconds: float, is_signalled: Callable[[], object]) -> None:
    """Lock the open file in `run`.

    Raises BlockingIOError if another process has the lock for `wait_seconds` or until a signal, and OSError if the
    filesystem has no locks.
    """
    deadline, is_told = time.monotonic() + wait_seconds, False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline or is_signalled():
                raise
        if not is_told:
            note(f"{run}: waiting up to {wait_seconds:g} s for the lock, which another lt-train has")
            is_told = True
        time.sleep(LOCK_POLL_SECONDS)


def _lock_error(run: Path, lock: int) -> ToolError:
    """Return the error for a locked run directory.

    A killed job may hold the lock for a while, so the first refusals are TryAgain. But a job that is queued again during a long
    run would try again forever, so later refusals are BadConfig. The lock file has a byte for each refusal since the lock was
    taken.
    """
    refusals = os.fstat(lock).st_size + 1
    os.pwrite(lock, b"\n", refusals - 1)
    message, remedy = f"{run}: another lt-train is running there", "wait for it, or choose another --save"
    if refusals < crash_loop.LIMIT:
        return TryAgain(message, remedy)
    return BadConfig(f"{message}, as at the {refusals - 1} starts before", remedy)


def _check_tracker(tracker: Path) -> None:
    """Raises CannotCreate if `tracker` cannot be written, because the first checkpoint would find that out hours later."""
    descriptor = local_files.create_partial(str(tracker))
    try:
        os.unlink(local_files.partial_path(str(tracker)))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _forward_stream_pipes(streams: Streaming | None, checkpointing: Checkpointing, is_first: bool) -> Iterator[None]:
    """Forward the lines of the launcher's pipes to the ranks while the ranks run.

    Write each pipe's list to the run's directory on the first node, or without a run directory to a directory of this node.
    """
    places = [place for place in streams.lists if place and place.startswith(streaming.PIPE)] if streams else []
    if not places:
        yield
        return
    is_shared = checkpointing.directory is not None and not checkpointing.is_remote
    with private_directory() as directory:
        private = str(directory)
        os.environ[stream_intake.DIRECTORY_VARIABLE] = private
        for place, intake in zip(places, stream_intake.streams(), strict=True):
            broken = streaming.broken_path(place, private)
            assert broken is not None
            if is_first or not is_shared:
                intake.hand_on(Path(streaming.list_path(place, checkpointing.directory, private)), broken)
            else:
                intake.discard()
        yield
