"""Megatron's stacked layers: torch_dist stores one weight for the whole decoder under one key, with the layers as first axis.

`decoder.layers.mlp.linear_fc2.weight` of shape (layers, rows, columns) has a chunk per layer. The other modules of lt-convert see
one tensor per layer, `decoder.layers.3.mlp.linear_fc2.weight`. The optimizer's moments are stacked, too.
"""

import re
from collections.abc import Iterable, Mapping

from lt_convert.containers.dcp import Entry
from lt_convert.tensors.tensor import ONE_DTYPE, Tensor
from lt_shared.console import BadData

EMBEDDING = "embedding.word_embeddings.weight"

_STACKED = re.compile(r"(?P<stem>.*\bdecoder\.layers)\.(?P<rest>[^0-9].*)")
_LAYER = re.compile(r"(.*\bdecoder\.layers)\.(\d+)\.(.*)")


def prefix_of(names: Iterable[str]) -> str:
    """The prefix that some trainers add to every name of the model."""
    return next((name.removesuffix(EMBEDDING) for name in names if name.endswith(EMBEDDING)), "")


def unstacked(stacked: Tensor) -> dict[str, Tensor]:
    """Split a stacked tensor into layers by name; keep another tensor whole. Raises BadData if it has no layers or no values."""
    match = _STACKED.fullmatch(stacked.name)
    if not match:
        return {stacked.name: stacked}
    if not all(stacked.shape):
        raise BadData(f"{stacked.name} is {list(stacked.shape)}: an axis is empty")
    names = [f"{match['stem']}.{layer}.{match['rest']}" for layer in range(stacked.shape[0])]
    return {name: layer.named(name) for name, layer in zip(names, stacked.slices(), strict=True)}


def entries(tensors: Mapping[str, Tensor], count: int) -> list[Entry]:
    """The tensors of the `count` layers stacked under one key with one chunk per layer; other tensors, or all if 0, whole.

    Raises BadData if a stack's layers differ in dtype: a DCP tensor has one dtype, and torch would refuse the checkpoint.
    """
    stacks: dict[str, list[tuple[int, str, Tensor]]] = {}
    stacked: list[Entry] = []
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(name)
        if match and count:
            stacks.setdefault(f"{match[1]}.{match[3]}", []).append((int(match[2]), name, tensor))
        else:
            stacked.append(Entry.whole(name, tensor))
    for key, stack in stacks.items():
        first = stack[0][2]
        if differing := next((tensor for _, _, tensor in stack if tensor.dtype != first.dtype), None):
            raise BadData(
                f"{first.name} is {first.dtype}, and {differing.name} is {differing.dtype}: megatron-dist has one dtype for"
                f" {key} of all layers",
                ONE_DTYPE,
            )
        chunks = tuple(((layer,) + (0,) * len(tensor.shape), name, tensor.expanded(1)) for layer, name, tensor in stack)
        stacked.append(Entry(key, first.dtype, (count, *first.shape), chunks))
    return stacked
