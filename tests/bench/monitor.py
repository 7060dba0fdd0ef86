"""How fast lt-monitor reads: noise, steps of each trainer, many files that did not change, and how much memory it takes.

    nox -s bench -- monitor            # half a gigabyte of logs in a temporary directory, about four minutes
    nox -s bench -- monitor --labels   # noise and steps behind every kind of label, about ten minutes
    nox -s bench -- monitor --profile  # where the time goes, for each log

Each figure is of a process of its own, with its start: processor seconds of user and system together, so other work on the
machine counts little. The logs are made up in the formats of the trainers. Exit code 1 when a limit is missed.
"""

import argparse
import cProfile
import datetime
import os
import pstats
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "monitor"))

from wrapped_logs import LOGGERS, SHIPPERS, Wrapping

from lt_shared.contracts import run_log

MB = 1_000_000
NOISE_MB_PER_SECOND, STEPS_MB_PER_SECOND = 200.0, 50.0
PASS_SECONDS, SUMMARY_SECONDS, MEMORY_MIB = 1.0, 1.8, 200.0
FILES, STEPS, PIPED_GB = 10_000, 1_000_000, 5
NOISE_LINES_PER_STEP = 200
# Behind labels, at least this share of the speed without.
LABELLED_SHARE = 1 / 3
LABELLED_STEPS, LABELLED_STEP_LINES = 4_000, 100_000
COMMON_LABELS = (
    ("cri",),
    ("docker",),
    ("stern",),
    ("ray-colours",),
    ("logging",),
    ("rich",),
    ("ray-colours", "docker"),
    ("srun", "cri"),
)

NOISE = (
    "ip-10-1-2-3:4711:4811 [{0}] NCCL INFO Channel {1:02d}/32 : 0[0] -> 1[1] via P2P/IPC/read",
    "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py:{1}: UserWarning: This will create {0} processes",
    "  warnings.warn(_create_warning_msg(",
    "[rank{0}]:2025-03-04 00:44:{1:02d},441 - root - DEBUG - building the optimizer and its schedule for all parameters",
    "> building train, validation, and test datasets for GPT ...",
    "wandb: Tracking run with wandb version 0.19.{0}",
    "ip-10-1-2-3:4711:4811 [{0}] NCCL INFO NET/OFI Using transport protocol RDMA, one domain per process {1}",
    "[2026-01-16 07:32:{1:02d},123] [INFO] [real_accelerator.py:{1}:get_accelerator] Setting the accelerator to cuda",
)
START = datetime.datetime(2026, 1, 16, 7)


def megatron(choice: random.Random, step: int) -> str:
    return run_log.Step(
        step=step,
        total_steps=STEPS,
        consumed_samples=step * 512,
        step_seconds=choice.uniform(0.9, 1.3),
        tflops_per_gpu=choice.uniform(400, 500),
        learning_rate=3e-4 * min(1.0, step / 2000),
        global_batch_size=512,
        loss=11.0 * step**-0.1 + choice.random() * 0.1,
        loss_scale=1.0,
        grad_norm=choice.random() * 3,
        skipped_steps=0,
        nan_steps=0,
        time=START + datetime.timedelta(seconds=1.1 * step),
    ).format()


def torchtitan(choice: random.Random, step: int) -> str:
    time = START + datetime.timedelta(seconds=1.1 * step)
    stamp = f"{time:%Y-%m-%d %H:%M:%S},{time.microsecond // 1000:03d}"
    return (
        f"[rank0]:[titan] {stamp} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {11 * step**-0.1:8.5f}"
        f"  \x1b[38;2;180;60;0mgrad_norm: {choice.random() * 3:7.4f}  \x1b[38;2;54;234;195mmemory: 68.57GiB(86.69%)"
        f"  \x1b[34mtps: {choice.randrange(5000, 7500):,}  \x1b[36mtflops: {choice.random() * 500:,.2f}"
        f"  \x1b[35mmfu: N/A\x1b[39m"
    )


def nemo(choice: random.Random, step: int) -> str:
    return (
        f"Training epoch 0, iteration {step}/{STEPS} | lr: 3.922e-06 | global_batch_size: 512 | global_step: {step} | "
        f"reduced_train_loss: {choice.uniform(1, 9):.3f} | train_step_timing in s: {choice.uniform(2, 3):.3f} | "
        f"consumed_samples: {step * 512}"
    )


def with_noise(choice: random.Random, step: int) -> str:
    lines = [choice.choice(NOISE).format(choice.randrange(8), choice.randrange(60)) for _ in range(NOISE_LINES_PER_STEP)]
    return "\n".join([*lines, megatron(choice, step)])


def write(path: Path, writer: Callable[[random.Random, int], str], steps: int) -> Path:
    choice = random.Random(0)
    with path.open("w") as file:
        for step in range(1, steps + 1):
            file.write(writer(choice, step) + "\n")
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lt_monitor", *arguments]


def cpu_seconds(*arguments: str) -> float:
    """Of the quickest of three runs."""
    return min(_cpu_seconds(*arguments) for _ in range(3))


