"""Encoded values: every byte is what torch says, and any view of an encoded tensor has the values of that view."""

import functools
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lt_convert.formats import huggingface
from lt_convert.formats.huggingface.dequantization import dequantized
from lt_convert.tensors import blocks, encodings
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, assemble, concatenate
from lt_shared.console import BadData
from lt_shared.models.quantization import MXFP4, Quantization

SCALES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "e8m0": torch.float8_e8m0fnu}


@pytest.mark.parametrize(("name", "dtype"), [(encodings.FP8, torch.float8_e4m3fn), (encodings.E8M0, torch.float8_e8m0fnu)])
def test_every_byte_is_what_torch_says(name: str, dtype: torch.dtype) -> None:
    expected = torch.arange(256).to(torch.uint8).view(dtype).float().numpy()
    found = encodings.table(name)
    is_number = numpy.arange(256) != encodings.E8M0_NAN if name == encodings.E8M0 else numpy.isfinite(found)
    assert numpy.isnan(expected).sum() == (1 if name == encodings.E8M0 else 2)
    assert found[is_number].tobytes() == expected[is_number].tobytes()
    assert numpy.isnan(expected[~is_number]).all()
    assert name == encodings.E8M0 or numpy.isnan(found[~is_number]).all()


def expanded(scales: torch.Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    """The scale of every value, as float32."""
    rows, columns = (torch.arange(size) // width for size, width in zip(shape[-2:], block, strict=True))
    return scales.float()[..., rows, :][..., columns]


def make_fp8(directory: Path, shape: tuple[int, ...], block: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Write a weight of random bytes with random scales; the values as float32."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0x80
    grid = (*shape[:-2], *(-(-size // width) for size, width in zip(shape[-2:], block, strict=True)))
    scales = torch.exp2(torch.randint(-20, 4, grid, generator=generator).float())
    if dtype != torch.float8_e8m0fnu:
        scales *= torch.rand(grid, generator=generator) + 0.1
    scales = scales.to(dtype)
    weight = codes.view(torch.float8_e4m3fn)
    save_file({"w": weight, "w_scale_inv": scales}, directory / "model.safetensors")
    return weight.float() * expanded(scales, block, shape)


def values_of(tensor: Tensor, files: Files) -> torch.Tensor:
    """As float32, read in several blocks."""
    bits = blocks.read(tensor.cast("float32"), files)
    return torch.from_numpy(bits.view(numpy.float32).reshape(tensor.shape))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_view_of_a_block_fp8_tensor(data: st.DataObject, tmp_path: Path) -> None:
    """Slices with steps, transposes and layers: every value keeps its own scale, also in partial blocks."""
    block = data.draw(st.tuples(st.sampled_from([1, 2, 3, 8, 128]), st.sampled_from([1, 3, 5, 32, 128])), "block")
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=1), "leading")) + tuple(
        data.draw(st.tuples(st.integers(1, 150), st.integers(1, 150)), "shape")
    )
    expected = make_fp8(tmp_path, shape, block, SCALES[data.draw(st.sampled_from(list(SCALES)))], data.draw(st.integers(0, 99)))
    with Files() as files:
        stored = huggingface.read_file(str(tmp_path / "model.safetensors"), files)
        lazy = dequantized(stored, Quantization("fp8", block), "model")["w"]
        assert (lazy.dtype, lazy.shape) == ("bfloat16", shape)
        for _ in range(data.draw(st.integers(0, 4), "operations")):
            lazy, expected = data.draw(st.sampled_from([sliced, transposed, stacked, layer]), "operation")(data, lazy, expected)
        assert torch.equal(values_of(lazy, files), expected)
        bits = torch.from_numpy(blocks.read(lazy, files).view(numpy.int16)).view(torch.bfloat16)
        assert torch.equal(bits, expected.to(torch.bfloat16))


def sliced(data: st.DataObject, lazy: Tensor, expected: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    axis = data.draw(st.integers(0, len(lazy.shape) - 1))
    start = data.draw(st.integers(0, lazy.shape[axis] - 1))
    indices = range(start, data.draw(st.integers(start + 1, lazy.shape[axis])), data.draw(st.integers(1, 3)))
    return lazy.take(axis, indices), expected.index_select(axis, torch.tensor(list(indices)))


def transposed(data: st.DataObject, lazy: Tensor, expected: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    order = data.draw(st.permutations(range(len(lazy.shape))))
    return lazy.permuted(order), expected.permute(order)


def stacked(data: st.DataObject, lazy: Tensor, expected: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    """Two copies along a new axis, of which one is taken again."""
    pieces = [((range(at, at + 1), *map(range, lazy.shape)), lazy.expanded(1)) for at in range(2)]
    return assemble("stack", (2, *lazy.shape), pieces).at(data.draw(st.integers(0, 1))), expected


def layer(data: st.DataObject, lazy: Tensor, expected: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    """One of the first axis, where that leaves a matrix."""
    if len(lazy.shape) < 3:
        return lazy, expected
    index = data.draw(st.integers(0, lazy.shape[0] - 1))
    return lazy.at(index), expected[index]


def test_encoded_and_plain_values_can_be_joined(tmp_path: Path) -> None:
    """Models have layers that are not quantized."""
    make_fp8(tmp_path, (130, 70), (128, 128), torch.float32, 1)
    plain = torch.randn(3, 70).to(torch.bfloat16)
    save_file({"plain": plain}, tmp_path / "other.safetensors")
    with Files() as files:
        stored = huggingface.read_file(str(tmp_path / "model.safetensors"), files)
        encoded = dequantized(stored, Quantization("fp8", (128, 128)), "model")["w"]
        other = huggingface.read_file(str(tmp_path / "other.safetensors"), files)["plain"]
        joined = concatenate("both", 0, [encoded, other])
        found = torch.from_numpy(blocks.read(joined, files).view(numpy.int16)).view(torch.bfloat16)
        alone = torch.from_numpy(blocks.read(encoded, files).view(numpy.int16)).view(torch.bfloat16)
    assert torch.equal(found[130:], plain)
    assert torch.equal(found[:130], alone)


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 2.0**-149, 2.0**-126, 3e38 / 448])
def test_products_at_the_ends_of_float32(scale: float, tmp_path: Path) -> None:
    codes = torch.arange(256).to(torch.uint8).reshape(2, 128)
    scales = torch.tensor([[scale]])
    weight = codes.view(torch.float8_e4m3fn)
    save_file({"w": weight, "w_scale_inv": scales}, tmp_path / "model.safetensors")
    with Files() as files:
        stored = huggingface.read_file(str(tmp_path / "model.safetensors"), files)
        lazy = dequantized(stored, Quantization("fp8", (128, 128)), "model")["w"]
        found = values_of(lazy, files)
        rounded = torch.from_numpy(blocks.read(lazy, files).view(numpy.int16)).view(torch.bfloat16)
    expected = weight.float() * scales
    is_nan = expected.isnan()
    assert is_nan.sum() == 2
    assert torch.equal(found.isnan(), is_nan)
    assert torch.equal(rounded.isnan(), is_nan)
    assert torch.equal(found[~is_nan].view(torch.int32), expected[~is_nan].view(torch.int32))
    assert torch.equal(rounded[~is_nan].view(torch.int16), expected.to(torch.bfloat16)[~is_nan].view(torch.int16))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor([[3e38]]), "w: a value times its scale is too large for float32"),
        (torch.tensor([[-1.0]]), "w: has a scale that is negative, or no finite number"),
        (torch.tensor([[float("nan")]]), "w: has a scale that is negative, or no finite number"),
        (torch.tensor([[float("inf")]]), "w: has a scale that is negative, or no finite number"),
        (torch.tensor([[255]], dtype=torch.uint8).view(torch.float8_e8m0fnu), "w: has a scale that is not a number"),
    ],
)
def test_damaged_scales_are_refused(scale: torch.Tensor, message: str, tmp_path: Path) -> None:
    weight = torch.full((4, 4), 448.0).to(torch.float8_e4m3fn)
    save_file({"w": weight, "w_scale_inv": scale}, tmp_path / "model.safetensors")
    with Files() as files:
        stored = huggingface.read_file(str(tmp_path / "model.safetensors"), files)
        lazy = dequantized(stored, Quantization("fp8", (128, 128)), "model")["w"]
        with pytest.raises(BadData, match=message):
            blocks.read(lazy, files)


@pytest.fixture(scope="module")
def convert_moe_packed_tensors() -> "functools.partial[torch.Tensor]":
    module = pytest.importorskip("transformers.integrations.mxfp4")
    return functools.partial(module.convert_moe_packed_tensors, dtype=torch.bfloat16)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_mxfp4_is_what_transformers_makes_of_it(
    data: st.DataObject, tmp_path: Path, convert_moe_packed_tensors: "functools.partial[torch.Tensor]"
) -> None:
    experts, rows, groups = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4)), "shape")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    packed = torch.randint(256, (experts, rows, groups, 16), generator=generator, dtype=torch.uint8)
    # 6 x 2**125 is the largest that float32 has.
    scales = torch.randint(253, (experts, rows, groups), generator=generator, dtype=torch.uint8)
    save_file({"x_blocks": packed, "x_scales": scales, "x_bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    expected = convert_moe_packed_tensors(packed, scales)
    with Files() as files:
        found = dequantized(huggingface.read_file(str(tmp_path / "model.safetensors"), files), MXFP4, "model")
        assert set(found) == {"x", "x_bias"}
        lazy = found["x"]
        assert (lazy.dtype, lazy.shape) == ("bfloat16", (experts, groups * 32, rows))
        for _ in range(data.draw(st.integers(0, 3), "operations")):
            lazy, expected = data.draw(st.sampled_from([sliced, transposed, stacked, layer]), "operation")(data, lazy, expected)
        bits = torch.from_numpy(blocks.read(lazy, files).view(numpy.int16))
    assert torch.equal(bits, expected.contiguous().view(torch.int16))


def test_blocks_of_a_large_tensor_are_decoded_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts are split before rows, so that a block stays small."""
    expected = make_fp8(tmp_path, (5, 300, 40), (128, 128), torch.float32, 3)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 7000)
    with Files() as files:
        stored = huggingface.read_file(str(tmp_path / "model.safetensors"), files)
        lazy = dequantized(stored, Quantization("fp8", (128, 128)), "model")["w"]
        reader, found = TensorReader(files), []
        for (part,) in blocks.parts(lazy):
            for start, stop in blocks.row_blocks(part):
                block = reader.rows(part, start, stop)
                assert block.nbytes <= 7000
                found.append(block.copy())
    assert len(found) == 5 * 7
    assert numpy.concatenate(found).tobytes() == expected.to(torch.bfloat16).view(torch.int16).numpy().tobytes()
