"""Encoding weights in block fp8: the bits that transformers makes, and what it cannot do is refused or done right."""

import types
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lt_convert.formats import huggingface
from lt_convert.tensors import block_fp8
from lt_convert.tensors.block_fp8 import BLOCK, BlockFp8
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData


def by_transformers(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    config = types.SimpleNamespace(weight_block_size=(BLOCK, BLOCK), scale_fmt="float")
    return dict(module.Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert({"w.weight": weight}))


def written(directory: Path, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The fp8 and the scales as they would be written, from a file with the weight."""
    save_file({"w.weight": weight}, directory / "model.safetensors")
    with Files() as files:
        source = huggingface.read_file(str(directory / "model.safetensors"), files)["w.weight"]
        made = {}
        for name, dtype in (("w.weight", torch.float8_e4m3fn), ("w.weight_scale_inv", torch.float32)):
            tensor = BlockFp8(source, scales=dtype == torch.float32)
            data = b"".join(bytes(block) for block in tensor.contents(TensorReader(files)))
            assert len(data) == tensor.size_bytes
            made[name] = torch.frombuffer(bytearray(data), dtype=dtype).reshape(tensor.shape)
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (40, 17)])
def test_bits_are_those_of_transformers(rows: int, columns: int, dtype: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows * BLOCK, columns * BLOCK, generator=generator)
    weight *= torch.exp2(torch.randint(-12, 3, weight.shape, generator=generator).float())
    weight[:BLOCK, :BLOCK] = 0
    weight = weight.to(dtype)
    expected, found = by_transformers(weight), written(tmp_path, weight)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


@settings(deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-149, 127))
def test_every_magnitude_stays_close(seed: int, exponent: int) -> None:
    """Within what the module promises, from the smallest to the largest of float32."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.ldexp(torch.rand(BLOCK, BLOCK, generator=generator) * 2 - 1, torch.tensor(exponent))
    weight[0, 0] = 0
    fp8, scales = block_fp8.encoded(weight.numpy(), "w")
    values = torch.from_numpy(fp8).view(torch.float8_e4m3fn).double() * torch.from_numpy(scales).double()
    assert not values.isnan().any()
    exact, largest = weight.double(), weight.abs().max().double()
    # Below 2**-100 the block counts as if its largest value were that.
    bound = torch.maximum(exact.abs() / 16, torch.clamp(largest, min=2.0**-100) / 458_752) * (1 + 1e-6)
    assert ((values - exact).abs() <= bound).all()


def test_rounding_is_torchs_for_every_float32_near_a_tie() -> None:
    codes = torch.arange(127).to(torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([ties, torch.nextafter(ties, torch.tensor(0.0)), torch.nextafter(ties, torch.tensor(500.0)), codes])
    values = torch.cat([near, -near])
    expected = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert numpy.array_equal(block_fp8._rounded(values.numpy()), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    weight = torch.zeros(BLOCK, 2 * BLOCK)
    weight[5, 200] = value
    with pytest.raises(BadData, match="w: has values that are not finite"):
        block_fp8.encoded(weight.numpy(), "w")
