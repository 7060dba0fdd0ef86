"""The samples that are found again from data-order.jsonl are those that lt-train has read, token for token."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import nursery
import pytest
from running import SMALL, run_tasks, train

from lt_preprocess.datasets import packing
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order import run_order
from lt_train.process.ports import free_port

SPY = Path(__file__).parents[1] / "reading_spy.py"
LENGTH = 32
ARGUMENTS = (
    *(*SMALL, "--seq-length", str(LENGTH), "--rampup-batch-size", "4", "4", "24", "--global-batch-size", "12"),
    *("--micro-batch-size", "2", "--split", "90,10,0", "--lr", "1e-3", "--eval-iters", "0", "--ranks", "2", "--seed", "5"),
)


def spied(place: Path, *arguments: str) -> list[np.ndarray]:
    """Run lt-train as two ranks; the samples that each has read, int64 [samples, LENGTH + 1]."""
    port = str(free_port())
    files = [place / f"rank{rank}" for rank in range(2)]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SPY": "1"}
    started = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "FILE": str(files[rank])} for rank in range(2)]
    shell = ["bash", "-c", f'exec "{nursery.python()}" "{SPY}" "$FILE" "$@"', "bash", *arguments]
    for result in run_tasks(shell, started):
        assert result.code in (0, 75), result.err
    read = [np.fromfile(file, np.int64).reshape(-1, LENGTH + 1) for file in files]
    for file in files:
        file.unlink()
    return read


def test_they_are_what_the_ranks_have_read(tmp_path: Path, dataset: Dataset, write_dataset: Callable[..., Dataset]) -> None:
    """Through a blend, a growing batch, two ranks, and a resume with more steps, which puts samples into another order."""
    other = write_dataset(tmp_path / "other", first=100, documents=40)
    save = ("--save", str(tmp_path / "run"))
    data = ("0.7", dataset.prefix, "0.3", other.prefix)
    parts = [
        spied(tmp_path, *ARGUMENTS, *save, "--train-iters", "8", "--exit-interval", "4", *data),
        spied(tmp_path, *ARGUMENTS, *save, "--train-iters", "40", "--exit-interval", "7", *data),
    ]
    attempts = run_order.read(tmp_path / "run")
    assert [(attempt.step, attempt.train_iters) for attempt in attempts] == [(0, 8), (4, 40)]
    # The last order is made without the run's own indices.
    caches = [tmp_path / "run", None]
    for read, attempt, cache, steps in zip(parts, attempts, caches, (range(1, 5), range(5, 8)), strict=True):
        samples = attempt.training_samples(cache)
        taken = 0
        for step in steps:
            numbers = attempt.samples_of(step, step)
            assert {attempt.step_of(number) for number in numbers} == {step}
            for begin in range(0, len(numbers), 4):
                for rank in range(2):
                    for row in range(2):
                        expected = samples[numbers[begin + 2 * rank + row]]
                        assert read[rank][taken + row].tolist() == expected.tolist()
                taken += 2
        assert taken == len(read[0]) == len(read[1])
    assert attempts[1].consumed_samples == attempts[0].samples_of(1, 4).stop
    assert "--train-iters" in attempts[1].command and data[-1] in attempts[1].command


def in_order(read: list[np.ndarray], sizes: list[int]) -> list[list[int]]:
    """The samples that two ranks have read in micro batches of two, in the order of the run; `sizes` are those of its steps."""
    rows: list[list[int]] = []
    taken = 0
    for size in sizes:
        for _ in range(size // 4):
            rows += [read[rank][taken + row].tolist() for rank in range(2) for row in range(2)]
            taken += 2
    assert taken == len(read[0]) == len(read[1])
    return rows


@pytest.mark.parametrize("blend", [False, True])
def test_a_longer_run_trains_what_is_left_and_then_further_epochs(
    tmp_path: Path, write_dataset: Callable[..., Dataset], blend: bool
) -> None:
    """40 of 40 samples, more than an epoch, and then 98 in steps of other sizes, with stops between them. All that the ranks have
    read is in the order of the last attempt, and begins with Megatron-LM's order for 40 samples."""
    first, second = (write_dataset(tmp_path / str(skip), first=skip, documents=4) for skip in (0, 50))
    data = ("0.7", first.prefix, "0.3", second.prefix) if blend else (first.prefix,)
    fixed = (*SMALL, "--seq-length", str(LENGTH), "--eval-iters", "0", "--split", "1,0,0", "--save", str(tmp_path / "run"))
    rows: list[list[int]] = []
    for length, size, begin, end in ((40, 8, 0, 5), (98, 4, 5, 8), (98, 12, 8, 11), (98, 4, 11, 13)):
        words = ("--train-samples", str(length), "--global-batch-size", str(size), "--exit-interval", str(end))
        rows += in_order(spied(tmp_path, *fixed, *words, *data), [size] * (end - begin))
    attempts = run_order.read(tmp_path / "run")
    assert [(attempt.earlier_samples, attempt.samples) for attempt in attempts] == [((), 40), *[((40,), 98)] * 3]
    samples = attempts[-1].training_samples(tmp_path / "run")
    assert rows == [samples[number].tolist() for number in range(40 + 12 + 36 + 8)]
    alone = attempts[0].training_samples()
    assert rows[:40] == [alone[number].tolist() for number in range(40)]