def _cpu_seconds(*arguments: str) -> float:
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def say(what: str, figure: str, limit: str, is_met: bool) -> bool:
    print(f"{what:<44} {figure:>12}   {limit:<16} {'' if is_met else 'MISSED'}".rstrip(), flush=True)
    return is_met


def speeds(logs: dict[str, tuple[Path, float]]) -> bool:
    fine = True
    for name, (path, limit) in logs.items():
        speed = path.stat().st_size / MB / cpu_seconds("scrape", str(path))
        fine &= say(f"scrape, {name}", f"{speed:.0f} MB/s", f"at least {limit:.0f}", speed >= limit)
    return fine


def wrapped(path: Path, kinds: tuple[str, ...]) -> Path:
    """Write the log again behind labels, the first of `kinds` innermost."""
    labels: dict[str, Wrapping] = {**SHIPPERS, **LOGGERS}
    lines = path.read_text().splitlines()
    for kind in kinds:
        lines = labels[kind](lines)
    labelled = path.with_suffix(".labelled.log")
    labelled.write_text("\n".join([*lines, ""]))
    return labelled


def behind_labels(directory: Path, every_kind: bool) -> bool:
    """How fast labelled logs are read, in bytes with their labels, as a share of the speed without labels."""
    logs = {
        f"a step in {NOISE_LINES_PER_STEP} lines": write(directory / "plain_noise.log", with_noise, LABELLED_STEPS),
        "Megatron steps": write(directory / "plain_steps.log", megatron, LABELLED_STEP_LINES),
    }
    kinds = [*((kind,) for kind in {**SHIPPERS, **LOGGERS}), *COMMON_LABELS] if every_kind else COMMON_LABELS
    fine = True
    for name, path in logs.items():
        speed = path.stat().st_size / MB / cpu_seconds("scrape", str(path))
        say(f"scrape, {name}, no labels", f"{speed:.0f} MB/s", "", True)
        for labels in dict.fromkeys(kinds):
            labelled = wrapped(path, labels)
            labelled_speed = labelled.stat().st_size / MB / cpu_seconds("scrape", str(labelled))
            share = labelled_speed / speed
            figure, what = f"{labelled_speed:.0f} MB/s, {share:.0%}", f"  behind {' in '.join(labels)}"
            fine &= say(what, figure, f"at least {LABELLED_SHARE:.0%}", share >= LABELLED_SHARE)
    return fine


def many_files(directory: Path) -> bool:
    for number in range(FILES):
        (directory / f"slurm-{number}.out").write_text(megatron(random.Random(number), number + 1) + "\n")
    arguments = ("scrape", "--state", str(directory / "state"), str(directory / "slurm-*.out"))
    first = _cpu_seconds(*arguments)
    again = cpu_seconds(*arguments)
    say(f"scrape --state, {FILES:,} new files", f"{first:.2f} s", "", True)
    return say(
        f"scrape --state, {FILES:,} unchanged files", f"{again:.2f} s", f"at most {PASS_SECONDS:.0f}", again <= PASS_SECONDS
    )


def memory(noise: Path) -> bool:
    content = noise.read_bytes()
    with subprocess.Popen(command("scrape", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        for _ in range(PIPED_GB * 1000 * MB // len(content)):
            process.stdin.write(content)
        # The most that it held; ru_maxrss would count what this process held when it started the other.
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak_mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
        process.stdin.close()
    figure, limit = f"{peak_mib:.0f} MiB", f"at most {MEMORY_MIB:.0f}"
    return say(f"scrape, memory for {PIPED_GB} GB", figure, limit, peak_mib <= MEMORY_MIB)


def profile(logs: dict[str, tuple[Path, float]]) -> None:
    from lt_monitor.collect import scrape

    for name, (path, _) in logs.items():
        profiler = cProfile.Profile()
        with open(os.devnull, "wb") as nowhere:
            profiler.runcall(scrape.scrape, [str(path)], None, nowhere)
        print(f"== {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead of the figures")
    parser.add_argument(
        "--labels", action="store_true", help="print the speeds behind every kind of label instead of the figures"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if arguments.labels:
            return 0 if behind_labels(directory, every_kind=True) else 1
        noise = write(directory / "noise.log", with_noise, 10_000)
        logs = {
            f"a step in {NOISE_LINES_PER_STEP} lines": (noise, NOISE_MB_PER_SECOND),
            "Megatron steps": (write(directory / "megatron.log", megatron, 400_000), STEPS_MB_PER_SECOND),
            "TorchTitan steps": (write(directory / "torchtitan.log", torchtitan, 400_000), STEPS_MB_PER_SECOND),
            "NeMo steps": (write(directory / "nemo.log", nemo, 400_000), STEPS_MB_PER_SECOND),
        }
        if arguments.profile:
            profile(logs)
            return 0
        fine = speeds(logs)
        fine &= behind_labels(directory, every_kind=False)
        fine &= many_files(directory)
        fine &= memory(noise)
        million = write(directory / "million.log", megatron, STEPS)
        seconds = cpu_seconds("summarize", str(million))
        is_met = seconds <= SUMMARY_SECONDS
        fine &= say(f"summarize, {STEPS:,} steps", f"{seconds:.2f} s", f"at most {SUMMARY_SECONDS:.1f}", is_met)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
