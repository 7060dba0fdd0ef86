"""Skipped samples count nothing and leave no trace, whichever way the ranks share a step."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from running import SMALL, losses, train

from lt_shared.console import BadConfig
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_train.data import micro_batches
from lt_train.train.hooks.anomalies import Anomalies
from lt_train.train.train_step import StepResult

WHOLE = ("--split", "1,0,0", "--eval-iters", "0")


@given(st.sets(st.integers(0, 23)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_the_kept_samples_of_a_step_weigh_alike(
    tmp_path_factory: pytest.TempPathFactory, skipped: set[int], size: int, ranks: int
) -> None:
    """Over all ranks, and as megatron-core averages: over micro batches, and in each over its samples that count."""
    listed = tmp_path_factory.mktemp("skip") / "list"
    listed.write_text("\n".join(map(str, [*skipped, 99])))
    sizes = ("--micro-batch-size", str(size), "--global-batch-size", "8", "--train-iters", "3", "--ranks", str(ranks))
    config = synthetic.plan("--mock-data", "--seq-length", "16", *sizes, "--skip-samples", str(listed))
    counted = dict.fromkeys(range(24), 0.0)
    for rank in range(ranks):
        for batch in micro_batches.plan(config.batches, config.skipping, rank, ranks, 24, 0, 1):
            kept = [True] * size if batch.row_counts is None else batch.row_counts
            step = batch.numbers[0] // 8
            for number, counts in zip(batch.numbers, kept, strict=True):
                assert number // 8 == step
                assert number not in skipped
                counted[number] += batch.weight * counts / max(1, sum(kept)) / (8 // size)
    for step in range(3):
        left = [number for number in range(8 * step, 8 * step + 8) if number not in skipped]
        for number in range(8 * step, 8 * step + 8):
            assert counted[number] == pytest.approx(1 / len(left) if number in left else 0.0)


def steps(run: Path, key: str = "loss") -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record.get(key) for record in records if record["kind"] == "step"]


def test_the_loss_is_the_mean_of_the_samples_that_are_kept(tmp_path: Path, dataset: Dataset) -> None:
    """Each sample's loss is that of a step of its own, at a learning rate that changes nothing."""
    listed = tmp_path / "list"
    listed.write_text("1\n4-5\n16-23\n")
    still = (*SMALL, *WHOLE, "--lr", "1e-20", "--ranks", "1", "--micro-batch-size", "1")
    one = train(*still, "--global-batch-size", "1", "--train-iters", "32", "--save", str(tmp_path / "one"), dataset.prefix)
    assert one.code == 0, one.err
    of_sample = steps(tmp_path / "one")
    run = tmp_path / "eight"
    eight = train(
        *(*still, "--global-batch-size", "8", "--micro-batch-size", "2", "--train-iters", "4", "--save", str(run)),
        *("--skip-samples", str(listed), "--skip-steps", "4", dataset.prefix),
    )
    assert eight.code == 0, eight.err
    first, second, *others = steps(run)
    assert first == pytest.approx(np.mean([of_sample[number] for number in (0, 2, 3, 6, 7)]), rel=1e-6)
    assert second == pytest.approx(np.mean(of_sample[8:16]), rel=1e-6)
    assert others == [None, None]
    assert steps(run, "consumed_samples") == [8, 16, 24, 32]
    assert steps(run, "skipped_steps") == [0, 0, 1, 1]
    assert steps(run, "nan_steps") == [0, 0, 0, 0]
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    skips = [record["fields"] for record in records if record.get("note") == "skipped-samples"]
    assert [(skip["step"], skip["left_out"], skip["samples"]) for skip in skips] == [(1, 3, 8), (3, 8, 8), (4, 8, 8)]
    assert " iteration 1: 3 of 8 samples skipped\n" in eight.err


def test_what_is_skipped_leaves_no_trace(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    """Experts are chosen by all tokens of a micro batch: with other text in the skipped samples every loss is the same, bit for
    bit, and with other shares of the ranks all but so. Without the list the losses differ."""
    clean = write_dataset(tmp_path / "clean", documents=60)
    poisoned = Dataset(**vars(clean) | {"prefix": str(tmp_path / "poisoned")})
    reader = indexed_dataset.Reader(clean.prefix)
    with indexed_dataset.Writer(poisoned.prefix, np.uint16) as writer:
        for number, length in enumerate(reader.sequence_lengths.tolist()):
            begin = int(reader.sequence_offsets[number]) // 2
            text = reader.tokens[begin : begin + length]
            writer.append_document(np.full(length, 7) if number in (3, 40) else np.array(text))
        sidecar = json.dumps({"v": 1, "dataset": manifest.record_of(poisoned)}).encode()
        writer.publish((manifest.sidecar_path(poisoned.prefix), sidecar))
    options = (*SMALL, *WHOLE, "--lr", "3e-3", "--train-iters", "10", "--num-experts", "4", "--moe-aux-loss-coeff", "1e-1")
    config = synthetic.plan(*options, "--vocab-size", "2048", datasets=(clean,))
    samples, *_ = synthetic.samples(config, None)
    assert samples is not None
    touched = [number for number in range(80) if {span.sequence for span in samples.spans(number)} & {3, 40}]
    assert len(touched) >= 3
    listed = tmp_path / "list"
    listed.write_text("\n".join(map(str, touched)))
    found = {}
    for name, prefix, more in (
        ("clean", clean.prefix, ("--skip-samples", str(listed), "--ranks", "1")),
        ("poisoned", poisoned.prefix, ("--skip-samples", str(listed), "--ranks", "1")),
        ("unskipped", poisoned.prefix, ("--ranks", "1")),
        ("shared", poisoned.prefix, ("--skip-samples", str(listed), "--ranks", "2", "--save-interval", "5")),
    ):
        done = train(*options, *more, "--save", str(tmp_path / name), prefix)
        assert done.code == 0, done.err
        found[name] = losses(tmp_path / name)
    assert found["clean"] == found["poisoned"]
    assert found["unskipped"] != found["poisoned"]
    first = min(touched) // 8 + 1
    assert found["shared"]["step", first] == pytest.approx(found["poisoned"]["step", first], rel=1e-5)
    shutil.rmtree(tmp_path / "shared/iter_0000010")
    again = train(
        *options,
        "--skip-samples",
        str(listed),
        "--ranks",
        "2",
        "--save-interval",
        "5",
        "--save",
        str(tmp_path / "shared"),
        prefix,
    )
    assert again.code == 0, again.err
    assert losses(tmp_path / "shared") == found["shared"]


def test_a_skipped_step_is_no_anomaly() -> None:
    anomalies = Anomalies(1)
    for step in range(1, 60):
        assert anomalies.observe(step, StepResult(None, 8, None, updated=False)) is None
    with pytest.raises(BadConfig):
        anomalies.observe(60, StepResult(math.nan, 8, None, updated=False))
