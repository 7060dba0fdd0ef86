"""`megatron.core.optimizer`: torch's optimizers also if TransformerEngine or apex are installed.

megatron-core takes Adam and SGD from these packages if it finds them. Their optimizers keep the step count elsewhere, and
megatron-core reads it depending on the installed packages: a checkpoint would resume only with the same packages.
"""

import megatron.core.optimizer
import torch

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.optimizer",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    values=("Adam", "SGD", "USING_PYTORCH_OPTIMIZER"),
)


def use_torch_optimizers() -> None:
    """Let `get_megatron_optimizer` build torch's AdamW and SGD."""
    megatron.core.optimizer.Adam = torch.optim.AdamW
    megatron.core.optimizer.SGD = torch.optim.SGD
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = True
