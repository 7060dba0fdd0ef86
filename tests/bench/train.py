"""How fast lt-train trains on the GPUs here, beside what others have, and how far all of them are from the floor.

    nox -s bench -- train                                          # an H200: about 50 minutes, a process for each contender
    nox -s bench -- train --shapes llama3.2-1b --only lt-train torch-loop --seconds 300
    nox -s bench -- train --shapes llama3.1-8b --gpus 2            # data parallel, through torchrun for the others
    nox -s bench -- train --from results.json --guide              # writes the tables of docs/guides/speed.md

First the losses of lt-train's fast paths are compared with those of its fp32 run. Then each contender trains the same model on as
many made-up tokens; the floor is the sum of the best times of the step's matrix products and attention alone. A contender whose
packages are not installed is left out with the reason. Exit code 1 when losses differ or a contender fails.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import report
import torch
from training import results
from training.contenders import CONTENDERS, FLOOR_SECONDS
from training.process import Process
from training.workload import SHAPES, Workload

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/speed.md"
# A GPU gets warm: behind 4 steps those of one run took 797 to 822 ms, behind 20 802 to 811 (8B's width, H200, 2026-11-22), and
# contenders come to their first step from pauses of different length.
WARMUP_STEPS, STEPS = 20, 10
LAST_LINES = 12
# Of its estimate; what takes longer hangs.
TIMEOUT_FACTOR = 4
LOSS_SECONDS = 60
USUAL_SHAPES = ("llama3.2-1b", "llama3-8b-width", "llama3-8b-width-4096")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process: what it is asked for, about how long it takes on an H200, and who gets what it finds."""

    name: str
    what: str
    work: Workload
    seconds: float
    keep: Callable[[dict[str, Any]], None]


class Session:
    """The measurements of one call: what was asked for, how much time is left, and what was found."""

    def __init__(self, chosen: argparse.Namespace):
        self.chosen = chosen
        self.began = time.monotonic()
        self.found: dict[str, Any] = {"v": 1, "date": time.strftime("%Y-%m-%d"), "device": device_name(chosen.device)}
        self.found |= {"losses": [], "floors": {}, "measurements": [], "skipped": []}
        chosen.logs.mkdir(parents=True, exist_ok=True)

    def run(self, tasks: Sequence[Task]) -> None:
        """One task after the other. Beside a GPU, the next one's process gets ready meanwhile."""
        next_process: Process | None = None
        try:
            for task, following in itertools.zip_longest(tasks, tasks[1:]):
                process = next_process or self.start(task)
                next_process = self.start(following) if following and self.chosen.device == "cuda" else None
                if self.has_time(task):
                    self.finish(task, process)
                else:
                    process.end()
        finally:
            if next_process:
                next_process.end()
            self.save()

    def start(self, task: Task) -> Process:
        log = self.chosen.logs / f"{len(list(self.chosen.logs.iterdir())):02d}-{task.name}-{task.work.shape.model}.log"
        return Process(self.command(task), environment(), log)

    def command(self, task: Task) -> list[str]:
        # torchrun takes what might be short for an option of its own, like --run.
        return [*launcher(task.work), "--contender", task.name, "--work", task.work.to_json()]

    def finish(self, task: Task, process: Process) -> None:
        began = time.monotonic()
        found, end = process.finish(min(task.seconds * TIMEOUT_FACTOR, max(task.seconds, self.seconds_left())))
        say(f"{task.name}: {time.monotonic() - began:.0f} s")
        if found is not None:
            task.keep(found)
        else:
            say(f"{task.name}: failed, {end}; the last lines of {process.log}:")
            for line in process.log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
                say(f"    {line[:300]}")
            self.fail(task.what, "failed")
        self.save()

    def seconds_left(self) -> float:
        return float(self.chosen.seconds - (time.monotonic() - self.began))

    def has_time(self, task: Task) -> bool:
        if task.seconds <= self.seconds_left():
            return True
        self.skip(task.what, f"needs about {task.seconds:.0f} s, {max(0.0, self.seconds_left()):.0f} s are left")
        return False

    def skip(self, what: str, reason: str) -> None:
        self.found["skipped"].append({"what": what, "reason": reason})
        say(f"{what}: left out: {reason}")

    def fail(self, what: str, reason: str) -> None:
        self.found["has_failed"] = True
        self.skip(what, reason)

    def save(self) -> None:
        """After each measurement: a call that is cut off keeps what it has."""
        if self.chosen.json:
            self.chosen.json.write_text(json.dumps(self.found, indent=1) + "\n")

    def tasks(self) -> Iterator[Task]:
        wanted = self.chosen.only or ["losses", "floor", *(name for name, one in CONTENDERS.items() if one.is_usual)]
        names = [name for name in wanted if name in CONTENDERS]
        if "losses" in wanted:
            yield from self.losses(names or list(CONTENDERS))
        for shape in self.chosen.shapes:
            if "floor" in wanted:
                work = self.work("lt-train", shape, 1, SHAPES[shape].micro_batch)
                yield Task("floor", f"floor of {shape}", work, FLOOR_SECONDS, partial(self.keep_floor, shape))
            for _ in range(self.chosen.rounds):
                for gpus in self.chosen.gpus:
                    for micro_batch in self.chosen.micro_batches or [SHAPES[shape].micro_batch]:
                        for name in names:
                            yield from self.measurement(name, shape, gpus, micro_batch)

    def losses(self, names: list[str]) -> Iterator[Task]:
        from training import losses

        ours = {name: CONTENDERS[name] for name in names if CONTENDERS[name].is_ours}
        added = {"options": self.chosen.options}
        paths = {
            name: (contender.precision, contender.settings | added)
            for name, contender in ours.items()
            if not contender.obstacle(self.chosen.device, 1)
        }
        if paths:
            yield Task("losses", "losses", losses.workload(self.chosen.device, paths), LOSS_SECONDS, self.keep_losses)

    def keep_losses(self, found: dict[str, Any]) -> None:
        from training.losses import STEPS

        for name, one in found.items():
            is_equal = one["difference"] <= one["tolerance"]
            self.found["losses"].append({"contender": name, "steps": STEPS, **one})
            self.found["has_failed"] = self.found.get("has_failed", False) or not is_equal
            beside = f"differ by {one['difference']:.1e} at most from those in fp32, tolerance {one['tolerance']}"
            say(f"{name}: the losses of {STEPS} steps {beside}{'' if is_equal else ': WRONG'}")

    def keep_floor(self, shape: str, found: dict[str, Any]) -> None:
        self.found["floors"][shape] = found
        fp8 = f", {found['fp8_seconds'] * 1e3:.1f} ms with fp8 layers" if found["fp8_seconds"] else ""
        say(
            f"floor of {shape}: {found['bf16_seconds'] * 1e3:.1f} ms{fp8}; "
            f"square product {found['square_tflops']:.0f} TFLOP/s, copy {found['copy_tb_per_second']:.2f} TB/s"
        )

    def measurement(self, name: str, shape: str, gpus: int, micro_batch: int) -> Iterator[Task]:
        contender = CONTENDERS[name]
        what = f"{name}, {shape}, {gpus} GPU{'s' * (gpus > 1)}, micro batch {micro_batch}"
        if reason := contender.obstacle(self.chosen.device, gpus):
            self.skip(what, reason)
            return
        work = self.work(name, shape, gpus, micro_batch)
        record = {"contender": name, "shape": shape, "gpus": gpus, "micro_batch": micro_batch}
        record |= {"precision": contender.precision}
        yield Task(name, what, work, contender.seconds, partial(self.keep_measurement, what, work, record))

    def keep_measurement(self, what: str, work: Workload, record: dict[str, Any], found: dict[str, Any]) -> None:
        wanted = (work.architecture.parameters(), work.tokens_per_step * work.gpus)
        if (found["parameters"], found["tokens_per_step"]) != wanted:
            self.fail(what, f"trained {found['parameters']:,} parameters on {found['tokens_per_step']:,} tokens, not {wanted}")
            return
        self.found["measurements"].append(record | found)
        say(results.line(self.found, record | found))

    def work(self, name: str, shape: str, gpus: int, micro_batch: int) -> Workload:
        contender = CONTENDERS[name]
        sized = dataclasses.replace(SHAPES[shape], micro_batch=micro_batch)
        settings = contender.settings | ({"options": self.chosen.options} if contender.is_ours else {})
        return Workload(
            sized, contender.precision, gpus, self.chosen.device, self.chosen.warmup_steps, self.chosen.steps, settings
        )