def as_stream(place: Path, shards: list[Dataset]) -> str:
    described = [dataclasses.replace(shard, stream="web", part=number) for number, shard in enumerate(shards)]
    end = json.dumps({"v": 1, "kind": "end", "count": len(shards)})
    (place / "list").write_text("".join(json.dumps(manifest.record_of(shard)) + "\n" for shard in described) + end + "\n")
    return f"@{place / 'list'}"


@pytest.mark.parametrize("kind", ["stream", "phases", "packed"])
def test_so_they_are_of_streams_phases_and_packed_datasets(
    tmp_path: Path, write_dataset: Callable[..., Dataset], kind: str
) -> None:
    both = [write_dataset(tmp_path / name, first=50 * number, documents=40) for number, name in enumerate("ab")]
    arguments = (*SMALL, "--seq-length", str(LENGTH), "--eval-iters", "0", "--ranks", "2", "--train-iters", "6")
    data: tuple[str, ...] = (as_stream(tmp_path, both), "--split", "90,10,0", "--shuffle-window", "3000")
    if kind == "phases":
        phases = "{name: one, samples: 16, weights: {a: 1, web: 2}, global-batch-size: 4}, {name: two, samples: 32}"
        (tmp_path / "schedule").write_text(f"phases: [{phases}]")
        data = (both[0].prefix, as_stream(tmp_path, both[1:]), "--split", "1,0,0", "--data-schedule", str(tmp_path / "schedule"))
    elif kind == "packed":
        data = (packing.build(packing.plan(both[0].prefix, str(tmp_path / "packed"), LENGTH)).prefix, "--split", "1,0,0")
    length = () if kind == "phases" else arguments[-2:]
    read = spied(tmp_path, *arguments[:-2], *length, "--save", str(tmp_path / "run"), *data)
    [attempt] = run_order.read(tmp_path / "run")
    samples = attempt.training_samples(tmp_path / "run")
    numbers = attempt.samples_of(1, attempt.train_iters)
    assert len(numbers) == 48 and len(read[0]) == len(read[1]) == 24
    for begin in range(0, 48, 4):
        for rank in range(2):
            for row in range(2):
                expected = samples[numbers[begin + 2 * rank + row]].tolist()
                places = [place for place, token in enumerate(expected) if token >= 0]
                found = read[rank][begin // 2 + row].tolist()
                assert [found[place] for place in places] == [expected[place] for place in places]
    datasets = [[indexed_dataset.Reader(prefix) for prefix in dataset.shards] for dataset in attempt.datasets]
    for number in numbers:
        tokens = []
        for span in samples.spans(number):
            reader = datasets[span.dataset][span.shard]
            start = int(reader.sequence_offsets[span.sequence]) // reader.dtype.itemsize + span.start
            tokens += reader.tokens[start : start + span.length].tolist()
        assert tokens == [token for token in samples[number].tolist() if token >= 0]


def test_the_tokens_of_the_spans_are_those_of_the_samples(tmp_path: Path, dataset: Dataset) -> None:
    result = train(*SMALL, "--train-iters", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    assert result.code == 0, result.err
    [attempt] = run_order.read(tmp_path / "run")
    samples, reader = attempt.training_samples(), indexed_dataset.Reader(dataset.prefix)
    for number in attempt.samples_of(1, 2):
        tokens = []
        for span in samples.spans(number):
            start = int(reader.sequence_offsets[span.sequence]) // reader.dtype.itemsize + span.start
            tokens += reader.tokens[start : start + span.length].tolist()
        assert tokens == samples[number].tolist()


def test_what_cannot_be_found_again(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(NoInput, match=r"data-order\.jsonl: no such file"):
        run_order.read(tmp_path)
    record = run_order.AttemptOrder(0, 0, 80, 1, 8, 8, 10, (run_order.OrderedDataset(dataset.prefix),))
    file = tmp_path / run_order.FILE
    file.write_text(run_order.line(record) + "\n")
    [attempt] = run_order.read(tmp_path)
    with pytest.raises(BadData, match="step 11: the run has steps 1 to 10"):
        run_order.of_step([attempt], 11)
    for changes, message in (
        ({"datasets": []}, "made-up tokens"),
        ({"datasets": [{"prefix": dataset.prefix, "weight": 1.0, "version": {"bin_bytes": 7}}]}, "is another file"),
        ({"datasets": [{"prefix": str(tmp_path / "gone"), "weight": 1.0, "version": {}}]}, "no such file"),
    ):
        file.write_text(json.dumps(record.to_record() | changes) + "\n")
        with pytest.raises((BadData, NoInput), match=message):
            run_order.read(tmp_path)[0].training_samples()
    for content in ("{}", '{"v":2}', "[]", "not JSON", json.dumps(record.to_record() | {"seed": "1"})):
        file.write_text(content + "\n")
        with pytest.raises(BadData, match="line 1: not the data order of an attempt"):
            run_order.read(tmp_path)
    file.write_text(f"{run_order.line(record)[:40]}\n{run_order.line(record)}\n")
    assert run_order.read(tmp_path) == [attempt]
