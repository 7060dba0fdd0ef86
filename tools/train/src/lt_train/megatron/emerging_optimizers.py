"""`megatron.core.optimizer.emerging_optimizers`: exclude parameters from Muon.

megatron-core gives Muon every parameter with two dimensions. Grouped experts are a tensor with three, and their biases one with
two: Muon would leave out the experts and orthogonalize their biases.
"""

from collections.abc import Callable

import torch

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.optimizer.emerging_optimizers",
    MEGATRON_CORE,
    # 0.16.1 has no such module; lt-train offers Muon from 0.19 on.
    versions=("0.19.2",),
    values=("EmergingOptimizerEntry.default_param_overrides",),
)


def leave_to_adam(names: tuple[str, ...], is_no_matrix: Callable[[torch.nn.Parameter], bool]) -> None:
    """Let AdamW, not Muon, update parameters whose names match a pattern in `names`, or that satisfy `is_no_matrix`."""
    from megatron.core.optimizer.emerging_optimizers import _EMERGING_OPTIMIZERS
    from megatron.core.optimizer.optimizer_config import ParamKey, ParamPredicate

    key = ParamKey(name=names, predicate=ParamPredicate(name="no_matrix", fn=is_no_matrix))
    _EMERGING_OPTIMIZERS["muon"].default_param_overrides = {key: {"optimizer": "adam"}}
