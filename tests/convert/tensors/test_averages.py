"""Averages of tensors that are stored in different ways."""

from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

from lt_convert.formats import huggingface
from lt_convert.formats.huggingface.dequantization import dequantized
from lt_convert.tensors import blocks
from lt_convert.tensors.averages import Average
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.output_files import OutputFile, views
from lt_convert.tensors.source_files import Files
from lt_shared.models.quantization import MXFP4

EXPERTS, ROWS, GROUPS = 3, 40, 4


def test_mxfp4_and_bf16_are_averaged_by_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts one by one, in blocks of a few rows; the scales are among what is read."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (EXPERTS, ROWS, GROUPS, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(120, 130, (EXPERTS, ROWS, GROUPS), generator=generator, dtype=torch.uint8)
    plain = torch.randn(EXPERTS, GROUPS * 32, ROWS, generator=generator).bfloat16()
    save_file({"x_blocks": packed, "x_scales": scales}, tmp_path / "packed.safetensors")
    save_file({"x": plain}, tmp_path / "plain.safetensors")
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    values = convert(packed, scales, dtype=torch.bfloat16).double()
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "TRANSPOSED_BLOCK_BYTES", 8000)
    with Files() as files:
        one = dequantized(huggingface.read_file(str(tmp_path / "packed.safetensors"), files), MXFP4, "model")["x"]
        other = huggingface.read_file(str(tmp_path / "plain.safetensors"), files)["x"]
        average = Average("x", one, ((0.7, one), (0.3, other)))
        pieces = [bytes(piece) for piece in average.contents(TensorReader(files))]
        read = {path for path, _, _ in views([OutputFile("model", (average,))])}
    found = torch.from_numpy(numpy.frombuffer(b"".join(pieces), numpy.int16).copy()).view(torch.bfloat16)
    assert len(pieces) > EXPERTS
    assert torch.equal(found.view(plain.shape), (0.7 * values + 0.3 * plain.double()).float().bfloat16())
    assert {Path(path).name for path in read} == {"packed.safetensors", "plain.safetensors"}
