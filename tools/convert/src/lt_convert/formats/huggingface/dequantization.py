"""Quantized tensors of a Hugging Face model under the names, and in the shapes, of the model before quantization.

Block fp8 stores `X.weight` in fp8 and `X.weight_scale_inv`: a value is the fp8 number times the scale of its block; the blocks at
the lower and the right edge may be partial. MXFP4 stores `X_blocks` and `X_scales`, with the rows of X as columns, the layout for
a matrix product; X is their transpose, as in files that transformers saves. All other tensors stay unchanged.
"""

from collections.abc import Mapping

from lt_convert.tensors.encodings import E8M0, FP4_HIGH, FP4_LOW, FP8, Encoding, ScaleAxis, Scales
from lt_convert.tensors.tensor import Chunk, Tensor, View
from lt_shared.console import BadData
from lt_shared.models.quantization import MXFP4_BLOCK, Quantization

DTYPE = "bfloat16"
SCALE, BLOCKS, SCALES = "_scale_inv", "_blocks", "_scales"
_SCALE_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16", E8M0: E8M0, "uint8": E8M0}


def dequantized(tensors: Mapping[str, Tensor], quantization: Quantization | None, origin: str) -> dict[str, Tensor]:
    """Return the tensors as bfloat16, or unchanged. Raises BadData, naming `origin`, if weights and scales do not fit."""
    if quantization is None:
        return dict(tensors)
    decoded = _fp8(tensors, quantization.block, origin) if quantization.method == "fp8" else _mxfp4(tensors, origin)
    if not any(tensor.encodings for tensor in decoded.values()):
        raise BadData(f"{origin}: no weight is stored as {quantization}", "remove quantization_config from its config.json")
    return decoded


def _fp8(tensors: Mapping[str, Tensor], block: tuple[int, int], origin: str) -> dict[str, Tensor]:
    decoded = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE):
            if tensors.get(name.removesuffix(SCALE), tensor).dtype != FP8:
                raise BadData(f"{origin}: {name} is there, and no weight in fp8 that it scales")
            continue
        if tensor.dtype != FP8:
            decoded[name] = tensor
            continue
        scale = tensors.get(name + SCALE)
        if scale is None:
            raise BadData(f"{origin}: {name} is stored as {FP8}, and there is no {name}{SCALE}")
        decoded[name] = _scaled(tensor, scale, block, origin)
    return decoded


def _scaled(tensor: Tensor, scale: Tensor, block: tuple[int, int], origin: str) -> Tensor:
    """Raises BadData unless there is a scale for each block of a weight."""
    leading = tensor.shape[:-2]
    expected = (*leading, *(-(-size // width) for size, width in zip(tensor.shape[-2:], block, strict=True)))
    if len(tensor.shape) < 2 or scale.shape != expected:
        raise BadData(
            f"{origin}: {scale.name} is {list(scale.shape)}, {tensor.name} of {list(tensor.shape)} needs {list(expected)}"
        )
    blocks = (*(1,) * len(leading), *block)
    return _encoded(tensor, ((FP8, range(tensor.shape[-1])),), scale, blocks, origin)


def _mxfp4(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    decoded = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(BLOCKS)
        if name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in tensors:
            continue
        if not name.endswith(BLOCKS):
            decoded[name] = tensor
            continue
        scale = tensors.get(stem + SCALES)
        if scale is None:
            raise BadData(f"{origin}: {name} has no {stem}{SCALES}")
        if tensor.dtype != "uint8" or scale.dtype != "uint8" or tensor.shape != (*scale.shape, MXFP4_BLOCK // 2):
            raise BadData(
                f"{origin}: {name} is {tensor.dtype} {list(tensor.shape)} and {stem}{SCALES} {scale.dtype} {list(scale.shape)}: "
                f"they are no MXFP4"
            )
        rows = _joined_bytes(tensor, stem)
        width = rows.shape[-1]
        halves = ((FP4_LOW, range(0, width, 2)), (FP4_HIGH, range(1, width, 2)))
        blocks = (*(1,) * (len(rows.shape) - 1), MXFP4_BLOCK)
        order = (*range(len(rows.shape) - 2), len(rows.shape) - 1, len(rows.shape) - 2)
        decoded[stem] = _encoded(rows, halves, scale, blocks, origin).permuted(order)
    return decoded


def _joined_bytes(tensor: Tensor, name: str) -> Tensor:
    """[..., groups, 16] bytes as [..., groups x 32] values, two to a byte: the view still has the bytes."""
    view = _view(tensor)
    width = view.shape[-2] * view.shape[-1]
    joined = View(view.file, view.offset_bytes, (*view.shape[:-2], width), (*view.strides_bytes[:-2], 1))
    shape = (*view.shape[:-2], 2 * width)
    return Tensor(name, tensor.dtype, shape, (Chunk(tuple(map(range, shape)), joined),), tensor.dtype)


def _encoded(tensor: Tensor, parts: tuple[tuple[str, range], ...], scale: Tensor, blocks: tuple[int, ...], origin: str) -> Tensor:
    """The tensor with its values decoded: `parts` has an encoding and the indices of the last axis that the view's items fill.

    `blocks` are the values along each axis that share a scale.
    """
    if scale.dtype not in _SCALE_DTYPES:
        raise BadData(f"{origin}: {scale.name} is stored as {scale.dtype}, which is no dtype of scales")
    view, scales = _view(tensor), _view(scale)
    chunks = []
    for dtype, filled in parts:
        axes = [ScaleAxis(0, 1, block, stride) for block, stride in zip(blocks, scales.strides_bytes, strict=True)]
        axes[-1] = axes[-1].sliced(filled.start, filled.step)
        encoding = Encoding(dtype, Scales(scales.file, scales.offset_bytes, _SCALE_DTYPES[scale.dtype], tuple(axes)))
        indices = (*map(range, tensor.shape[:-1]), filled)
        chunks.append(Chunk(indices, View(view.file, view.offset_bytes, view.shape, view.strides_bytes, encoding)))
    return Tensor(tensor.name, DTYPE, tensor.shape, tuple(chunks), "float32")


def _view(tensor: Tensor) -> View:
    """Where a tensor of a safetensors file is: in one piece."""
    view = tensor.chunks[0].view
    assert view is not None
    return view
