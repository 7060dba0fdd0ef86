"""How fast lt-train gets at its data: the sample index, shuffled samples from a cold disk and from a store, and the loop itself.

    nox -s bench -- train-data                  # 100 million documents; 4 GB on the disk of --work, about eight minutes
    nox -s bench -- train-data --quick          # 5 million documents
    nox -s bench -- train-data --only store     # one of index, samples, store, loop

Each figure is of a process of its own. The index is of made-up lengths, 500 tokens on average, beside a sparse .bin; the samples
are read from real bytes that were put out of the page cache before. Exit code 1 when a limit is missed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import train_data_store

from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import HEADER, MAGIC, VERSION, bin_path, idx_path
from lt_shared.data.sample_order.parts import DatasetPart
from lt_shared.data.sample_order.samples import DatasetSamples, StoredSequences
from lt_train.data.index_cache import make_once
from lt_train.data.loader import read_ahead
from lt_train.process.ports import free_port

GIB = 1 << 30
UINT16 = 8
LONGEST = 1000
LENGTHS_AT_ONCE = 1 << 22
SEQUENCE_LENGTH, SEED = 4096, 1234
MICRO_BATCH, THREADS = 4, 2
READ_SECONDS = 10.0
INDEX_SECONDS, INDEX_GIB, REUSE_SECONDS = 30.0, 4.0, 3.0
COLD_TOKENS_PER_SECOND = 2_000_000
LOOP_SHARE = 0.02
# Of Llama 3 8B's width, 8 layers, 32,768 tokens on an H200: tools/train/PERFORMANCE.md.
GPU_STEP_SECONDS, SHARE_OF_GPU_STEP = 0.81, 0.001
# megatron-core warns of every optional package that is not there.
QUIET = {**os.environ, "PYTHONWARNINGS": "ignore"}
LOOP = ("--model", "tiny", "--seq-length", "1024", "--micro-batch-size", "4", "--device", "cpu", "--steps", "8", "--json")
SMALL = (
    *("--model", "tiny", "--num-layers", "1", "--hidden-size", "64", "--ffn-hidden-size", "128", "--num-attention-heads", "4"),
    *("--seq-length", "64", "--micro-batch-size", "4", "--global-batch-size", "4", "--train-iters", "120", "--eval-iters", "0"),
    *("--device", "cpu", "--save-interval", "1000"),
)


def write_index(prefix: str, documents: int) -> int:
    """The .idx of `documents` sequences of 1 to LONGEST - 1 tokens; returns how many these are."""
    generator = np.random.default_rng(0)
    counts = [min(LENGTHS_AT_ONCE, documents - start) for start in range(0, documents, LENGTHS_AT_ONCE)]
    lengths = [generator.integers(1, LONGEST, size=count, dtype=np.int32) for count in counts]
    tokens = 0
    with open(idx_path(prefix), "wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, UINT16, documents, documents + 1))
        for block in lengths:
            file.write(block.data)
        for block in lengths:
            ends = tokens + np.cumsum(block, dtype=np.int64)
            file.write(((ends - block) * 2).data)
            tokens = int(ends[-1])
        for start in range(0, documents + 1, LENGTHS_AT_ONCE):
            file.write(np.arange(start, min(documents + 1, start + LENGTHS_AT_ONCE)).data)
    return tokens


def write_sparse(prefix: str, tokens: int) -> None:
    with open(bin_path(prefix), "wb") as file:
        file.truncate(2 * tokens)


def write_tokens(prefix: str, tokens: int) -> None:
    generator = np.random.default_rng(0)
    with open(bin_path(prefix), "wb") as file:
        for start in range(0, tokens, LENGTHS_AT_ONCE):
            size = min(LENGTHS_AT_ONCE, tokens - start)
            file.write(generator.integers(0, 1 << 16, size=size, dtype=np.uint16).data)


def put_out_of_cache(directory: Path) -> float:
    """Of the pages of all files below, the share that a look without waiting then finds absent."""
    absent = looked = 0
    for path in (path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for place in range(0, path.stat().st_size, max(4096, path.stat().st_size // 100)):
                looked += 1
                try:
                    os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
                except BlockingIOError:
                    absent += 1
    return absent / looked


def open_samples(prefix: str, cache: Path) -> Any:
    """What the first rank does before its first step, for 0.9 epochs of the dataset's samples."""
    sequences = StoredSequences(prefix)
    count = len(sequences.lengths)
    wanted = int(0.9 * LONGEST / 2 * count / SEQUENCE_LENGTH)
    part = DatasetPart(prefix, sequences, range(int(0.99 * count)), wanted, SEQUENCE_LENGTH, SEED)
    return DatasetSamples.load(sequences, make_once(cache, part.name(), part.make))


def measure_index(prefix: str, cache: Path) -> dict[str, float]:
    began = time.perf_counter()
    open_samples(prefix, cache)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}


def measure_samples(prefix: str, cache: Path) -> dict[str, float]:
    samples = open_samples(prefix, cache)
    numbers = (range(start, start + MICRO_BATCH) for start in range(0, len(samples) - MICRO_BATCH, MICRO_BATCH))
    batches: Iterator[torch.Tensor] = read_ahead(samples, numbers, THREADS, torch.device("cpu"))
    next(batches)
    tokens, began = 0, time.perf_counter()
    for batch in batches:
        tokens += batch.numel()
        if time.perf_counter() - began > READ_SECONDS:
            break
    return {"tokens_per_second": tokens / (time.perf_counter() - began)}


