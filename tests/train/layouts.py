"""Many runs in the same few processes: ranks that stay and train one layout after the other.

Starting lt-train costs seconds before the first step; here torch and megatron-core are imported once. `train_all` is what a test
calls; as a program this file starts the ranks.
"""

import dataclasses
import faulthandler
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import nursery
from reserved_ports import free_port
from running import BRIEF_LOSSES, environment, losses

from lt_train import cli
from lt_train.checkpoint import starting_point
from lt_train.config.checks import problems, problems_here
from lt_train.config.draft import assemble
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.data import training_datasets
from lt_train.launch import launcher
from lt_train.process import process_lifetime
from lt_train.process.device import CPU, CUDA
from lt_train.process.rank_environment import RankEnvironment

LONGEST_SECONDS = 1800
# One that takes longer waits for a rank that has gone another way. The longest took 15 on two busy cores, and a disk that others
# fill can keep a checkpoint's fsync waiting for a minute; on GPUs, where kernels are compiled for eight runs at a time, more than
# 60.
LONGEST_LAYOUT_SECONDS = {CPU: 150, CUDA: 240}
# The second: a port that was free when the runs were planned, minutes before, and that another process has taken since. The last
# two: what a rank says of one that was killed.
NOT_CONNECTED = ("Gloo connectFullMesh failed", "EADDRINUSE", "Connection closed by peer", "Connection reset by peer")
# Set by tests/conftest.py for the tests that .ci/run repeats with Python 3.12.
SECOND_PYTHON = "LT_SECOND_PYTHON"
# At this signal a rank prints where it is.
STACKS = signal.SIGUSR2
# A model whose layers many pipelines divide, for plans that are not trained.
EIGHT_LAYERS = (
    *("--model", "tiny", "--mock-data", "--device", "cpu"),
    *("--num-layers", "8", "--seq-length", "64", "--global-batch-size", "8"),
)
# How a rank ends, and what is at the end of its error's name, when it ends only because another one has failed.
ECHO_CODE, ECHO = 3, "-echo"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a layout came to: its losses, or `error` of a rank. `peak_bytes` is the memory of the fullest GPU."""

    recorded: dict[tuple[str, int], float]
    tokens_per_second: float | None
    peak_bytes: int
    error: str | None

    @property
    def losses(self) -> dict[tuple[str, int], float]:
        """Those of its steps and evaluations. A test that asks for those of a layout that failed shows why it did."""
        assert self.error is None, self.error
        return self.recorded


def sampled(layouts: Mapping[Any, Any], *always: Hashable) -> dict[Any, Any]:
    """The layouts to train: every third, and those of `always`, where the tests of another Python have trained all of them."""
    step = 3 if os.environ.get(SECOND_PYTHON) else 1
    return {name: options for number, (name, options) in enumerate(layouts.items()) if number % step == 0 or name in always}


def plan_of(arguments: Iterable[str]) -> RunConfig:
    """The plan of a command line of lt-train."""
    plan = assembled(arguments)
    for problem in (*problems(plan), *problems_here(vars(plan))):
        raise problem
    return plan


def assembled(arguments: Iterable[str]) -> RunConfig:
    """The same, not checked."""
    context = cli.command.make_context("lt-train", list(arguments))
    data = context.params.pop("data")
    context.params.pop("dry_run")
    return assemble(context.params, training_datasets(data, context.params))


def train_all(
    commands: Mapping[str, tuple[str, ...]],
    place: Path,
    ranks: int,
    saving: bool | Container[str] = False,
    steps: bool = True,
    by_megatron: Sequence[str] = (),
) -> dict[str, Outcome]:
    """Train each command line with `--save place/NAME` on as many of the `ranks` as it takes; all ranks have the same device.

    A layout that fails does not stop the others. One whose ranks hung, were killed, or did not reach each other is tried once
    more: gloo has been seen to wait for ever in the tenth process group that a process makes on a loaded machine, and to have
    its connections refused. Those named in `saving` write checkpoints, or all; without `steps` each saves what it has loaded.
    Those named in `by_megatron` have megatron-core's pipeline schedule.
    """
    if not commands:
        return {}
    work = []
    place.mkdir(parents=True, exist_ok=True)
    for name, arguments in commands.items():
        plan = plan_of([*arguments, "--save", str(place / name)])
        saves = saving if isinstance(saving, bool) else name in saving
        entry = {"name": name, "port": free_port(), "plan": plan.to_json(), "saves": saves, "by_megatron": name in by_megatron}
        work.append(entry)
    failed: dict[str, str] = {}
    hung: dict[str, str] = {}
    while left := [entry for entry in work if entry["name"] not in failed and not _done(place, entry["name"], 0)]:
        for entry in left:
            # A rank that was ended because another failed may have begun it.
            shutil.rmtree(place / entry["name"], ignore_errors=True)
            (place / entry["name"]).mkdir()
        (place / "work.json").write_text(json.dumps({"ranks": ranks, "steps": steps, "work": left}))
        python = nursery.python() if plan.parallelism.device == CPU else sys.executable
        program = [python, __file__, str(place / "work.json")]
        result = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=LONGEST_SECONDS)
        if result.returncode:
            name = _failing(place, [entry["name"] for entry in left], result.stderr)
            said = [file.read_text() for file in sorted((place / name).glob("error-*"), key=_seniority)]
            if name in hung or (said and not any(reason in said[0] for reason in NOT_CONNECTED)):
                failed[name] = hung.get(name, "") + (said[0] if said else result.stderr[-6000:])
                continue
            hung[name] = f"Of the first try:\n{''.join(said)}{result.stderr[-6000:]}\nOf the second:\n"
            next(entry for entry in left if entry["name"] == name)["port"] = free_port()
    return {name: _outcome(place / name, failed.get(name)) for name in commands}


def train_variants(
    training: Sequence[str],
    options_by_name: Mapping[str, Sequence[str]],
    dataset: str,
    place: Path,
    stopped: Container[str] = (),
    ranks: int = 2,
) -> dict[str, Outcome]:
    """Train `training` with the options of every name, on up to `ranks` ranks.

    The runs in `stopped` write checkpoints; in the options of others, such a name stands for the run's directory.
    """
    commands = {
        name: (*training, *(str(place / word) if word in stopped else word for word in options), dataset)
        for name, options in options_by_name.items()
    }
    return train_all(commands, place, ranks, saving=stopped)


def check_losses_of_one_rank(outcomes: Mapping[str, Outcome], layout: str, alone: str) -> None:
    """Compare a layout with the run of one rank: a sum in another order differs by less than 1e-5."""
    assert outcomes[layout].error is None, outcomes[layout].error
    assert outcomes[alone].losses.keys() == BRIEF_LOSSES
    assert outcomes[layout].losses.keys() == BRIEF_LOSSES
    differences = {key: abs(loss - outcomes[alone].losses[key]) for key, loss in outcomes[layout].losses.items()}
    assert all(difference <= 1e-5 for difference in differences.values()), differences


def _seniority(error: Path) -> tuple[bool, float]:
    """First what failed by itself, in the order of time: a rank that it was told to may have ended, and written so, before."""
    return error.name.endswith(ECHO), error.stat().st_mtime


def _done(place: Path, name: Any, rank: int) -> bool:
    return (place / name / f"rank-{rank}.json").exists()


def _failing(place: Path, names: list[str], errors: str) -> str:
    """The layout that a rank has failed in; or, when it was killed there, the first that rank 0 has not ended."""
    for name in names:
        if list((place / name).glob("error-*")):
            return name
    if not list(place.glob("*/begun")):
        raise RuntimeError(f"the ranks did not start: {errors}")
    return next((name for name in names if not _done(place, name, 0)), names[-1])


def _outcome(directory: Path, error: str | None) -> Outcome:
    if error is not None:
        return Outcome({}, None, 0, error)
    peaks = [json.loads(file.read_text())["peak_bytes"] for file in directory.glob("rank-*.json")]
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    speeds = sorted(record["tokens_per_second"] for record in records if record["kind"] == "step")
    return Outcome(losses(directory), speeds[len(speeds) // 2] if speeds else None, max(peaks), None)


def main(work_file: str) -> int:
    """Start the ranks: on a CPU copies of this process, which the nursery has prepared; a copy could not use a GPU."""
    work = json.loads(Path(work_file).read_text())
    on = RunConfig.from_json(work["work"][0]["plan"]).parallelism.device
    context = multiprocessing.get_context("fork" if on == CPU else "spawn")
    started = [context.Process(target=serve, args=(work_file, rank)) for rank in range(work["ranks"])]
    for process in started:
        process.start()
    running = {process.sentinel: process for process in started}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(int(sentinel))  # type: ignore[call-overload]
            process.join()
            if process.exitcode:
                left = [other for other in started if other.is_alive()]
                for other in left:
                    os.kill(other.pid, STACKS)  # type: ignore[arg-type]
                deadline = time.monotonic() + (60 if process.exitcode == ECHO_CODE else 2)
                for other in left:
                    other.join(max(0, deadline - time.monotonic()))
                for other in left:
                    other.kill()
                return 1
    return 0


def prepare(on: str, rank: int, ranks: int) -> Any:
    """Make the device ready and import what trains."""
    from lt_train.launch import worker as rank_module
    from lt_train.process import device

    rank_module.silence_warnings()
    where = device.prepare(on, RankEnvironment(rank, rank, ranks, ranks, "127.0.0.1", 0, "test"))
    from lt_train.train import training_run  # noqa: F401

    return where


def serve(work_file: str, rank: int) -> None:
    """One rank: train every layout that has so many ranks."""
    process_lifetime.die_with(os.getppid())
    faulthandler.register(STACKS)
    import torch

    work = json.loads(Path(work_file).read_text())
    plans = [(entry, RunConfig.from_json(entry["plan"])) for entry in work["work"]]
    on = plans[0][1].parallelism.device
    where = torch.device(CPU) if on == CPU else prepare(on, rank, work["ranks"])
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from lt_train.checkpoint.saver import Saver
    from lt_train.process.interruption import Echo
    from lt_train.train import pipeline_schedule, training_run
    from lt_train.train.trainer import Trainer

    own_schedule, own_save = pipeline_schedule.choose, Saver.save
    if not work["steps"]:
        Trainer.run = save_at_once  # type: ignore[method-assign]
    for entry, plan in plans:
        ranks = plan.parallelism.world_size
        if rank >= ranks:
            continue
        directory = Path(work_file).parent / entry["name"]
        (directory / "begun").touch()
        pipeline_schedule.choose = (lambda _: get_forward_backward_func()) if entry["by_megatron"] else own_schedule
        Saver.save = own_save if entry["saves"] else lambda saver, loss, is_final=False: None  # type: ignore[method-assign]
        place = RankEnvironment(rank, rank, ranks, ranks, "127.0.0.1", entry["port"], "test")
        os.environ.update(place.variables())
        if on == CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        faulthandler.dump_traceback_later(LONGEST_LAYOUT_SECONDS[on], exit=True)
        try:
            training_run.train(starting_point.fetch_start(launcher.prepare(plan)), place, where)
        except Echo:
            (directory / f"error-{rank}{ECHO}").write_text(traceback.format_exc()[-3000:])
            sys.exit(ECHO_CODE)
        except BaseException:
            (directory / f"error-{rank}").write_text(traceback.format_exc()[-3000:])
            raise
        faulthandler.cancel_dump_traceback_later()
        parallel_state.destroy_model_parallel()
        # The model holds its process groups, each of them two threads that wake a hundred times a second, and itself in a circle.
        gc.collect()
        peak = torch.cuda.max_memory_allocated() if on == CUDA else 0
        (directory / f"rank-{rank}.json").write_text(json.dumps({"peak_bytes": peak}))


def save_at_once(trainer: Any, largest: Any) -> Any:
    from lt_train.process.signals import Reason
    from lt_train.train.hooks.checkpoints import Checkpoints

    (saver,) = (hook.saver for hook in trainer.hooks if isinstance(hook, Checkpoints))
    saver.save(None)
    saver.finish()
    return Reason.NONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
