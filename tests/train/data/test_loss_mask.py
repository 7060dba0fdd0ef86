"""A loss mask beside a dataset: what counts, in every kind of sample, and the loss of it on one rank and on several."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import layouts
import numpy as np
import pytest
import synthetic
from layouts import check_losses_of_one_rank, train_variants
from megatron.core import parallel_state
from running import BRIEF

from lt_shared.console import BadData
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_train.config.settings import data as data_settings
from lt_train.data import dataset_versions

SIZES = ("--seq-length", "16", "--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", "4")
WHOLE = ("--split", "1,0,0", "--eval-iters", "0")
MODEL = (*BRIEF, "--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128")
VARIANTS: dict[str, tuple[str, ...]] = {
    "alone": ("--ranks", "1"),
    "data parallel": ("--ranks", "2", "--micro-batch-size", "1"),
    "tensor parallel": ("--ranks", "2", "--tensor-model-parallel-size", "2", "--sequence-parallel"),
    "pipeline": ("--ranks", "2", "--pipeline-model-parallel-size", "2"),
    "context parallel": ("--ranks", "2", "--context-parallel-size", "2"),
}


def write(prefix: Path, lengths: list[int], counts: Callable[[np.ndarray], np.ndarray], packed: int | None = None) -> Dataset:
    """Documents that end with EOD, and a mask that `counts` makes of their tokens."""
    tokens = np.concatenate([np.append(np.arange(length - 1) * 7 % synthetic.EOD, synthetic.EOD) for length in lengths])
    masks = counts(tokens).astype(np.uint8)
    for name, dtype, values in ((indexed_dataset.mask_prefix(str(prefix)), np.uint8, masks), (str(prefix), np.uint16, tokens)):
        with indexed_dataset.Writer(name, dtype) as writer:
            writer.append(values, np.array(lengths, np.int32), np.ones(len(lengths), np.int32))
            dataset = Dataset(name, len(lengths), len(tokens), np.dtype(dtype).name)
            if dtype == np.uint16:
                dataset = Dataset(name, len(lengths), len(tokens), "uint16", 100, synthetic.EOD, packed=packed, loss_mask=True)
            writer.publish((manifest.sidecar_path(name), json.dumps({"v": 2, "dataset": manifest.record_of(dataset)}).encode()))
    return dataset


def batches(dataset: Dataset, *options: str, cache: Path) -> Iterator[dict[str, np.ndarray]]:
    plan = synthetic.plan(*SIZES, *WHOLE, *options, datasets=(dataset,))
    samples, _, _ = synthetic.samples(plan, str(cache))
    assert samples is not None
    for batch in synthetic.training(plan, samples):
        yield {name: np.asarray(tensor) for name, tensor in batch.items()}


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_state, "get_data_parallel_rank", lambda: 0)
    monkeypatch.setattr(parallel_state, "get_data_parallel_world_size", lambda: 1)


def is_odd(tokens: np.ndarray) -> np.ndarray:
    return tokens & 1


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("options", [(), ("--reset-attention-mask", "--reset-position-ids"), ("--eod-mask-loss",)])
def test_labels_count_as_the_mask_says(tmp_path: Path, options: tuple[str, ...]) -> None:
    dataset = write(tmp_path / "data", [5, 30, 17, 2, 9] * 20, is_odd)
    plain = Dataset(**(vars(dataset) | {"loss_mask": None}))
    indexed_dataset_mask = [*tmp_path.glob("data.loss_mask.*")]
    masked = list(batches(dataset, *options, cache=tmp_path / "cache"))
    for path in indexed_dataset_mask:
        path.rename(tmp_path / f"gone-{path.name}")
    unmasked = list(batches(plain, *options, cache=tmp_path / "cache"))
    assert len(masked) == len(unmasked) == 8
    for batch, other in zip(masked, unmasked, strict=True):
        expected = other.pop("loss_mask") * is_odd(other["labels"])
        np.testing.assert_array_equal(batch.pop("loss_mask"), expected)
        assert batch.keys() == other.keys()
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[name])
            assert values.max() < 100


@pytest.mark.usefixtures("one_rank")
def test_padding_and_tokens_that_do_not_count_in_a_packed_dataset(tmp_path: Path) -> None:
    """Token 0 is among those that do not count, beside the places without a token."""
    dataset = write(tmp_path / "data", [17, 9, 12] * 10, is_odd, packed=16)
    seen = 0
    for batch in batches(dataset, cache=tmp_path / "cache"):
        for tokens, labels, counted in zip(batch["tokens"], batch["labels"], batch["loss_mask"], strict=True):
            length = int(np.argmax(tokens == synthetic.EOD)) if (tokens == synthetic.EOD).any() else 16
            np.testing.assert_array_equal(counted[:length], labels[:length] & 1)
            assert not counted[length:].any()
            assert tokens[0] == 0
            seen += 1
    assert seen == 16


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, layouts.Outcome]:
    """Where the mask leaves out the first token of each document, Megatron's --eod-mask-loss does, too."""
    directory = tmp_path_factory.mktemp("masked")
    training = (*MODEL, "--vocab-size", "100", "--split", "9,1,0")
    lengths = [5, 30, 17, 2, 9, 33] * 40

    def begins_no_document(tokens: np.ndarray) -> np.ndarray:
        return np.append(False, tokens[:-1] != synthetic.EOD)

    masked = write(directory / "data", lengths, begins_no_document)
    plain = write(directory / "plain", lengths, begins_no_document)
    Path(manifest.sidecar_path(plain.prefix)).write_text(
        json.dumps({"v": 2, "dataset": manifest.record_of(Dataset(**(vars(plain) | {"loss_mask": None})))})
    )
    by_megatron = {"by the end": ("--ranks", "1", "--eod-mask-loss", "--calculate-per-token-loss")}
    return {
        **train_variants(training, layouts.sampled(VARIANTS, "alone"), masked.prefix, directory / "runs"),
        **train_variants(training, by_megatron | {"all": ("--ranks", "1")}, plain.prefix, directory / "unmasked"),
    }


