"""Sample for sample the data order of megatron-core's BlendedMegatronDatasetBuilder."""

import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order.samples import Samples
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.benchmark import Benchmark
from lt_train.data import blended_dataset

SIZES = ("--seq-length", "16", "--global-batch-size", "4", "--eval-iters", "2", "--seed", "7")


def megatrons(plan: RunConfig, **blend: Any) -> list[Any]:
    """Megatron-LM's datasets of this plan; without a cache, which its blends share among ranks only."""
    config = GPTDatasetConfig(
        random_seed=plan.seed,
        sequence_length=plan.batches.seq_length,
        tokenizer=SimpleNamespace(
            vocab_size=synthetic.VOCABULARY, eod=synthetic.EOD, pad=-1, unique_identifiers={"name": "synthetic"}
        ),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **blend,
    )
    sizes = [plan.batches.train_samples, *[plan.data.eval_iters * plan.batches.global_batch_size] * 2]
    kind = GPTDataset if blend else MockGPTDataset
    datasets: list[Any] = BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()
    return datasets


def assert_same_order(ours: Samples | None, theirs: Any, count: int | None = None) -> None:
    assert ours is not None
    assert len(ours) == len(theirs)
    for number in range(count or len(ours)):
        sample = theirs[number]
        np.testing.assert_array_equal(ours[number], [*sample["tokens"].tolist(), int(sample["labels"][-1])])


def blend_of(datasets: tuple[Dataset, ...]) -> tuple[list[str], list[float] | None]:
    return [each.prefix for each in datasets], [each.weight for each in datasets] if len(datasets) > 1 else None


@settings(max_examples=15)
@given(
    lengths=st.lists(st.lists(st.integers(0, 40), min_size=12, max_size=40), min_size=1, max_size=3),
    weights=st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    steps=st.integers(1, 12),
    split=st.sampled_from(["8,1,1", "90,10,0", "1,1,1"]),
)
def test_split_blends(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], weights: list[float], steps: int, split: str
) -> None:
    place = tmp_path_factory.mktemp("blends")
    datasets = tuple(
        dataclasses.replace(synthetic.write(place / str(number), [each + 3 for each in of_one]), weight=weight)
        for number, (of_one, weight) in enumerate(zip(lengths, weights, strict=False))
    )
    plan = synthetic.plan(*SIZES, "--train-iters", str(steps), "--split", split, datasets=datasets)
    expected = megatrons(plan, blend=blend_of(datasets), split=split)
    for ours, theirs in zip(synthetic.samples(plan, str(place / "cache")), expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert_same_order(ours, theirs)


def test_a_blend_whose_ties_hang_on_the_last_bit_of_its_weights(tmp_path: Path) -> None:
    """Megatron divides the weights by their sum twice; after once, the 19th sample would come from another dataset."""
    datasets = tuple(
        dataclasses.replace(synthetic.write(tmp_path / str(weight), [30] * 40), weight=weight) for weight in (0.1, 0.2, 0.3)
    )
    plan = synthetic.plan(*SIZES, "--train-iters", "12", "--split", "1,0,0", "--eval-iters", "0", datasets=datasets)
    train, _, _ = synthetic.samples(plan, str(tmp_path / "cache"))
    assert_same_order(train, megatrons(plan, blend=blend_of(datasets), split="1,0,0")[0])


def test_parts_of_their_own(tmp_path: Path) -> None:
    first, second, third = (synthetic.write(tmp_path / name, [5, 30, 8] * 10) for name in ("first", "second", "third"))
    lists = ("--train-data-path", "3", first.prefix, "1", second.prefix, "--valid-data-path", third.prefix)
    plan = synthetic.plan(*SIZES, "--train-iters", "20", *lists)
    training = (dataclasses.replace(first, weight=3.0), second)
    expected = megatrons(plan, blend_per_split=[blend_of(training), blend_of((third,)), None])
    train, validation, test = synthetic.samples(plan, str(tmp_path / "cache"))
    assert_same_order(train, expected[0])
    assert_same_order(validation, expected[1])
    assert test is None


def test_mock_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = synthetic.plan(*SIZES, "--seq-length", "512", "--train-iters", "20", "--mock-data")
    for ours, theirs in zip(synthetic.samples(plan, None), megatrons(plan), strict=True):
        assert_same_order(ours, theirs, 50)
    assert not list(tmp_path.iterdir())


def test_tokens_of_a_measurement_cannot_be_foretold() -> None:
    plan = synthetic.plan(*SIZES, "--seq-length", "512", "--train-iters", "20", "--mock-data")
    plan = dataclasses.replace(plan, benchmark=Benchmark(1, 0, as_json=False))

    def tokens() -> npt.NDArray[np.int64]:
        samples = synthetic.samples(plan, None)[0]
        assert samples
        return np.concatenate([samples[number] for number in range(40)])

    found = tokens()
    assert np.array_equal(found, tokens())
    counts = np.bincount(found, minlength=plan.architecture.vocab_size)
    assert (counts[:-1] > 0).all()
    assert counts[:-1].max() < 3 * counts.mean()


def test_indices_are_found_by_content(tmp_path: Path) -> None:
    """A longer run, and a copy of the data elsewhere, find the index; other lengths at the same place do not."""

    def indices(place: str, lengths: list[int], *options: str) -> set[str]:
        written = synthetic.write(tmp_path / place, lengths)
        plan = synthetic.plan(*SIZES, "--split", "1,0,0", "--eval-iters", "0", *options, datasets=(written,))
        synthetic.samples(plan, str(tmp_path / "cache"))
        return {path.name for path in (tmp_path / "cache").glob("samples-*")}

    once = indices("data", [20] * 50, "--train-iters", "5")
    assert len(once) == 1
    assert indices("data", [20] * 50, "--train-iters", "10") == once
    assert indices("copy", [20] * 50, "--train-iters", "10") == once
    assert len(indices("data", [20] * 49 + [21], "--train-iters", "10")) == 2
    assert len(indices("data", [20] * 50, "--train-iters", "100")) == 3
    assert len(indices("data", [20] * 50, "--train-iters", "10", "--seed", "8")) == 4


def test_a_part_without_tokens(tmp_path: Path) -> None:
    dataset = synthetic.write(tmp_path / "data", [20] * 8 + [0] * 2)
    plan = synthetic.plan(*SIZES, "--split", "8,2,0", datasets=(dataset,))
    with pytest.raises(BadData, match="no tokens in its sequences 8 to 10"):
        synthetic.samples(plan, str(tmp_path / "cache"))


def test_compiled_code_draws_a_blend_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that rounds a product and a difference once would draw equal shares in another order."""
    compile_blend, compilations = blended_dataset._compiled_blend, []
    monkeypatch.setattr(blended_dataset, "_compiled_blend", lambda: compilations.append(1) or compile_blend())
    for weights in ([0.25] * 4, [0.7, 0.2, 0.1], [1 / 3] * 3):
        drawn = []
        for largest in (0, 10_000):
            monkeypatch.setattr(blended_dataset, "INTERPRETED_DRAWS", largest)
            datasets, numbers = np.zeros(2000, np.int16), np.zeros(2000, np.int64)
            blended_dataset._draw_blend(np.array(weights), datasets, numbers)
            drawn.append((datasets.tolist(), numbers.tolist()))
        assert drawn[0] == drawn[1]
    assert len(compilations) == 3
