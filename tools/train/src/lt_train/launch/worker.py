"""A rank of a run, started by lt-train as `python -m lt_train.launch.worker RUN_CONFIG.json`.

RANK, WORLD_SIZE and so on are in its environment.
"""

import errno
import gc
import io
import logging
import os
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ExitCode, ToolError
from lt_train.checkpoint.memory import keeper
from lt_train.checkpoint.shards import writer_process
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.memory import Memory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision
from lt_train.config.settings.reporting import Reporting
from lt_train.config.settings.scoring import Scoring
from lt_train.kernels import compile_caches
from lt_train.launch import rank_imports
from lt_train.launch.control import VARIABLE, Controlled
from lt_train.process import flight_recorder, process_lifetime, rank_environment, signals
from lt_train.process.rank_environment import RankEnvironment
from lt_train.process.start_clock import clock


@click.command(cls=console.Command)
@click.argument("config_file", type=click.Path(dir_okay=False))
@click.option("--spare", type=int, help="Wait, as the spare process with this number, to take the place of a rank that dies.")
def command(config_file: str, spare: int | None) -> int:
    """Run one rank of the run that CONFIG_FILE configures."""
    process_lifetime.die_with_launcher()
    clock.begin()
    config = RunConfig.from_json(Path(config_file).read_text())
    clock.lap("interpreter")
    if spare is not None:
        return _stand_by(config, _connect(config.parallelism.device, -1 - spare))
    rank_env = rank_environment.find()
    if rank_env is None:
        raise BadConfig("no rank in the environment", "start lt-train, which starts its own ranks")
    control = _connect(config.parallelism.device, rank_env.local_rank) if VARIABLE in os.environ else None
    return start(config, rank_env, control)


def _connect(device_type: str, rank: int) -> Controlled:
    """Connect to the launcher, which may interrupt this process through the connection. `rank` as in `Controlled`."""
    from lt_train.process import device, interruption

    device.outlive_aborted_collectives(device_type)

    def interrupt() -> None:
        # Set the flag first, because threads that wait for the device continue during the abort.
        interruption.interrupt()
        device.abort_collectives(device_type)

    control = Controlled(os.environ[VARIABLE], rank, interrupt)
    interruption.allow(control.suspect)
    keeper.use(control)
    return control


def _stand_by(config: RunConfig, control: Controlled) -> int:
    """Import all packages that a rank needs, then become the rank that the launcher names."""
    from lt_train.process import device

    ranks = config.parallelism.world_size
    prepare_process(config.parallelism, config.precision, config.memory, config.reporting)
    _import_torch(config.parallelism.device)
    any_rank = RankEnvironment(0, 0, ranks, ranks, rank_environment.LOOPBACK, 0, "lt-train")
    # A GPU context takes memory from the rank on that GPU. So it is made only when the rank to replace is known.
    prepared = device.prepare(device.CPU, any_rank) if config.parallelism.device == device.CPU else None
    _import_run(config.scoring, control)
    if prepared is not None:
        # torch imports it in the first step, for half a second, although nothing is compiled on a CPU.
        import torch._dynamo.convert_frame  # noqa: F401
    attempt = control.wait_for_attempt()
    if attempt is None:
        return ExitCode.OK
    config, rank_env = _begin_attempt(attempt)
    prepared = prepared or device.prepare(config.parallelism.device, rank_env)
    clock.lap("device")
    return start(config, rank_env, control, prepared)


def start(config: RunConfig, rank_env: RankEnvironment, control: Controlled | None = None, prepared_device: Any = None) -> int:
    """Prepare the device, unless `prepared_device` is set, and train. Returns the exit code.

    If another rank dies, `control` may say to begin again. The rank that failed raises its error, and the other ranks end
    silently. megatron-core is imported after the device is prepared, because on a CPU it needs replacements to be in place.
    """
    from lt_train.process import device

    signals.listen(config.checkpointing.save is not None)
    if config.checkpointing.may_save_async(config.parallelism.device == device.CUDA):
        # Start it now, so that it has imported its packages long before the first checkpoint.
        writer_process.start()
    run = None
    while True:
        try:
            if run is None:
                with rank_imports.pause_collection():
                    if prepared_device is None:
                        prepare_process(config.parallelism, config.precision, config.memory, config.reporting)
                        prepared_device = prepare_device(config.parallelism.device, rank_env)
                    run = _import_run(config.scoring, control)
            return run(config, rank_env, prepared_device)
        except Exception as error:
            from lt_train.planner.memory_advice import MemoryAdvice
            from lt_train.process import failure_report, interruption

            is_echo = failure_report.is_echo(error) or interruption.is_interrupted()
            if not (control and is_echo and control.is_held()):
                raise failure_report.replacement_error(error, rank_env, MemoryAdvice(config).text) from error
        # Outside the except block, because the error's traceback refers to frames, and the frames to the model.
        _leave_process_groups()
        if prepared_device is not None:
            device.release(prepared_device)
        control.say_ready()
        attempt = control.wait_for_attempt()
        if attempt is None:
            return ExitCode.IO
        interruption.clear()
        config, rank_env = _begin_attempt(attempt)


