"""Experts as transformers 5 has them in memory: all of a layer in `gate_up_proj` and `down_proj`, as some checkpoints store them.

`save_pretrained` splits them into a tensor per expert under the names of the published files, unless it is called with
`save_original_format=False` or writes the slices of ranks (`distributed_checkpoint=True`). gpt-oss is published fused.
"""

import re
from collections.abc import Mapping

from lt_convert.tensors.tensor import Tensor
from lt_shared.console import BadData

_FUSED = re.compile(r"(?P<layer>.*\.layers\.\d+\.mlp\.)experts\.(?P<part>gate_up_proj|down_proj)")
_ROUTER = re.compile(r"(?P<layer>.*\.layers\.\d+\.)mlp\.gate\.weight")
# Mixtral's names in published files: of the module, and of gate, up and down projections.
_MIXTRAL_MODULE, _MIXTRAL_PARTS = "block_sparse_moe.", ("w1", "w3", "w2")
_PARTS = ("gate_proj", "up_proj", "down_proj")


def split(tensors: Mapping[str, Tensor], model_type: str, origin: str) -> dict[str, Tensor]:
    """The tensors under the names of the published files: one for each expert. Raises BadData for shapes that do not fit."""
    if model_type == "gpt_oss" or not any(_FUSED.fullmatch(name) for name in tensors):
        return dict(tensors)
    is_mixtral = model_type == "mixtral"
    gate, up, down = _MIXTRAL_PARTS if is_mixtral else _PARTS
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match, router = _FUSED.fullmatch(name), _ROUTER.fullmatch(name)
        if match is None:
            is_renamed = router is not None and is_mixtral
            separate[f"{router['layer']}{_MIXTRAL_MODULE}gate.weight" if router and is_renamed else name] = tensor
            continue
        if len(tensor.shape) != 3 or (match["part"] == "gate_up_proj" and tensor.shape[1] % 2):
            raise BadData(f"{origin}: {name} is {list(tensor.shape)}: not the experts of a layer")
        layer = match["layer"].removesuffix("mlp.") + _MIXTRAL_MODULE if is_mixtral else match["layer"]
        for number, expert in enumerate(tensor.slices()):
            prefix = f"{layer}experts.{number}."
            if match["part"] == "down_proj":
                separate[f"{prefix}{down}.weight"] = expert
                continue
            half = expert.shape[0] // 2
            separate[f"{prefix}{gate}.weight"] = expert.take(0, range(half))
            separate[f"{prefix}{up}.weight"] = expert.take(0, range(half, 2 * half))
    return separate