def test_the_loss_is_that_of_the_tokens_that_count(outcomes: dict[str, layouts.Outcome]) -> None:
    check_losses_of_one_rank(outcomes, "alone", "by the end")
    assert abs(outcomes["alone"].losses["step", 1] - outcomes["all"].losses["step", 1]) > 1e-4


@pytest.mark.parametrize("layout", [name for name in layouts.sampled(VARIANTS, "alone") if name != "alone"])
def test_layouts_have_the_loss_of_one_rank(outcomes: dict[str, layouts.Outcome], layout: str) -> None:
    check_losses_of_one_rank(outcomes, layout, "alone")


def test_a_mask_that_counts_nothing_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", [20, 30] * 10, lambda tokens: tokens > 1000)
    plan = synthetic.plan(*SIZES, *WHOLE, datasets=(dataset,))
    with pytest.raises(BadData, match="its loss mask counts no token"):
        data_settings.check_datasets(plan.data, 100)


def test_a_mask_without_the_description_of_its_dataset_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", [20, 30] * 10, is_odd)
    Path(manifest.sidecar_path(dataset.prefix)).unlink()
    plan = synthetic.plan(*SIZES, *WHOLE, datasets=(Dataset(dataset.prefix),))
    with pytest.raises(BadData, match="a loss mask lies beside it, and its description is missing"):
        data_settings.check_datasets(plan.data, 100)


def test_another_mask_is_another_dataset(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", [20, 30] * 10, is_odd)
    before = dataset_versions.versions([dataset])
    content = bytearray((tmp_path / "data.loss_mask.bin").read_bytes())
    content[7] ^= 1
    (tmp_path / "data.loss_mask.bin").write_bytes(content)
    with pytest.raises(BadData, match="loss_mask_samples_crc32 was"):
        dataset_versions.check_unchanged("run", before, dataset_versions.versions([dataset]))
