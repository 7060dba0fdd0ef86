"""Samples from an S3 store, each of whose answers takes 50 ms, beside the same ones from the local disk.

The store is moto's server behind a proxy that holds every answer back. The loader is lt-train's, for one rank whose steps take as
long as 64,000 tokens/s leave them, and once as fast as it can. Documents have 500 tokens on average and are shuffled, so that a
sample of 4096 tokens reads at nine places; they are in many small objects, because moto copies an object for every range of it.
Without room in the cache each place is a request, and moto's one process is what is measured: no limit is set for that.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "hostile"))

LATENCY_SECONDS = 0.05
TOKENS_PER_SECOND = 64_000
LARGEST_LOSS = 0.05
OBJECTS, DOCUMENTS_OF_OBJECT = 16, 4_000
SEQUENCE_LENGTH, MICRO_BATCH = 4096, 4
WORDS = (
    *(
        "--model",
        "tiny",
        "--max-position-embeddings",
        "4096",
        "--device",
        "cpu",
        "--vocab-size",
        "65536",
        "--split",
        "1,0,0",
        "--eval-iters",
        "0",
    ),
    *("--seq-length", str(SEQUENCE_LENGTH), "--micro-batch-size", str(MICRO_BATCH), "--global-batch-size", "16"),
)


class SlowStore:
    """Forwards connections to `port`, and gives each answer on after LATENCY_SECONDS."""

    def __init__(self, port: int):
        self.port = 0
        self._target = port
        self._is_open = threading.Event()
        threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True).start()
        self._is_open.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0, backlog=128)
        self.port = server.sockets[0].getsockname()[1]
        self._is_open.set()
        await server.serve_forever()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_store, to_store = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(_pass_on(reader, to_store, 0.0), _pass_on(from_store, writer, LATENCY_SECONDS))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            due, content = await waiting.get()
            await asyncio.sleep(due - time.monotonic())
            if not content:
                writer.close()
                return
            writer.write(content)
            await writer.drain()

    writing = asyncio.create_task(write())
    while content := await reader.read(1 << 18):
        waiting.put_nowait((time.monotonic() + delay, content))
    waiting.put_nowait((time.monotonic() + delay, b""))
    await writing


def measure(tokens_per_second: float, seconds: float, words: list[str]) -> dict[str, float]:
    """What a rank gets whose steps take their tokens / `tokens_per_second`, none at 0, from its first batch on."""
    import torch

    from lt_train.cli import command
    from lt_train.config.settings.data import training_datasets
    from lt_train.data import blended_dataset, loader, micro_batches, remote_datasets
    from lt_train.data.blended_dataset import SampleOrder
    from lt_train.planner.resolve import resolve_run_config

    steps = str(int(1 + 2 * seconds * max(tokens_per_second, 40_000_000) / (16 * SEQUENCE_LENGTH)))
    context = command.make_context("lt-train", [*WORDS, "--train-iters", steps, *words])
    options = {key: value for key, value in context.params.items() if key not in ("data", "dry_run")}
    config = resolve_run_config(options, training_datasets(context.params["data"], options))
    vocab_size = config.architecture.vocab_size
    config = dataclasses.replace(config, data=remote_datasets.fetch(config.data, vocab_size))
    samples = blended_dataset.build(SampleOrder.from_config(config), None).training
    assert samples is not None
    planned = micro_batches.unskipped(MICRO_BATCH, 0, 1, range(len(samples)))
    called = time.perf_counter()
    batches = loader.Loader(config.data, config.batches, vocab_size, torch.device("cpu")).batches(samples, planned, True)
    next(batches)
    began, processor = time.perf_counter(), time.process_time()
    due, tokens, waited = began, 0, 0.0
    while time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        tokens += next(batches)["tokens"].numel()
        waited += time.perf_counter() - asked
        if tokens_per_second:
            due = max(due + MICRO_BATCH * SEQUENCE_LENGTH / tokens_per_second, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
    passed = time.perf_counter() - began
    return {
        "tokens_per_second": tokens / passed,
        "waiting": waited / passed,
        "processor": (time.process_time() - processor) / passed,
        "first_seconds": began - called,
    }


def measured(tokens_per_second: float, seconds: float, *words: str, **variables: str) -> dict[str, float]:
    """In a process of its own."""
    command = [sys.executable, __file__, str(tokens_per_second), str(seconds), *words]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **variables}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def store(work: Path, write: Any, seconds: float) -> Iterator[tuple[str, bool]]:
    """`write` makes a dataset of so many documents at a prefix."""
    import s3_server

    names = [f"part{number:02d}" for number in range(OBJECTS)]
    (work / "data").mkdir()
    for name in names:
        write(str(work / "data" / name), DOCUMENTS_OF_OBJECT)
    with s3_server.running(work / "log") as server:
        bucket = s3_server.upload(work / "data", f"{s3_server.new_bucket('measured')}/data")
        slow = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{SlowStore(server.port).port}"}
        places = {
            "local disk": (str(work / "data"), ()),
            "store, empty cache": (bucket, (str(work / "cache"),)),
            "store, cache of the run before": (bucket, (str(work / "cache"),)),
            "store, no room in the cache": (bucket, (str(work / "none"), "--object-storage-cache-gib", "1e-9")),
        }
        for rate in (TOKENS_PER_SECOND, 0):
            local = 0.0
            for name, (place, cache) in places.items():
                options = ("--object-storage-cache-path", *cache) if cache else ()
                blend = [word for each in names for word in ("1", f"{place}/{each}")]
                asked = len(server.requests())
                found = measured(rate, seconds if rate else seconds / 6, *options, *blend, **slow)
                local = local or found["tokens_per_second"]
                ratio = found["tokens_per_second"] / local
                pace = f"at {rate:,} tokens/s" if rate else "as fast as it can"
                asked = len(server.requests()) - asked
                yield (
                    f"{name}, {pace}: {found['tokens_per_second']:,.0f} tokens/s, {ratio:.1%} of the local disk's;"
                    f" waits {found['waiting']:.1%}, {found['processor']:.0%} of a core,"
                    f" first batch after {found['first_seconds']:.2f} s, {asked} requests",
                    not rate or "no room" in name or ratio >= 1 - LARGEST_LOSS,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens_per_second", type=float)
    parser.add_argument("seconds", type=float)
    chosen, words = parser.parse_known_args()
    print(json.dumps(measure(chosen.tokens_per_second, chosen.seconds, words)))


if __name__ == "__main__":
    main()