MEASUREMENTS: dict[str, Callable[[str, Path], dict[str, float]]] = {"index": measure_index, "samples": measure_samples}


def measured(kind: str, prefix: str, cache: Path) -> dict[str, float]:
    """In a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, prefix, str(cache)]
    figures: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, env=QUIET).stdout.splitlines()[-1]
    )
    return figures


def index(work: Path, documents: int) -> Iterator[tuple[str, bool]]:
    prefix, cache = str(work / "index"), work / "index-cache"
    write_sparse(prefix, write_index(prefix, documents))
    built, reused = (measured("index", prefix, cache) for _ in range(2))
    began = time.perf_counter()
    indexed_dataset.Reader(prefix)
    checked = time.perf_counter() - began
    yield (
        f"sample index of {documents:,} documents: {built['seconds']:.1f} s, {built['gib']:.2f} GiB",
        built["seconds"] < INDEX_SECONDS and built["gib"] < INDEX_GIB,
    )
    yield f"found again by the next start: {reused['seconds']:.2f} s", reused["seconds"] < REUSE_SECONDS
    yield f"check of every entry of the .idx before a run: {checked:.2f} s", True


def samples(work: Path, documents: int) -> Iterator[tuple[str, bool]]:
    prefix, cache = str(work / "samples"), work / "samples-cache"
    write_tokens(prefix, write_index(prefix, documents))
    measured("index", prefix, cache)
    for state in ("cold", "warm"):
        absent = put_out_of_cache(work) if state == "cold" else 0.0
        rate = measured("samples", prefix, cache)["tokens_per_second"]
        cached = f"{state}, {absent:.0%} of the pages absent"
        yield f"shuffled samples, {cached}: {rate / 1e6:.1f} million tokens/s", rate > COLD_TOKENS_PER_SECOND


def store(work: Path, seconds: int) -> Iterator[tuple[str, bool]]:
    return train_data_store.store(work, lambda prefix, documents: write_tokens(prefix, write_index(prefix, documents)), seconds)


def loop(work: Path, documents: int) -> Iterator[tuple[str, bool]]:
    command = [Path(sys.executable).with_name("lt-train"), "bench", *LOOP]
    figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    share, waiting = figures["loop_share"], figures["data_share"]
    yield f"the loop's own Python: {share:.2%} of a step of {figures['step_seconds']:.2f} s", share < LOOP_SHARE
    yield f"waiting for data: {waiting:.2%} of a step", waiting < LOOP_SHARE


def write_stream(work: Path, name: str) -> str:
    """A finished stream of two shards, as an argument of lt-train."""
    prefixes = [str(work / f"{name}{part}") for part in range(2)]
    tokens = [write_index(prefix, 100) for prefix in prefixes]
    for prefix, count in zip(prefixes, tokens, strict=True):
        write_sparse(prefix, count)
    shards = [
        Dataset(prefix, 100, count, "uint16", 2048, weight=float(count), stream=str(work / name), part=part)
        for part, (prefix, count) in enumerate(zip(prefixes, tokens, strict=True))
    ]
    lines = [*map(manifest.record_of, shards), {"v": 1, "kind": "end", "count": len(shards)}]
    (work / f"{name}.list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"@{work / name}.list"


def loop_with_everything(work: Path, documents: int) -> Iterator[tuple[str, bool]]:
    """Of a blend of streams, with a skip list, the loss by source and of each sample."""
    (work / "skip").write_text("10-12\n40\n")
    data = ("0.5", write_stream(work, "one"), "0.5", write_stream(work, "two"))
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = {**QUIET, **rank, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    options = ("--skip-samples", work / "skip", "--log-sample-loss", "--save", work / "run", *data)
    command = [sys.executable, Path(__file__).with_name("loop_cost.py"), *SMALL, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    share = found["loop"] / 1e3 / GPU_STEP_SECONDS
    of_samples = f"{found['sample_losses']:.2f} ms of it for losses of samples"
    yield (
        f"the loop with two streams and all that it can log: {found['loop']:.2f} ms of processor time a step, {of_samples};"
        f" {share:.3%} of a step of {GPU_STEP_SECONDS} s",
        share < SHARE_OF_GPU_STEP,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench -- train-data", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="a directory on the disk to measure (default: the system's temporary one)")
    parser.add_argument("--quick", action="store_true", help="fewer documents")
    parser.add_argument("--only", choices=("index", "samples", "store", "loop"))
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "PREFIX", "CACHE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        kind, prefix, cache = chosen.measure
        print(json.dumps(MEASUREMENTS[kind](prefix, Path(cache))))
        return 0
    missed = 0
    with tempfile.TemporaryDirectory(dir=chosen.work) as directory:
        sections = (
            (index, 5_000_000 if chosen.quick else 100_000_000),
            (samples, 400_000 if chosen.quick else 2_000_000),
            (store, 10 if chosen.quick else 30),
            (loop, 0),
            (loop_with_everything, 0),
        )
        for section, size in sections:
            if chosen.only not in (None, section.__name__):
                continue
            place = Path(directory) / section.__name__
            place.mkdir()
            for text, is_within in section(place, size):
                missed += not is_within
                print(text if is_within else f"{text}: MISSED", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
