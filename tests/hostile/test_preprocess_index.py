"""Indexes with counts, lengths and offsets that no writer wrote: refused, or read within the files; never a crash."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.datasets import verification
from lt_preprocess.datasets.block_reader import BlockReader
from lt_shared.console import BadData
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import HEADER, Reader, Writer

LARGE = [0, 1, 2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 // 12, 2**64 // 12 + 1]
numbers = st.sampled_from(LARGE) | st.integers(0, 2**64 - 1) | st.integers(0, 20)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    prefix = str(tmp_path_factory.mktemp("index") / "a")
    with Writer(prefix, np.uint16) as writer:
        writer.append(np.arange(10), np.array([3, 3, 4]), np.array([2, 0, 1]))
        writer.publish()
    return prefix


def read_all(prefix: str) -> int:
    """The tokens of all documents, by both readers."""
    reader = Reader(prefix)
    tokens = sum(len(reader.document(number)) for number in range(reader.documents))
    with BlockReader(prefix) as blocks:
        assert sum(len(blocks.read(block)) for block in blocks.blocks()) == tokens
    return tokens


@given(at=st.integers(0, HEADER.size + 3 * 12 + 4 * 8 - 8), number=numbers, data=st.data())
def test_a_changed_number_is_refused_or_harmless(prefix: str, at: int, number: int, data: st.DataObject) -> None:
    index = Path(f"{prefix}.idx")
    sound = index.read_bytes()
    changed = bytearray(sound)
    size = data.draw(st.sampled_from([4, 8]))
    changed[at : at + size] = struct.pack("<Q", number)[:size]
    try:
        index.write_bytes(changed)
        try:
            assert read_all(prefix) == 10
        except BadData as error:
            assert str(index) in str(error) or f"{prefix}.bin" in str(error)
        with contextlib.suppress(BadData):
            Reader(prefix, thorough=False)
        try:
            result = verification.verify(manifest.Dataset(prefix))
        except BadData as error:
            assert "multimodal" in str(error)
        else:
            assert bytes(changed) == sound or result.findings or read_all(prefix) == 10
    finally:
        index.write_bytes(sound)


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize(
    ("sequences", "entries"), [(3, 0), (2**61, 4), (3, 2**61), (2**64 - 1, 2**64 - 1), (0, 0), (2**64 // 12 + 3, 4)]
)
def test_counts_that_overflow(prefix: str, tmp_path: Path, sequences: int, entries: int, thorough: bool) -> None:
    content = Path(f"{prefix}.idx").read_bytes()
    header = HEADER.pack(indexed_dataset.MAGIC, 1, 8, sequences, entries)
    (tmp_path / "a.idx").write_bytes(header + content[HEADER.size :])
    (tmp_path / "a.bin").write_bytes(Path(f"{prefix}.bin").read_bytes())
    with pytest.raises(BadData, match=r"a\.idx"):
        Reader(str(tmp_path / "a"), thorough)
    with pytest.raises(BadData, match=r"a\.idx"), BlockReader(str(tmp_path / "a")):
        pass
    assert verification.verify(manifest.Dataset(str(tmp_path / "a"))).findings
