"""How long checkpoints stop training, and how fast they are written and read, beside dd on the same disk and torch's own saves.

    nox -s bench -- checkpoints                                # on a CPU 2 GiB, on a GPU the 36.5 of 8 layers of Llama 3 8B
    nox -s bench -- checkpoints --gib 8 --ranks 2 --work /fsx  # another size and another disk
    python tests/bench/checkpoints.py --brief --ranks 1        # only --async-save and TorchTitan's way, room for one checkpoint
    python tests/bench/checkpoints.py --restart --ranks 1      # only the first step of a continued run, room for one checkpoint

For each number of ranks, in this order: dd writes as many bytes with direct I/O, one process for each rank; lt-train trains and
saves, while training waits and beside it; dd reads the files; lt-train continues from them, with the page cache dropped (as root;
otherwise by hints) and with it; and torch's async_save takes as many bytes, as its documentation calls it and as TorchTitan does.
A stall is what training waits for, "durable" is until the files are synced. The slow-down is that of the steps that end while the
files are written, beside the median of those before. Before all that, the processor's time for a GB is measured, alone.

With --restart, `lt-train` itself saves after two steps and continues, from files in the page cache: with no machine code from a
run before, with that of the first continued run, so once more, and without the buffer of --async-save. Seconds are from the
process's start to what its log says; on standard error stand its own words on the start, and its warnings. Last with nothing of
the checkpoint in the page cache, beside the seconds in which dd reads its files with direct I/O.
"""

import argparse
import dataclasses
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import page_cache
import report

PROGRAM = Path(__file__).with_name("checkpoint_ranks.py")
GIB = 2**30
# Trained in float32 on a CPU: weight and two moments.
BYTES_A_PARAMETER = {"cpu": 12, "cuda": 14}
LAYER_WIDTH = 1024
STEPS, SAVED_AT = 12, (4, 8)
BLOCK = 16 << 20
# Llama 3 8B: of a layer, and of both embeddings.
LLAMA_LAYER, LLAMA_EMBEDDINGS = 218_112_000, 1_050_673_152
# With --brief: what dd writes at most, and saves of lt-train, of which the first makes the buffer.
BRIEF_DD_BYTES, BRIEF_SAVES = 8 << 30, 2
LONGEST_RUN = 100_000


@dataclasses.dataclass(frozen=True)
class Run:
    """Of one number of ranks. `save_bytes` is the size of a checkpoint."""

    work: Path
    device: str
    ranks: int
    options: tuple[str, ...]
    approximate_bytes: int


