"""Both schedules of a pipeline give the losses and gradient norms of megatron-core's, bit for bit."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from layouts import Outcome, sampled, train_all
from running import BRIEF, BRIEF_LOSSES

from lt_shared.contracts.manifest import Dataset
from lt_train.ops.deferred_gradients import Queue, compute_or_defer
from lt_train.planner.pipeline_passes import BACKWARD, FORWARD, Pass, Work, order, timeline
from lt_train.train.pipeline_schedule import receives

SMALL = (
    *(*BRIEF, "--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--micro-batch-size", "1", "--global-batch-size", "4"),
)
# Several layers in a stage, or four stages; micro batches that follow each other while all stages work.
DEEP = ("--num-layers", "4", "--global-batch-size", "6")
PP2 = ("--pipeline-model-parallel-size", "2")
PP4 = ("--pipeline-model-parallel-size", "4")
EXPERTS = ("--num-experts", "4", "--moe-aux-loss-coeff", "0.1", "--expert-model-parallel-size", "2")
OVERLAP = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--ranks", "4")
BOTH, DEFERRED = ("1f1b", "zero-bubble"), ("zero-bubble",)
LAYOUTS = sampled(
    {
        "pp2": (BOTH, (*PP2, *DEEP)),
        "pp4": (BOTH, (*PP4, *DEEP)),
        "fewer micro batches than ranks": (BOTH, (*PP4, *DEEP, "--global-batch-size", "2")),
        "bf16": (DEFERRED, (*PP2, "--bf16")),
        "overlap": (BOTH, (*PP2, *OVERLAP, "--ddp-bucket-size", "10000")),
        "sequence parallel": (DEFERRED, (*PP2, "--tensor-model-parallel-size", "2", "--sequence-parallel")),
        "recompute": (DEFERRED, (*PP2, "--recompute-granularity", "full")),
        "experts": (DEFERRED, (*PP2, *EXPERTS, "--ranks", "4")),
        "replay": (DEFERRED, (*PP2, "--check-replay-interval", "2", "--overlap-grad-reduce", "--ranks", "4")),
        "z-loss": (DEFERRED, (*PP2, "--z-loss-coeff", "0.01", "--untie-embeddings-and-output-weights")),
        # Two uses of the output layer's weight in a micro batch, and three.
        "multi-token prediction": (BOTH, (*PP2, "--mtp-num-layers", "1", "--untie-embeddings-and-output-weights")),
        "two predictions": (DEFERRED, (*PP2, "--mtp-num-layers", "2", "--untie-embeddings-and-output-weights")),
        "prediction in bf16": (DEFERRED, (*PP2, "--mtp-num-layers", "1", "--untie-embeddings-and-output-weights", "--bf16")),
    }
)
CASES = [(layout, schedule) for layout, (schedules, _) in LAYOUTS.items() for schedule in schedules]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedules")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)
    commands, by_megatron = {}, []
    for layout, (_, options) in LAYOUTS.items():
        commands[layout] = (*SMALL, *options, *data)
        by_megatron.append(layout)
    for layout, schedule in CASES:
        commands[f"{layout}, {schedule}"] = (*commands[layout], "--pipeline-schedule", schedule)
    return train_all(commands, place, 4, by_megatron=by_megatron)


@pytest.mark.parametrize(("layout", "schedule"), CASES)
def test_losses_are_those_of_megatron_cores_schedule(layout: str, schedule: str, outcomes: dict[str, Outcome]) -> None:
    expected, found = outcomes[layout], outcomes[f"{layout}, {schedule}"]
    assert expected.error is None, expected.error
    assert found.error is None, found.error
    assert found.losses == expected.losses
    assert found.losses.keys() == BRIEF_LOSSES


@pytest.mark.parametrize(("layout", "schedule"), CASES)
def test_gradient_norms_are_those_of_megatron_cores_schedule(
    layout: str, schedule: str, outcomes: dict[str, Outcome], place: Path
) -> None:
    """The loss of a step in float32 hides a difference in the last bits of the gradients before it."""
    assert outcomes[layout].losses
    norms = gradient_norms(place / f"{layout}, {schedule}")
    assert len(norms) == 2
    assert norms == gradient_norms(place / layout)


def gradient_norms(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["grad_norm"] for record in records if "grad_norm" in record]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (4, 9), (4, 2), (7, 20)])
def test_a_receive_begins_before_it_is_needed_and_not_before_it_is_sent(schedule: str, ranks: int, micro_batches: int) -> None:
    orders = [order(schedule, rank, ranks, micro_batches) for rank in range(ranks)]
    times = timeline(orders, (Work(1, 1, 1),) * ranks)
    for rank, passes in enumerate(orders):
        posted = receives(orders, rank)
        for kind, neighbour in ((FORWARD, rank - 1), (BACKWARD, rank + 1)):
            positions = [position for position, kinds in sorted(posted.items()) for each in kinds if each == kind]
            if not 0 <= neighbour < ranks:
                assert not positions
                continue
            assert len(positions) == micro_batches
            for number, position in enumerate(positions):
                sent = times.ends[neighbour][Pass(kind, number)]
                assert position <= passes.index(Pass(kind, number))
                assert times.begins[rank][passes[position]] >= sent


def test_a_buffer_is_complete_when_nothing_of_it_is_left() -> None:
    queue, buffers = Queue(), [torch.zeros(1), torch.zeros(1)]
    for _ in range(2):
        with queue.collect_micro_batch():
            for buffer in buffers:
                compute_or_defer(buffer, partial(buffer.add_, 1))
    assert [float(buffer) for buffer in buffers] == [0, 0]
    completed: list[int] = []
    queue.compute(completed.append)
    assert (completed, [float(buffer) for buffer in buffers]) == ([], [1, 1])
    queue.compute(completed.append)
    assert completed == [buffer.data_ptr() for buffer in buffers]
    compute_or_defer(buffers[0], partial(buffers[0].add_, 1))
    assert float(buffers[0]) == 3
