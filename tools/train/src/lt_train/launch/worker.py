"""One rank of a run, started by lt-train as `python -m lt_train.launch.worker RUN_CONFIG.json`.

RANK, WORLD_SIZE and so on are in its environment.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_train.config.run_config import RunConfig
from lt_train.kernels import compile_caches
from lt_train.runtime import flight_recorder, process_lifetime, rank_environment, signals
from lt_train.runtime.rank_environment import RankEnvironment


@click.command(cls=console.Command)
@click.argument("config_file", type=click.Path(dir_okay=False))
def command(config_file: str) -> int:
    """Run one rank of the run that CONFIG_FILE configures."""
    rank_env = rank_environment.find()
    if rank_env is None:
        raise BadConfig("no rank in the environment", "start lt-train, which starts its own ranks")
    process_lifetime.die_with_launcher()
    return start(RunConfig.from_json(Path(config_file).read_text()), rank_env)


def start(config: RunConfig, rank_env: RankEnvironment) -> int:
    """Prepare the device and train; returns the exit code.

    An error is raised by the rank that it belongs to, the others end silently. megatron-core is imported after the device is
    prepared: on a CPU it needs replacements to be in place.
    """
    signals.listen()
    _keep_standard_output_for_data()
    # torch writes a stack of C++ frames for every connection that another rank's end closes.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    flight_recorder.keep_calls()
    compile_caches.use_private_directories()
    from lt_train.runtime import device

    quiet()
    try:
        if config.precision.deterministic:
            device.make_deterministic(config.parallelism.device)
        if config.parallelism.tensor > 1 and not config.memory.fully_sharded:
            device.launch_in_order()
        if config.parallelism.device == device.CUDA:
            device.allocate_in_expandable_segments()
        _leave_out(wandb=config.reporting.wandb, tensorboard=config.reporting.tensorboard_dir)
        where = device.prepare(config.parallelism.device, rank_env)
        from lt_train.train.trainer import train

        return train(config, rank_env, where)
    except Exception as error:
        from lt_train.runtime import failure_report

        raise failure_report.raised(error, rank_env) from error


def _keep_standard_output_for_data() -> None:
    """Libraries write there from C, as Gloo of torch 2.8 does, or NCCL with NCCL_DEBUG; the next command reads manifest lines."""
    sys.stdout.flush()
    data = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = open(data, "w", encoding="utf-8", errors="surrogateescape")


def _leave_out(**used: object) -> None:
    """Let packages that are not used count as absent: megatron-core imports them wherever they are, for half a second."""
    for package, use in used.items():
        if use is None:
            sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def quiet() -> None:
    """megatron-core warns of every optional package that is not there and of its coming changes, on every rank.

    torch warns of the old names by which megatron-core still calls it.
    """
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    logging.getLogger("megatron").setLevel(logging.ERROR)


def main() -> None:
    if len(sys.argv) == 1:
        raise SystemExit("lt_train.launch.worker is started by lt-train")
    try:
        console.run(command, "lt-train")
    except SystemExit as end:
        if end.code:
            # The communication libraries may wait for the other ranks when the interpreter ends.
            os._exit(int(end.code))
        raise


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    process_lifetime.die_with(os.getppid())
