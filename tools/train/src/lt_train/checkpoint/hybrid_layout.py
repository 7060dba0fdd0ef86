"""Give the layers in a checkpoint the numbers and names of megatron-core's HybridModel, to save one or to load one.

HybridModel numbers a block's mixer and MLP separately (`lt_shared.models.hybrid_pattern`), stores a tensor for each layer and has
another name for the last norm. The tensors themselves are GPTModel's, so the requests of a run are changed before they are
written or read, and the model and the optimizer stay unchanged.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory

from lt_shared.contracts import checkpoint_layout
from lt_shared.models import hybrid_pattern

# The layer's number is missing if all layers are stored in one tensor, with the layers as its first axis.
_LAYER = re.compile(r"(?P<stem>.*\bdecoder\.layers)\.(?:(?P<number>\d+)\.)?(?P<part>.+)")
_OF_MIXER = ("input_layernorm.", "self_attention.", "mixer.")
_LAST_NORM = "decoder.final_layernorm."
_EXTRA_STATE = "output_layer._extra_state"


def has_hybrid_layers(directory: Path) -> bool:
    """Return whether the checkpoint in `directory` has the layers of HybridModel."""
    return checkpoint_layout.has_hybrid_layers((directory / ".metadata").read_bytes())


def name_layers(sharded: dict[str, Any], has_single_parts: bool) -> None:
    """Change every tensor and object in `sharded`, the state to save or to load, to HybridModel's, in place.

    `has_single_parts`: every layer of the model is a mixer or an MLP alone (`Architecture.mlp_layers`).
    """
    dict_list_map_inplace(functools.partial(_change, has_single_parts=has_single_parts), sharded)


def add_extra_state(model: dict[str, Any]) -> None:
    """Add the empty state of the output layer to `model`, the state of the last pipeline stage, in place.

    HybridModel looks for it, unlike GPTModel. Other stages, and FSDP, which stores no such states, stay unchanged.
    """
    objects = [value for value in model.values() if isinstance(value, ShardedObject) and value.key.endswith("._extra_state")]
    if objects and any(getattr(value, "key", "").startswith(_LAST_NORM) for value in model.values()):
        model[_EXTRA_STATE] = dataclasses.replace(objects[-1], key=_EXTRA_STATE, global_shape=(1,), global_offset=(0,))


def _change(entry: Any, has_single_parts: bool) -> Any:
    if isinstance(entry, ShardedTensorFactory):
        entry.build_fn = _changed_parts(entry.build_fn, has_single_parts)
        return entry
    if not isinstance(entry, ShardedTensor | ShardedObject):
        return entry
    match = _LAYER.fullmatch(entry.key)
    if match is None:
        entry.key = entry.key.replace(_LAST_NORM, "decoder.final_norm.")
        return entry
    layer = entry.global_offset[0] if match["number"] is None else int(match["number"])
    mixer, mlp = hybrid_pattern.positions(layer, has_single_parts)
    position = mixer if match["part"].startswith(_OF_MIXER) else mlp
    entry.key = f"{match['stem']}.{position}.{match['part']}"
    return entry if match["number"] is not None else _without_layer_axis(entry)


def _changed_parts(build: Callable[..., Any], has_single_parts: bool) -> Callable[..., Any]:
    """Let a factory build changed tensors. The factory itself has no offsets."""

    def build_changed(*arguments: Any, **options: Any) -> Any:
        parts = build(*arguments, **options)
        dict_list_map_inplace(functools.partial(_change, has_single_parts=has_single_parts), parts)
        return parts

    return build_changed


def _without_layer_axis(entry: Any) -> Any:
    """Remove the axis of the layers from a layer's tensor or object."""
    if isinstance(entry, ShardedObject):
        entry.global_shape, entry.global_offset = entry.global_shape[1:] or (1,), entry.global_offset[1:] or (0,)
        return entry
    changes: dict[str, Any] = {"global_shape": entry.global_shape[1:], "global_offset": entry.global_offset[1:]}
    if entry.axis_fragmentations is not None:
        changes["axis_fragmentations"] = entry.axis_fragmentations[1:]
    if entry.prepend_axis_num:
        changes["prepend_axis_num"] = entry.prepend_axis_num - 1
    else:
        # FSDP and the distributed optimizer store slices, whose data has the axis (`lt_train.parallel.flat_shards`).
        changes["local_shape"] = entry.local_shape[1:]
        changes["data"] = None if entry.data is None else entry.data[0]
    return dataclasses.replace(entry, **changes)
