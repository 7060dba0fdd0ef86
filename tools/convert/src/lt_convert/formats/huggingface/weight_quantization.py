"""Which weights `--quantize fp8-block` stores in fp8: the linear modules of the layers, as in DeepSeek-V3.

Embeddings, norms, biases, routers and the output layer keep their dtype. A weight whose rows or columns are no multiples of 128
does, too, though DeepSeek has partial blocks: transformers up to 5.23 divides the rows by the number of blocks, and computes
something else. Modules that inference engines fuse are stored in the same way, all or none. `modules_to_not_convert` in
config.json names every linear module that is left.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_convert.tensors.block_fp8 import BLOCK, BlockFp8
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT
from lt_shared.console import UsageError
from lt_shared.models import quantization

Written = Tensor | BlockFp8

WEIGHT, SCALE = ".weight", "_scale_inv"
# Modules that choose experts or weigh heads; of an MTP layer also its projection, and its copies of embedding and output layer,
# which must stay equal to those.
_KEPT = ("gate", "router", "shared_expert_gate", "weights_proj", "eh_proj", "embed_tokens", "head")
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
_LAYER = re.compile(r".*\.layers\.\d+\..*")
_EXPERTS = re.compile(r"(.*\.experts)\.\d+\..*")


def quantized(tensors: Mapping[str, Tensor], origin: str) -> tuple[dict[str, Written], dict[str, Any]]:
    """The tensors of a Hugging Face file, weights in fp8 each followed by its scales, and the `quantization_config`.

    Raises UsageError, naming `origin`, for a model without a weight that can be quantized.
    """
    fused = [name for name, tensor in tensors.items() if ".experts." in name and len(tensor.shape) > 2]
    if fused:
        raise UsageError(f"{origin}: {fused[0]} has all experts in one tensor, which --quantize does not know", "drop it")
    linear = [name for name, tensor in tensors.items() if _LAYER.fullmatch(name) and _is_weight(name, tensor)]
    eligible = [name for name in linear if name.removesuffix(WEIGHT).rpartition(".")[2] not in _KEPT]
    groups: dict[str, list[str]] = {}
    for name in eligible:
        groups.setdefault(_group(name), []).append(name)
    chosen = {name for names in groups.values() if all(map(_fits, map(tensors.__getitem__, names))) for name in names}
    if not chosen:
        raise UsageError(
            f"{origin}: has no linear module whose rows and columns are multiples of {BLOCK}, which --quantize fp8-block needs",
            "drop --quantize",
        )
    written: dict[str, Written] = {}
    for name, tensor in tensors.items():
        written[name] = BlockFp8(tensor) if name in chosen else tensor
        if name in chosen:
            written[name + SCALE] = BlockFp8(tensor, scales=True)
    unconverted = [_module(name) for name in linear if name not in chosen]
    head = [OUTPUT_WEIGHT.removesuffix(WEIGHT)]
    return written, quantization.block_fp8_config((BLOCK, BLOCK), list(dict.fromkeys([*head, *unconverted])))


def _is_weight(name: str, tensor: Tensor) -> bool:
    return name.endswith(WEIGHT) and len(tensor.shape) == 2


def _fits(tensor: Tensor) -> bool:
    return all(size and size % BLOCK == 0 for size in tensor.shape)


def _group(name: str) -> str:
    """Return the group of modules that are stored alike: all experts of a layer, fused modules, or the module alone."""
    module = _module(name)
    if module.endswith(".experts"):
        return module
    parent, _, last = module.rpartition(".")
    return next((f"{parent}.{names[0]}" for names in _FUSED if last in names), module)


def _module(name: str) -> str:
    """As transformers and inference engines have it: the experts of a layer are one module."""
    experts = _EXPERTS.fullmatch(name)
    return experts[1] if experts else name.removesuffix(WEIGHT)
