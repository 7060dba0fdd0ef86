"""Cutting a tensor and joining the pieces gives the tensor, and the pieces are those that Megatron's ranks have."""

import dataclasses
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, tensor_in_files
from lt_convert.weights import tensor_parallel
from lt_shared.console import UsageError
from lt_shared.models.architecture import Architecture

NAMES = (
    "embedding.word_embeddings.weight",
    "embedding.position_embeddings.weight",
    "output_layer.weight",
    "decoder.layers.3.self_attention.linear_qkv.weight",
    "decoder.layers.3.self_attention.linear_qkv.bias",
    "decoder.layers.3.self_attention.linear_proj.weight",
    "decoder.layers.3.self_attention.linear_proj.bias",
    "decoder.layers.3.mlp.linear_fc1.weight",
    "decoder.layers.3.mlp.linear_fc1.bias",
    "decoder.layers.3.mlp.linear_fc1.layer_norm_weight",
    "decoder.layers.3.mlp.linear_fc2.weight",
    "decoder.layers.3.mlp.experts.local_experts.0.linear_fc1.weight",
    "decoder.layers.3.mlp.experts.linear_fc2.weight1",
    "decoder.layers.3.mlp.router.weight",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


def values(place: Path, shape: tuple[int, ...]) -> tuple[numpy.ndarray, Tensor]:
    """Distinct values and the tensor of them."""
    array = numpy.arange(numpy.prod(shape), dtype=numpy.int32).reshape(shape)
    path = place / "values"
    path.write_bytes(array.tobytes())
    return array, tensor_in_files("values", "int32", shape, [((0,) * len(shape), shape, str(path), 0)])


def read(tensor: Tensor) -> numpy.ndarray:
    with Files() as files:
        return blocks.read(tensor, files)


@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 3, 4]), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_joining_is_the_inverse_of_cutting(place: Path, name: str, size: int, rows: int, columns: int, gated: bool) -> None:
    shape = (2 * rows * size,) if name.endswith(("bias", "norm_weight")) else (2 * rows * size, columns * size)
    array, tensor = values(place, shape)
    pieces = tensor_parallel.split(name, tensor, size, gated)
    assert (read(tensor_parallel.join(name, pieces, gated)) == array).all()


def test_every_rank_has_its_gates_above_its_ups(place: Path) -> None:
    array, tensor = values(place, (8, 3))
    first, second = tensor_parallel.split("decoder.layers.0.mlp.linear_fc1.weight", tensor, 2, gated=True)
    assert (read(first) == array[[0, 1, 4, 5]]).all()
    assert (read(second) == array[[2, 3, 6, 7]]).all()


@pytest.mark.parametrize(
    ("name", "axis"),
    [(NAMES[number], axis) for number, axis in ((0, 0), (1, None), (3, 0), (5, 1), (6, None), (9, None), (12, 1), (13, None))],
)
def test_the_axis_of_a_cut_follows_from_the_name(name: str, axis: int | None) -> None:
    assert tensor_parallel.axis(name) == axis


@pytest.mark.parametrize(("size", "what"), [(8, "4 attention heads"), (5, "4 attention heads")])
def test_a_size_that_divides_no_heads_is_refused(size: int, what: str) -> None:
    with pytest.raises(UsageError, match=f"tensor parallel size {size} does not divide the {what}"):
        tensor_parallel.check_divides(Architecture("a", "llama", 2, 32, 88, 4, 2, 250, 512), size)


def test_ranks_may_share_query_groups_evenly() -> None:
    tensor_parallel.check_divides(Architecture("a", "llama", 2, 32, 88, 4, 2, 250, 512), 4)
    with pytest.raises(UsageError, match="4 is neither a multiple nor a divisor of the 6 query groups"):
        tensor_parallel.check_divides(Architecture("a", "llama", 2, 96, 88, 12, 6, 250, 512), 4)


def test_feed_forward_channels_must_divide_too() -> None:
    architecture = dataclasses.replace(Architecture("a", "llama", 2, 32, 90, 4, 4, 250, 512))
    with pytest.raises(UsageError, match="90 feed-forward channels"):
        tensor_parallel.check_divides(architecture, 4)