def launcher(work: Workload) -> list[str]:
    if work.gpus == 1:
        return [sys.executable, __file__]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(work.gpus), __file__]


def environment() -> dict[str, str]:
    """For a group of one process; torchrun sets its own. Modules beside this file are found wherever it is started from."""
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    return {**os.environ, **single, "PYTHONWARNINGS": "ignore"}


def free_port() -> int:
    """Taken when it is needed: while a process waits, another may get it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


def run_contender(name: str, work: Workload, result: Path) -> None:
    """In a process of its own; the first rank writes what was found. No GPU is touched before standard input ends."""
    module = importlib.import_module(f"training.{CONTENDERS[name].module if name in CONTENDERS else name}")
    if work.device == "cuda":
        module.prepare(work)
    say(f"{name} is ready{', and has taken a GPU' if torch.cuda.is_initialized() else ''}")
    sys.stdin.read()
    say(f"{name} begins")
    if work.gpus == 1:
        os.environ["MASTER_PORT"] = str(free_port())
    if work.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    found = module.run(work) if name in CONTENDERS else module.measure(work)
    if os.environ["RANK"] == "0":
        result.write_text(json.dumps(dataclasses.asdict(found) if name in CONTENDERS else found))


def device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0].strip()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench -- train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of: floor, losses, {', '.join(CONTENDERS)}")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=USUAL_SHAPES)
    parser.add_argument("--micro-batches", nargs="+", type=int, help="instead of the shape's own; must divide its samples")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], help="1 2 shows the weak scaling")
    parser.add_argument("--options", default="", help="further options of lt-train bench")
    parser.add_argument("--rounds", type=int, default=1, help="measure all contenders that often in turn")
    parser.add_argument("--warmup-steps", type=int, default=WARMUP_STEPS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="leave out what does not fit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / f"bench-train-{os.getpid()}")
    parser.add_argument("--json", type=Path, help="a file for all figures, written after each measurement")
    parser.add_argument("--from", dest="source", type=Path, nargs="+", help="show the figures of such files; measure nothing")
    parser.add_argument("--guide", action="store_true", help=f"write the tables into {GUIDE.name}")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Workload.from_json, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if unknown := set(chosen.only or ()) - {"floor", "losses", *CONTENDERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return chosen


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    session = Session(chosen)
    session.run(list(session.tasks()))
    return session.found


def main() -> int:
    chosen = arguments()
    if chosen.contender:
        run_contender(chosen.contender, chosen.work, chosen.result)
        return 0
    if chosen.guide:
        report.check_markers(GUIDE)
    found = results.merged([json.loads(path.read_text()) for path in chosen.source]) if chosen.source else measure(chosen)
    tables = results.tables(found)
    print("\n".join(table.plain() for table in tables))
    if chosen.guide:
        report.write_markdown(GUIDE, "\n".join(table.markdown() for table in tables))
    return 1 if found.get("has_failed") else 0


if __name__ == "__main__":
    sys.exit(main())
