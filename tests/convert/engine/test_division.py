"""The division of planned files: the parts are all bytes once, in order, and read equal shares of the source."""

import math
import random
from collections.abc import Sequence

import pytest

from lt_convert.engine import division
from lt_convert.engine.division import Entry
from lt_convert.tensors import blocks
from lt_convert.tensors.block_fp8 import BlockFp8
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.output_files import OutputFile, Payload, size_of
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, tensor_in_files, zeros


def tensor(name: str, *shape: int, dtype: str = "float32", offset: int = 0) -> Tensor:
    return tensor_in_files(name, dtype, shape, [((0,) * len(shape), shape, "source", offset)])


def outputs() -> list[OutputFile]:
    """An embedding that is half of all, experts in one tensor, norms, zeros and a file without tensors."""
    small = [Payload(f"norm{number}", tensor(f"norm{number}", 64)) for number in range(20)]
    return [
        OutputFile("one", (b"header", Payload("embedding", tensor("embedding", 4000, 64)), b"", *small)),
        OutputFile(
            "two", (Payload("experts", tensor("experts", 1, 4, 200, 96)), b"end", Payload("zeros", zeros("float32", (9, 5))))
        ),
        OutputFile("config", (b"{}",)),
    ]


def whole(planned: Sequence[OutputFile]) -> list[tuple[str, int, int]]:
    return [
        (output.name, offset, size_of(segment))
        for output in planned
        if output.has_tensors
        for offset, segment in output.segments_at()
    ]


def extents(parts: Sequence[Sequence[Entry]]) -> list[tuple[str, int, int]]:
    return [(entry.name, entry.offset, size_of(entry.segment)) for part in parts for entry in part]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
def test_all_bytes_once_and_equal_shares(count: int) -> None:
    planned = outputs()
    parts = division.divide(planned, count)
    assert len(parts) == count
    position: dict[str, int] = {}
    for name, offset, length in sorted(extents(parts)):
        assert offset == position.get(name, 0), "without a gap, and once"
        position[name] = offset + length
    assert position == {output.name: output.size_bytes for output in planned if output.has_tensors}
    records = [division.to_record(part) for part in parts]
    total = sum(record["read_bytes"] for record in records)
    assert total == 4 * (4000 * 64 + 20 * 64 + 4 * 200 * 96)
    assert max(record["read_bytes"] for record in records) <= 1.05 * total / count
    assert sum(record["bytes"] for record in records) == sum(length for _, _, length in whole(planned))


def test_every_kind_of_tensors_is_divided() -> None:
    """A part with all copied tensors would be done long before a part with the cast ones."""
    kinds = [Payload(f"copied{number}", tensor("t", 50, 8)) for number in range(40)]
    kinds += [Payload(f"cast{number}", tensor("t", 50, 8).cast("bfloat16")) for number in range(80)]
    for count in (2, 4):
        for part in division.divide([OutputFile("one", tuple(kinds))], count):
            names = [entry.segment.name for entry in part if isinstance(entry.segment, Payload)]
            assert sum(name.startswith("copied") for name in names) == 40 / count
            assert sum(name.startswith("cast") for name in names) == 80 / count


def test_whole_tensors_where_they_fit() -> None:
    equal = [OutputFile("one", tuple(Payload(str(number), tensor(str(number), 10, 10)) for number in range(300)))]
    for count in (2, 3, 4):
        assert extents(division.divide(equal, count)) == whole(equal)


def test_more_parts_than_bytes() -> None:
    parts = division.divide([OutputFile("one", (Payload("norm", tensor("norm", 3)),))], 8)
    assert len(parts) == 8
    assert sum(length for _, _, length in extents(parts)) == 12


def test_a_matrix_that_is_read_at_once_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    transposed = OutputFile("one", (Payload("a", tensor("a", 100, 50).transposed()),))
    assert extents(division.divide([transposed], 2)) == whole([transposed])
    monkeypatch.setattr(blocks, "MATRIX_BYTES", 1000)
    assert extents(division.divide([transposed], 2)) != whole([transposed])


def test_fp8_is_cut_between_its_blocks() -> None:
    source = tensor("weight", 1280, 256)
    quantized = OutputFile(
        "one", (Payload("weight", BlockFp8(source)), Payload("weight_scale_inv", BlockFp8(source, scales=True)))
    )
    parts = division.divide([quantized], 3)
    sizes = [size_of(entry.segment) for part in parts for entry in part]
    assert sum(sizes) == 1280 * 256 + 4 * 10 * 2
    assert len(sizes) > 2
    assert all(size % (128 * 256) == 0 or size % (4 * 2) == 0 for size in sizes)


def test_the_same_values_in_the_same_places(tmp_path: object) -> None:
    """Cut anywhere, tensors with permuted and interleaved rows give the bytes that they give whole."""
    chance = random.Random(0)
    path = f"{tmp_path}/source"
    with open(path, "wb") as file:
        file.write(chance.randbytes(4 * 6 * 8 * 10))
    stacked = tensor_in_files("t", "float32", (6, 8, 10), [((0, 0, 0), (6, 8, 10), path, 0)])
    one = OutputFile("one", (Payload("a", stacked.permuted((1, 0, 2))), Payload("b", stacked.take(1, range(1, 8, 2)))))
    assert math.prod((6, 8, 10)) * 4 == stacked.size_bytes

    def contents(entries: Sequence[Entry]) -> bytes:
        with Files() as files:
            reader = TensorReader(files)
            return b"".join(
                bytes(block)
                for entry in entries
                if isinstance(entry.segment, Payload)
                for block in entry.segment.contents(reader)
            )

    expected = contents(division.divide([one], 1)[0])
    for count in range(2, 30):
        assert b"".join(map(contents, division.divide([one], count))) == expected
