"""A part of a flat tensor in a shape has the values that NumPy gives it, wherever its chunks are cut."""

import itertools
import math
from pathlib import Path

import numpy
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.tensors import blocks
from lt_convert.tensors.reshape import reshaped
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import tensor_in_files


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_any_part_in_any_shape(tmp_path_factory: object, shape: list[int], data: st.DataObject) -> None:
    count = math.prod(shape)
    start, end = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    total = start + count + end
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=6))})
    expected = numpy.arange(total, dtype=numpy.int32)
    path = Path(tmp_path_factory.mktemp("flat")) / "values"  # type: ignore[attr-defined]
    path.write_bytes(expected.tobytes())
    flat = tensor_in_files(
        "flat",
        "int32",
        (total,),
        [((first,), (last - first,), str(path), 4 * first) for first, last in itertools.pairwise(cuts)],
    )
    found = reshaped(flat, start, tuple(shape))
    found.check_cover()
    with Files() as files:
        values = blocks.read(found, files).view(numpy.int32)
    assert numpy.array_equal(values, expected[start : start + count].reshape(shape))
    assert len(found.chunks) <= len(flat.chunks) * (2 * len(shape) + 1)