def start(run: Run, what: str, directory: Path, **settings: Any) -> dict[str, Any]:
    """What rank 0 found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory.mkdir(exist_ok=True)
    settings |= {"device": run.device, "started": time.time()}
    command = [sys.executable, str(PROGRAM), what, str(directory), json.dumps(settings)]
    place = {"WORLD_SIZE": str(run.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            command, env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(run.ranks)
    ]  # fmt: skip
    outputs = [process.communicate() for process in ranks]
    for process, (_, messages) in zip(ranks, outputs, strict=True):
        if process.returncode:
            raise SystemExit(f"bench: {what} ended with {process.returncode}:\n{messages[-3000:]}")
    found: dict[str, Any] = json.loads(outputs[0][0].splitlines()[-1])
    return found


def options(device: str, size_bytes: int) -> tuple[str, ...]:
    """Of lt-train: a model of about this size, and steps that take little beside it."""
    if device == "cpu":
        parameters = size_bytes / BYTES_A_PARAMETER[device]
        # Of a layer: 4 w^2 of attention, 3 matrices of 4 w^2 of the feed-forward network.
        layers = max(1, round(parameters / (16 * LAYER_WIDTH**2)))
        shape = ("--model", "tiny", "--hidden-size", str(LAYER_WIDTH), "--ffn-hidden-size", str(4 * LAYER_WIDTH),
                 "--num-attention-heads", "8", "--num-query-groups", "8",
                 "--num-layers", str(layers), "--seq-length", "16")  # fmt: skip
    else:
        layers = max(1, round((size_bytes / BYTES_A_PARAMETER[device] - LLAMA_EMBEDDINGS) / LLAMA_LAYER))
        shape = ("--model", "llama3-8b", "--num-layers", str(layers), "--seq-length", "4096", "--bf16")
    return (*shape, "--device", device, "--micro-batch-size", "1", "--mock-data", "--eval-iters", "1", "--log-interval", "1")


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def dd_write(run: Run, source: Path, size_bytes: int) -> float:
    """Seconds in which a dd for each rank writes its part of `size_bytes`, from a file in memory."""
    targets = [run.work / f"dd{rank}" for rank in range(run.ranks)]
    count = max(1, size_bytes // run.ranks // BLOCK)
    words = [
        "dd",
        f"if={source}",
        f"bs={BLOCK}",
        f"count={count}",
        "oflag=direct",
        "conv=fsync",
        "iflag=fullblock",
        "status=none",
    ]
    seconds = timed(lambda: at_once([[*words, f"of={target}"] for target in targets]))
    for target in targets:
        target.unlink()
    return seconds * size_bytes / (count * run.ranks * BLOCK)


def dd_read(run: Run, files: list[Path], *flags: str) -> float:
    """Seconds in which dd reads the files, as many at a time as there are ranks."""
    parts = [files[rank :: run.ranks] for rank in range(run.ranks)]
    script = f'for file in "$@"; do dd if="$file" of=/dev/null bs={BLOCK} status=none {" ".join(flags)}; done'
    return timed(lambda: at_once([["sh", "-ec", script, "sh", *map(str, part)] for part in parts if part]))


def at_once(commands: list[list[str]]) -> None:
    for process in [subprocess.Popen(command) for command in commands]:
        if process.wait():
            raise SystemExit(f"bench: {process.args} ended with {process.returncode}")


def records(directory: Path) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Of a run: what was logged of its checkpoints, and the seconds of each step."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["step_seconds"] for line in lines if line["kind"] == "step"}
    return [line for line in lines if line["kind"] == "checkpoint"], steps


def slowdown(quiet: list[float], beside: list[float]) -> str:
    if not quiet or not beside:
        return "no step ended"
    return f"{100 * (statistics.median(beside) / statistics.median(quiet) - 1):+.0f}%"


def beside_save(steps: dict[int, float], save: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds of the steps before the first save, and of those that ended while `save` was written."""
    at, left, found = save["step"], save["seconds"] - save["waited_seconds"], []
    for step in sorted(step for step in steps if step > at):
        left -= steps[step]
        if left < 0:
            break
        found.append(steps[step])
    return [seconds for step, seconds in steps.items() if 1 < step <= SAVED_AT[0]], found


