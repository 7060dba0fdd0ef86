"""What a rank trains on: its part of every micro batch, with the documents told apart as in Megatron."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import synthetic
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids
from running import SMALL, losses, train

from lt_shared.console import IoFailure
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import run_order
from lt_shared.data.sample_order.samples import StoredSequences
from lt_train.data import loader
from lt_train.models.mixers.core_attention import document_numbers

CPU = torch.device("cpu")
SIZES = ("--seq-length", "16", "--micro-batch-size", "2", "--global-batch-size", "8", "--train-iters", "6")
WHOLE = ("--split", "1,0,0", "--eval-iters", "0")


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Be a data-parallel rank of so many."""

    def set_rank(rank: int, ranks: int) -> None:
        monkeypatch.setattr(parallel_state, "get_data_parallel_rank", lambda: rank)
        monkeypatch.setattr(parallel_state, "get_data_parallel_world_size", lambda: ranks)

    return set_rank


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_ranks_share_every_step_in_order(threads: int, tmp_path: Path, become: Callable[[int, int], None]) -> None:
    dataset = synthetic.write(tmp_path / "data", [30] * 40)
    plan = synthetic.plan(*SIZES, *WHOLE, "--num-workers", str(threads), datasets=(dataset,))
    train, _, _ = synthetic.samples(plan, str(tmp_path / "cache"))
    assert train is not None
    seen = []
    for rank in range(2):
        become(rank, 2)
        seen.append(list(synthetic.training(plan, train, 8, 1)))
    first = [number for pair in zip(*seen, strict=False) for batch in pair for number in batch["tokens"]]
    for place, tokens in enumerate(first):
        np.testing.assert_array_equal(tokens, train[8 + place][:-1])
    batch = seen[1][0]
    np.testing.assert_array_equal(batch["labels"], np.stack([train[10][1:], train[11][1:]]))
    np.testing.assert_array_equal(batch["position_ids"], np.stack([np.arange(16)] * 2))
    assert batch.keys() == {"tokens", "labels", "position_ids", "loss_mask"}
    assert {key: (value.dtype, value.shape) for key, value in batch.items()} == {
        "tokens": (torch.int64, (2, 16)),
        "labels": (torch.int64, (2, 16)),
        "position_ids": (torch.int64, (2, 16)),
        "loss_mask": (torch.float32, (2, 16)),
    }


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3))
def test_documents_equal_megatrons(marks: list[list[bool]]) -> None:
    ends = torch.tensor(marks)
    borders, positions = loader.document_borders(ends), loader.positions_in_documents(ends)
    numbers = document_numbers(borders, ends.shape[1])
    # As kernels take them: the first document begins with the sample, and the last, perhaps an empty one, ends with it.
    assert borders[:, 0].eq(0).all() and borders[:, -1].eq(ends.shape[1]).all() and not (borders.diff() < 0).any()
    for sample, sample_ends in enumerate(ends):
        hidden, _, expected = _get_ltor_masks_and_position_ids(sample_ends.long(), 1, True, True, False, True)
        assert positions[sample].tolist() == expected.tolist()
        same = numbers[sample][:, None] == numbers[sample][None, :]
        assert torch.equal(same.tril(), ~hidden[0])


def test_a_batch_with_documents(tmp_path: Path, become: Callable[[int, int], None]) -> None:
    become(0, 1)
    plan = synthetic.plan(
        *SIZES, "--seq-length", "1024", "--mock-data", "--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"
    )
    train, _, _ = synthetic.samples(plan, None)
    assert train is not None
    found = 0
    for _, batch in zip(range(12), synthetic.training(plan, train), strict=False):
        ends = batch["tokens"] == synthetic.EOD
        found += int(ends.sum())
        assert torch.equal(batch["loss_mask"], (~ends).float())
        assert torch.equal(batch["documents"], loader.document_borders(ends))
        assert torch.equal(batch["position_ids"], loader.positions_in_documents(ends))
    assert found


def test_a_file_that_shrinks_during_the_run_is_noticed(tmp_path: Path) -> None:
    dataset = synthetic.write(tmp_path / "data", [30] * 4)
    sequences = StoredSequences(dataset.prefix)
    assert len(sequences.read(np.array([3, 0]), 2, 7)) == 28 + 7
    os.truncate(f"{dataset.prefix}.bin", 200)
    with pytest.raises(IoFailure, match=r"data\.bin: ends at byte 200"):
        sequences.read(np.array([3, 0]), 2, 7)


# Everything at once: a blend, a growing batch, documents kept apart, a resume in the middle of the growth, a test part.
GROWING = (
    *SMALL,
    *("--rampup-batch-size", "2", "2", "24", "--train-samples", "47", "--save-interval", "4", "--split", "80,10,10"),
    *("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss", "--num-workers", "1", "--lr", "1e-3"),
)


def consumed_samples(directory: Path) -> list[int]:
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [record["consumed_samples"] for record in records if record["kind"] == "step"]


def test_a_run_resumes_its_place_in_the_data(tmp_path: Path, dataset: Dataset, write_dataset: Callable[..., Dataset]) -> None:
    other = write_dataset(tmp_path / "other", first=100, documents=40)
    arguments = (*GROWING, "--save", str(tmp_path / "run"), "--data-path", "2", dataset.prefix, "1", other.prefix)
    whole = train(*arguments)
    assert whole.code == 0, whole.err
    found = losses(tmp_path / "run")
    last = max(step for kind, step in found if kind == "step")
    assert consumed_samples(tmp_path / "run") == [2, 4, 6, 8, 12, 16, 22, 28, 36, 44]
    for path in (tmp_path / "run").glob("iter_*"):
        if path.name != "iter_0000004":
            shutil.rmtree(path)
    resumed = train(*arguments)
    assert resumed.code == 0, resumed.err
    assert consumed_samples(tmp_path / "run")[last:] == [12, 16, 22, 28, 36, 44]
    assert losses(tmp_path / "run") == found
    assert "on test set" in resumed.err
    # torch's and megatron-core's of each other.
    assert "Warning" not in whole.err + resumed.err
    check_scheduled_sizes(tmp_path, arguments[-5:], found)


def check_scheduled_sizes(directory: Path, data: tuple[str, ...], expected: dict[tuple[str, int], float]) -> None:
    """A schedule of the same batch sizes has the same losses, also if it resumes in a step of 4 samples that passes sample 15."""
    words = GROWING[GROWING.index("--train-samples") :]
    sizes = GROWING.index("--global-batch-size")
    schedule = ("--step-batch-size-schedule", f"0:2 {8 * 64}:4 {15 * 64}:6 {27 * 64}:8", "--save", str(directory / "scheduled"))
    arguments = (*GROWING[:sizes], *GROWING[sizes + 2 : GROWING.index("--rampup-batch-size")], *words, *schedule, *data)
    ended = train(*arguments, "--exit-interval", "5")
    assert ended.code == 75, ended.err
    assert "10 steps of 2, 4 from step 5, 6 from step 7, 8 from step 9 x 64 tokens" in ended.err
    resumed = train(*arguments)
    assert resumed.code == 0, resumed.err
    assert losses(directory / "scheduled") == expected
    assert [attempt.step for attempt in run_order.read(directory / "scheduled")] == [0, 5]
