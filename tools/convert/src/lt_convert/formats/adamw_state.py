"""AdamW's state in every format that stores it: two moments per weight, under its name and in its shape.

The tables of the weights therefore convert the moments, too.
"""

import re
from collections.abc import Iterable, Mapping

from lt_convert.formats.checkpoint import OptimizerState
from lt_convert.tensors.blocks import TensorReader, flat
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.mapping import PADDING
from lt_shared.console import BadData
from lt_shared.console.shard_option import WHOLE, Slice

EXP_AVG, EXP_AVG_SQ, PARAM = "exp_avg", "exp_avg_sq", "param"
MOMENTS = (EXP_AVG, EXP_AVG_SQ)
TOKENS = "train_state.ntokens_seen"
HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")
# The other entries of a param group of torch's AdamW; the fused implementation is TorchTitan's default.
FLAGS = {
    "amsgrad": False,
    "maximize": False,
    "foreach": False,
    "capturable": False,
    "differentiable": False,
    "fused": True,
    "decoupled_weight_decay": True,
}
REMEDY = "save it once with Megatron-LM's --dist-ckpt-optim-fully-reshardable, or convert the weights alone with --no-optimizer"
# Rows per tensor that are compared with the main weights.
SAMPLED_ROWS = 8
# Of the matrices that Muon updates; AdamW has the other parameters.
_MUON = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.momentum_buffer\..+")


def check(state: OptimizerState) -> None:
    """Raises BadData for a state that cannot be converted."""
    if state.problem:
        raise BadData(state.problem, REMEDY)


def check_main_weights(
    state: OptimizerState, weights: Mapping[str, Tensor], files: Files, origin: str, part: Slice = WHOLE
) -> None:
    """Raises BadData where main weights, rounded, are not the model's: flat buffers in an unknown order, or damaged ones.

    Each `part` of a conversion looks at its share of the weights.
    """
    one, other = TensorReader(files), TensorReader(files)
    for name, main in [*state.tensors.get(PARAM, {}).items()][part.index :: part.count]:
        if name.startswith(PADDING):
            continue
        mine, its = flat(main.cast(weights[name].dtype)), flat(weights[name])
        for row in sorted({number * (its.shape[0] - 1) // (SAMPLED_ROWS - 1) for number in range(SAMPLED_ROWS)}):
            if one.rows(mine, row, row + 1).tobytes() != other.rows(its, row, row + 1).tobytes():
                raise BadData(f"{origin}: the optimizer's main weights of {name} are not the model's weights", REMEDY)


def is_of_muon(keys: Iterable[str]) -> bool:
    """Return whether the training state with these keys is Muon's. No other format can store it."""
    return any(_MUON.fullmatch(key) for key in keys)
