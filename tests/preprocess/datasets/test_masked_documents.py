"""Every command on datasets keeps the loss mask with its tokens: here each mask is the last bit of its token."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.datasets import merge, packing, shuffle, source_datasets, split, statistics, verification
from lt_preprocess.datasets.masked_documents import MaskedWriter
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
EOD = 999
RECORD = np.dtype([("token", np.uint16), ("mask", np.uint8)])

documents_of_tokens = st.lists(st.lists(st.integers(0, EOD - 1), min_size=1, max_size=30), min_size=1, max_size=30)


def write(prefix: Path, documents: list[list[int]], has_mask: bool = True) -> str:
    dataset = Dataset(str(prefix), dtype="uint16", vocab_size=EOD + 1, eod=EOD, loss_mask=has_mask or None)
    with MaskedWriter(dataset, np.dtype(np.uint16)) as writer:
        for document in documents:
            tokens = np.array([*document, EOD], np.uint16)
            records = np.empty(len(tokens), RECORD)
            records["token"], records["mask"] = tokens, tokens & 1
            writer.append(records if has_mask else tokens, np.array([len(tokens)]), np.array([1]))
        counted = Dataset(**(vars(dataset) | {"documents": writer.documents, "tokens": writer.tokens}))
        writer.publish(counted, Derivation("test", {}, []), {})
    return str(prefix)


def check(dataset: Dataset) -> list[list[int]]:
    """The documents, after a check that the mask is theirs, and that verify finds nothing."""
    assert dataset.loss_mask and manifest.describe(dataset.prefix).loss_mask
    assert verification.verify(dataset).findings == []
    with indexed_dataset.open(dataset.prefix) as tokens:
        with indexed_dataset.open(indexed_dataset.mask_prefix(dataset.prefix)) as mask:
            assert (len(mask), mask.dtype) == (len(tokens), np.uint8)
            for document, bits in zip(tokens, mask, strict=True):
                np.testing.assert_array_equal(document & 1, bits)
        return [document.tolist() for document in tokens]


@settings(max_examples=30, deadline=None)
@given(documents=documents_of_tokens, seed=st.integers(0, 99))
def test_shuffle_pack_and_merge(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], seed: int) -> None:
    directory = tmp_path_factory.mktemp("masked")
    source = write(directory / "a", documents)
    shuffled = shuffle.build(shuffle.plan(source, str(directory / "shuffled"), seed))
    assert sorted(check(shuffled)) == sorted([*document, EOD] for document in documents)
    packed = packing.build(packing.plan(source, str(directory / "packed"), 19))
    tokens = sorted(token for document in documents for token in [*document, EOD])
    assert sorted(token for sample in check(packed) for token in sample) == tokens
    merged = merge.build(merge.plan([source, shuffled.prefix], str(directory / "merged")))
    assert check(merged) == check(manifest.describe(source)) + check(shuffled)


def test_split_and_a_merge_of_a_directory(tmp_path: Path) -> None:
    documents = [[number % 990, number % 7] for number in range(300)]
    source = write(tmp_path / "a", documents)
    parts = split.build(split.plan(source, str(tmp_path / "parts" / "b").replace("/parts/", "/parts-"), "2,1", None, 0))
    assert sorted(check(parts[0]) + check(parts[1])) == sorted([*document, EOD] for document in documents)
    directory = tmp_path / "directory"
    directory.mkdir()
    for part in parts:
        for path in tmp_path.glob(f"{Path(part.prefix).name}.*"):
            path.rename(directory / path.name)
    merged = merge.build(merge.plan([str(directory)], str(tmp_path / "merged")))
    assert merged.documents == 300
    check(merged)
    assert statistics.read(merged, None, 0).counted_tokens == sum(token & 1 for document in check(merged) for token in document)


def test_datasets_with_and_without_a_mask_are_not_merged(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", [[1, 2]]), write(tmp_path / "b", [[3, 4]], has_mask=False)
    with pytest.raises(BadData, match=r"b: has no loss mask, .*a has a loss mask"):
        merge.plan([one, other], str(tmp_path / "c"))


def test_a_mask_of_other_documents_is_refused(tmp_path: Path, run: Run) -> None:
    one, other = write(tmp_path / "a", [[1, 2, 3], [4]]), write(tmp_path / "b", [[1], [2, 3, 4]])
    for ending in ("bin", "idx", "json"):
        (tmp_path / f"b.loss_mask.{ending}").replace(tmp_path / f"a.loss_mask.{ending}")
    findings = [str(finding) for finding in verification.verify(manifest.describe(one)).findings]
    assert any("is not the loss mask of" in finding and "other lengths" in finding for finding in findings)
    with pytest.raises(BadData, match=r"is not the loss mask of .*a: its documents have other lengths"):
        shuffle.build(shuffle.plan(one, str(tmp_path / "c"), 0))
    with pytest.raises(BadData, match=r"is not the loss mask of .*a: its documents have other lengths"):
        merge.plan([one], str(tmp_path / "c"))
    # The mask of b is gone now.
    assert [str(finding) for finding in verification.verify(manifest.describe(other)).findings] == [
        f"{other}.loss_mask.bin: missing: the dataset says that it has a loss mask"
    ]
    with pytest.raises(NoInput, match=r"b\.loss_mask\."):
        shuffle.plan(other, str(tmp_path / "c"), 0)


def test_a_changed_bit_of_a_mask_is_found(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [[1, 2, 3]] * 100)
    content = bytearray((tmp_path / "a.loss_mask.bin").read_bytes())
    content[17] ^= 1
    (tmp_path / "a.loss_mask.bin").write_bytes(content)
    assert [finding.path for finding in verification.verify(manifest.describe(source)).findings] == [f"{source}.loss_mask.bin"]
    with pytest.raises(BadData, match=r"a\.loss_mask\.bin: "):
        shuffle.build(shuffle.plan(source, str(tmp_path / "c"), 0))


def test_an_output_without_a_mask_removes_an_older_mask(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2]])
    write(tmp_path / "a", [[1, 2]], has_mask=False)
    assert not list(tmp_path.glob("a.loss_mask.*"))
    assert source_datasets.single(str(tmp_path / "a"))[0].loss_mask is None