def _import_run(scores: Scoring | None, control: Controlled | None) -> Callable[..., int]:
    """Import the function that the rank runs: score samples, or train.

    flash-attn-4 is hidden from megatron-core, which would import it for inference only.
    """
    with rank_imports.hide("flash_attn.cute"):
        from lt_train.train import scoring, training_run
    clock.lap("megatron-core")
    if control:
        control.say_imported()
    return scoring.score if scores else training_run.train


def _begin_attempt(attempt: dict[str, Any]) -> tuple[RunConfig, RankEnvironment]:
    """Return the configuration and the rank of the launcher's next attempt, and set the rank in this process's environment."""
    clock.begin_again()
    os.environ.update(attempt["variables"])
    rank_env = RankEnvironment.from_variables(attempt["variables"])
    return RunConfig.from_json(Path(attempt["config"]).read_text()), rank_env


def _leave_process_groups() -> None:
    """Free the model and close the connections to the other ranks, so that ranks that wait for this rank continue, too.

    gloo closes a group when the last reference is gone. megatron-core keeps references to groups, and a model has reference
    cycles.
    """
    import torch
    from megatron.core import parallel_state

    from lt_train.megatron import distributed_c10d

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    distributed_c10d.count_groups_anew()
    parallel_state.destroy_model_parallel()
    state = vars(parallel_state)
    state.update({name: None for name, value in state.items() if isinstance(value, torch.distributed.ProcessGroup)})
    gc.collect()


def prepare_device(device_type: str, rank_env: RankEnvironment) -> Any:
    """Import torch while the device's context is created in a thread. Returns the device."""
    from lt_train.process import device

    device.begin_context(device_type, rank_env)
    _import_torch(device_type)
    prepared = device.prepare(device_type, rank_env)
    clock.lap("device")
    return prepared


def _import_torch(device_type: str) -> None:
    import torch  # noqa: F401

    from lt_train.megatron import torch_compile, torch_optimizer
    from lt_train.process import device

    clock.lap("torch")
    torch_optimizer.undo_marks()
    if device_type == device.CUDA:
        # On a CPU, nothing is compiled.
        torch_compile.compile_when_called()


def prepare_process(parallelism: Parallelism, precision: Precision, memory: Memory, reporting: Reporting) -> None:
    """Prepare a process once, before it imports torch."""
    _keep_standard_output_for_data()
    # torch writes a stack of C++ frames whenever another rank's end closes a connection.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    flight_recorder.keep_calls()
    compile_caches.use_private_directories()
    from lt_train.process import device

    silence_warnings()
    if precision.deterministic:
        device.make_deterministic(parallelism.device)
    if parallelism.tensor > 1 and not memory.fully_sharded:
        device.launch_in_order()
    if parallelism.device == device.CUDA:
        device.allocate_in_expandable_segments()
    used = {"wandb": reporting.wandb, "tensorboard": reporting.tensorboard_dir}
    rank_imports.leave_out(*(package for package, use in used.items() if use is None))


def _keep_standard_output_for_data() -> None:
    """Redirect C libraries' output to standard error, because the next command reads manifest lines on standard output.

    Gloo of torch 2.8 writes to standard output from C, and NCCL with NCCL_DEBUG.
    """
    sys.stdout.flush()
    data = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    buffered = io.BufferedWriter(_ManifestOutput(data, "w"))
    sys.stdout = io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape")


class OutputClosed(ToolError, OSError):
    """Nobody reads the manifest lines on standard output. Starting the ranks again would not help."""

    exit_code = ExitCode.BROKEN_PIPE

    def __init__(self) -> None:
        super().__init__("standard output is closed", "the same command goes on; redirect its output to a file or to /dev/null")


class _ManifestOutput(io.FileIO):
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            # A terminal that is gone: `isatty` fails with the same error.
            is_lost_terminal = error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
            if is_lost_terminal or error.errno in (errno.EPIPE, errno.EBADF):
                raise OutputClosed from error
            raise


def silence_warnings() -> None:
    """Silence warnings that every rank would repeat.

    megatron-core warns of missing optional packages and of its coming changes. torch warns of megatron-core's calls, and of a
    CUDA toolkit on a machine without a GPU.
    """
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed\.checkpoint")
    for name in ("megatron", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> None:
    if len(sys.argv) == 1:
        raise SystemExit("lt_train.launch.worker is started by lt-train")
    try:
        console.run(command, "lt-train")
    except SystemExit as end:
        if end.code:
            # When the interpreter ends, the communication libraries may wait for the other ranks.
            os._exit(int(end.code))
        raise


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    process_lifetime.die_with(os.getppid())
