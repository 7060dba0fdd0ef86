"""Training on packed datasets: one sequence a sample, what is empty in no loss, documents apart."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import synthetic
from running import SMALL, train

from lt_preprocess.datasets import packing
from lt_shared.console import BadConfig
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order.packed import PADDING, PackedReading, order
from lt_train.data import blended_dataset
from lt_train.data.blended_dataset import SampleOrder

WHOLE = ("--split", "1,0,0", "--eval-iters", "0")
LENGTH = 64


def test_each_epoch_has_every_sequence_once() -> None:
    whole = order(PackedReading(3, 13, 0, 25, 7)).tolist()
    assert [sorted(whole[begin : begin + 10]) for begin in (0, 10)] == [list(range(3, 13))] * 2
    assert whole[:10] != whole[10:20]
    assert order(PackedReading(3, 13, 8, 14, 7)).tolist() == whole[8:22]
    assert order(PackedReading(3, 13, 10, 10, 7)).tolist() == whole[10:20]


@pytest.fixture
def packed(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    source = write_dataset(tmp_path / "source", documents=40)
    return packing.build(packing.plan(source.prefix, str(tmp_path / "packed"), LENGTH))


def test_samples_are_the_sequences(packed: Dataset) -> None:
    reader = indexed_dataset.Reader(packed.prefix)
    config = synthetic.plan(*SMALL, *WHOLE, "--vocab-size", "2048", "--train-iters", "2", datasets=(packed,))
    samples = blended_dataset.build(SampleOrder.from_config(config), None).training
    assert samples is not None
    assert len(samples) == 16
    seen = set()
    for number in range(16):
        ((dataset, sequence, start, length, _),) = samples.spans(number)
        assert (dataset, start, length) == (0, 0, reader.sequence_lengths[sequence])
        begin = int(reader.sequence_offsets[sequence]) // 2
        assert samples[number].tolist() == [*reader.tokens[begin : begin + length].tolist(), *[PADDING] * (LENGTH + 1 - length)]
        seen.add(sequence)
    assert len(seen) == 16


def test_a_packed_dataset_is_read_in_its_own_length_only(packed: Dataset) -> None:
    with pytest.raises(BadConfig, match="packed for sequences of 64 tokens, and is read in sequences of 32"):
        synthetic.plan(*SMALL, *WHOLE, "--vocab-size", "2048", "--seq-length", "32", datasets=(packed,))


def steps(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


def test_the_loss_of_a_sample_is_that_of_its_documents(packed: Dataset, tmp_path: Path) -> None:
    """Each document alone in a sample of its own: with documents kept apart, the mean over a packed sample is theirs."""
    reader = indexed_dataset.Reader(packed.prefix)
    texts = [
        reader.tokens[int(start) // 2 : int(start) // 2 + int(length)].tolist()
        for start, length in zip(reader.sequence_offsets, reader.sequence_lengths, strict=True)
    ]
    pieces: list[list[int]] = []
    of_sequence: list[list[int]] = []
    for text in texts:
        ends = [place + 1 for place, token in enumerate(text) if token == packed.eod]
        bounds = [0, *ends, *([len(text)] if text[-1] != packed.eod else [])]
        parts = [text[begin:end] for begin, end in itertools.pairwise(bounds)]
        of_sequence.append(list(range(len(pieces), len(pieces) + len(parts))))
        pieces += parts
    alone = Dataset(**vars(packed) | {"prefix": str(tmp_path / "alone"), "documents": len(pieces)})
    with indexed_dataset.Writer(alone.prefix, np.uint16) as writer:
        for piece in pieces:
            writer.append_document(np.array(piece))
        sidecar = manifest.sidecar_content({"v": 2, "dataset": manifest.record_of(alone)})
        writer.publish((manifest.sidecar_path(alone.prefix), sidecar))
    apart = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
    still = (*SMALL, *WHOLE, *apart, "--lr", "1e-20", "--ranks", "1", "--global-batch-size", "1", "--micro-batch-size", "1")
    found = {}
    for name, dataset in (("packed", packed), ("alone", alone)):
        count = str(dataset.documents)
        done = train(*still, "--train-iters", count, "--save", str(tmp_path / name), dataset.prefix)
        assert done.code == 0, done.err
        numbers = order(PackedReading(0, int(count), 0, int(count), 1234)).tolist()
        found[name] = dict(zip(numbers, steps(tmp_path / name), strict=True))
    for sequence, members in enumerate(of_sequence):
        counts = [len(pieces[member]) - 1 for member in members]
        expected = np.average([found["alone"][member] for member in members], weights=counts)
        assert found["packed"][sequence] == pytest.approx(expected, rel=1e-5)