def measure(run: Run, peers: bool) -> Iterator[tuple[str, ...]]:
    """Rows of the table."""
    gb = 1e9
    saving = ("--train-iters", str(STEPS), "--save-interval", str(SAVED_AT[0]), "--keep-last", "1")
    source, block = run.work / "source", os.urandom(BLOCK)
    with source.open("wb") as file:
        for _ in range(-(-run.approximate_bytes // run.ranks // BLOCK)):
            file.write(block)
    # So that it is read from memory.
    at_once([["dd", f"if={source}", "of=/dev/null", f"bs={BLOCK}", "status=none"]])
    rate = run.approximate_bytes / gb / dd_write(run, source, run.approximate_bytes)
    yield (f"dd oflag=direct, {run.ranks} at a time", "", "", f"{rate:.2f}", "1.00", "")
    for name, more in (("lt-train", ()), ("lt-train --async-save", ("--async-save",))):
        directory = run.work / f"run{len(more)}"
        start(run, "ours", directory, options=[*run.options, *saving, *more])
        saves, steps = records(directory)
        save = saves[SAVED_AT.index(8)]
        files = sorted((directory / f"iter_{STEPS:07d}").glob("*.distcp"))
        size = sum(path.stat().st_size for path in files)
        quiet, beside = beside_save(steps, save)
        cells = (f"{save['waited_seconds']:.2f}", f"{save['seconds']:.2f}", f"{size / gb / save['seconds']:.2f}")
        yield (name, *cells, f"{size / gb / save['seconds'] / rate:.2f}", slowdown(quiet, beside) if more else "")
    for name, caches in (("cold", True), ("warm", False)):
        if caches:
            page_cache.drop(directory)
        direct = ("iflag=direct",) if caches else ()
        read = size / gb / dd_read(run, files, *direct)
        yield (f"dd reads, {name}", "", "", f"{read:.2f}", "1.00", "")
        if caches:
            page_cache.drop(directory)
        again = run.work / f"again-{name}"
        more = ("--load", str(directory), "--train-iters", str(STEPS + 1), "--save-interval", "1000", "--no-save-optim")
        found = start(run, "ours", again, options=[*run.options, *more])
        cells = ("", f"first step after {found['first_step_seconds']:.1f} s", f"{size / gb / found['load_seconds']:.2f}")
        yield (f"lt-train loads, {name}", *cells, f"{size / gb / found['load_seconds'] / read:.2f}", "")
        shutil.rmtree(again)
    for path in run.work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for what in ("dcp", "torchtitan") if peers else ():
        directory = run.work / what
        found = start(run, what, directory, bytes=size)
        cells = (f"{found['stall']:.2f}", f"{found['seconds']:.2f}", f"{size / gb / found['seconds']:.2f}")
        label = {"dcp": "torch's async_save", "torchtitan": "TorchTitan's async_with_pinned_mem"}[what]
        yield (label, *cells, f"{size / gb / found['seconds'] / rate:.2f}", slowdown(found["quiet"], found["beside"]))
        shutil.rmtree(directory)


def brief(run: Run, has_peers: bool) -> Iterator[tuple[str, ...]]:
    """Rows of the same table, of saves beside training only; a save begins when the one before is durable.

    The stall includes what the step after the save takes longer, whose update waits for the copies to host memory.
    """
    gb = 1e9
    probe = min(run.approximate_bytes, BRIEF_DD_BYTES)
    source, block = run.work / "source", os.urandom(BLOCK)
    with source.open("wb") as file:
        for _ in range(-(-probe // run.ranks // BLOCK)):
            file.write(block)
    at_once([["dd", f"if={source}", "of=/dev/null", f"bs={BLOCK}", "status=none"]])
    rate = probe / gb / dd_write(run, source, probe)
    source.unlink()
    yield (f"dd oflag=direct, {run.ranks} at a time, {probe / GIB:.0f} GiB", "", "", f"{rate:.2f}", "1.00", "")
    directory = run.work / "run"
    often = ("--train-iters", str(LONGEST_RUN), "--save-interval", str(LONGEST_RUN), "--async-save")
    started = start(run, "ours", directory, options=[*run.options, *often], saves=BRIEF_SAVES)
    saves, steps = records(directory)
    size = sum(path.stat().st_size for path in directory.glob("iter_*/*.distcp"))
    quiet = [seconds for step, seconds in steps.items() if 2 < step <= saves[0]["step"]]
    usual = statistics.median(quiet)
    for number, (save, call_seconds) in enumerate(zip(saves, started["save_seconds"], strict=True), 1):
        _, beside = beside_save(steps, save)
        first = beside[0] if beside else usual
        stall = max(call_seconds, save["waited_seconds"]) + max(0.0, first - usual)
        speed = size / gb / save["seconds"]
        cells = (f"{stall:.2f}", f"{save['seconds']:.2f}", f"{speed:.2f}", f"{speed / rate:.2f}")
        yield (f"lt-train --async-save, save {number}", *cells, slowdown(quiet, beside))
        waited = f"the call took {call_seconds:.2f} s, all waiting {save['waited_seconds']:.2f} s"
        some = " ".join(f"{seconds:.3f}" for seconds in beside[:6])
        steps_text = f"the next steps {some or first} s, a quiet step {usual:.3f} s"
        print(f"bench: save {number}: {waited}, {steps_text}", file=sys.stderr, flush=True)
    print(f"bench: {size / GIB:.1f} GiB, first step {started['first_step_seconds']:.1f} s after the start", file=sys.stderr)
    shutil.rmtree(directory)
    if has_peers:
        directory = run.work / "torchtitan"
        found = start(run, "torchtitan", directory, bytes=size, saves=1, step_seconds=usual)
        cells = (f"{found['stall']:.2f}", f"{found['seconds']:.2f}", f"{size / gb / found['seconds']:.2f}")
        name = "torch's async_save, pinned stager and process"
        yield (name, *cells, f"{size / gb / found['seconds'] / rate:.2f}", slowdown(found["quiet"], found["beside"]))
        shutil.rmtree(directory)


# In what a continued run writes: its ranks are about to start, have imported what they need and tried kernels, have loaded.
MILESTONES = {
    "start of ranks": "memory: ", "imports, trials": "- arguments -", "loaded": "successfully loaded checkpoint",
    "first step": " iteration ",
}  # fmt: skip


def continued(run: Run, options: list[str], code: Path, is_cached: bool = True) -> dict[str, float]:
    """Seconds from the start of `lt-train` to the milestones, with machine code kept below `code`; then it is ended."""
    code.mkdir(exist_ok=True)
    # Ended after the same step each time, it would be refused.
    (run.work / "run/attempts.jsonl").unlink(missing_ok=True)
    kept = {"XDG_CACHE_HOME": str(code), "TORCHINDUCTOR_CACHE_DIR": str(code / "inductor")}
    if not is_cached:
        page_cache.drop_files(run.work / "run")
    for path in (run.work / "run").rglob("*.distcp") if is_cached else ():
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK):
                pass
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lt_train", *options], env=os.environ | kept, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr
    found: dict[str, float] = {}
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "started in" in line or "warning" in line:
            print(f"bench: {line.strip()}", file=sys.stderr, flush=True)
        name, sign = list(MILESTONES.items())[len(found)]
        if sign in line:
            found[name] = time.perf_counter() - begin
            if len(found) == len(MILESTONES):
                break
    process.kill()
    process.wait()
    if len(found) < len(MILESTONES):
        raise SystemExit(f"bench: a continued run has ended early:\n{''.join(lines[-20:])}")
    return found


def restart(run: Run) -> Iterator[tuple[str, ...]]:
    """Rows of the table of --restart."""
    directory, code = run.work / "run", run.work / "code"
    usual = [*run.options, "--ranks", str(run.ranks), "--save", str(directory), "--save-interval", str(LONGEST_RUN)]
    subprocess.run([sys.executable, "-m", "lt_train", *usual, "--train-iters", "2"], check=True, stdout=sys.stderr)
    size = sum(path.stat().st_size for path in directory.glob("iter_*/*.distcp"))
    yield (f"{size / GIB:.1f} GiB", *("" for _ in MILESTONES))
    kept = "machine code kept"
    for name, *more in ((f"no {kept}",), (kept,), (f"{kept}, again",), (f"{kept}, no buffer page-locked", "--no-async-save")):
        found = continued(run, [*usual, "--train-iters", str(LONGEST_RUN), *more], code)
        yield (name, *(f"{found[milestone]:.1f}" for milestone in MILESTONES))
    page_cache.drop_files(directory)
    read_seconds = dd_read(run, sorted(directory.glob("iter_*/*.distcp")), "iflag=direct")
    yield ("dd iflag=direct reads the files in", "", "", f"{read_seconds:.1f}", "")
    found = continued(run, [*usual, "--train-iters", str(LONGEST_RUN)], code, is_cached=False)
    yield (f"{kept}, checkpoint not cached", *(f"{found[milestone]:.1f}" for milestone in MILESTONES))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure checkpoints beside dd and torch's own.")
    parser.add_argument("--gib", type=float, help="of a checkpoint, by default 2 on a CPU and 36.5 on a GPU")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if Path("/dev/nvidia0").exists() else "cpu")
    parser.add_argument("--work", type=Path, help="directory on the disk to measure, with room for three checkpoints")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--brief", action="store_true", help="only dd, --async-save and torch's save with a pinned stager")
    parser.add_argument("--restart", action="store_true", help="only how soon a continued run has made its first step")
    arguments = parser.parse_args()
    size = int((arguments.gib or (2 if arguments.device == "cpu" else 36.5)) * GIB)
    columns = ("what", "stall s", "durable s", "GB/s", "of dd", "steps beside")
    if not (arguments.brief or arguments.restart):
        with tempfile.TemporaryDirectory(dir=arguments.work, prefix="bench-checkpoints-") as place:
            found = start(Run(Path(place), "cpu", 1, (), 0), "processor", Path(place))
        rows = [(name, f"{seconds:.2f}") for name, seconds in found.items()]
        print(report.Table("processor seconds for a GB, with checksums", ("what", "s"), 1, rows, [report.machine()]).plain())
    for ranks in arguments.ranks:
        more = ("--use-distributed-optimizer",) if ranks > 1 else ()
        with tempfile.TemporaryDirectory(dir=arguments.work, prefix="bench-checkpoints-") as place:
            usual = (*options(arguments.device, size), "--global-batch-size", str(ranks), *more)
            run = Run(Path(place), arguments.device, ranks, usual, size)
            title = f"checkpoints of about {size / GIB:.1f} GiB, {ranks} rank(s), {arguments.device}"
            table = report.Table(title, ("seconds from the start to", *MILESTONES) if arguments.restart else columns, 1)
            has_peers = not arguments.without_peers
            rows = restart(run) if arguments.restart else brief(run, has_peers) if arguments.brief else measure(run, has_peers)
            for row in rows:
                table.rows.append(row)
                print("bench:", *row, file=sys.stderr, flush=True)
            table.notes.append(f"{report.machine()} Load {os.getloadavg()[0]:.0f}.")
            print(table.plain(), flush=True)


if __name__ == "__main__":
    main()
