"""`torch.optim.optimizer`: call optimizers without torch's compiler.

torch wraps four methods to say that its compiler shall not compile them, which imports 0.4 s of the compiler at their first call.
lt-train compiles no optimizer.
"""

import torch

from lt_train.megatron.upstream import TORCH, Upstream

UPSTREAM = Upstream(
    "torch.optim.optimizer",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={
        "Optimizer.add_param_group": "(self, param_group)",
        "Optimizer.load_state_dict": "(self, state_dict)",
        "Optimizer.state_dict": "(self)",
        "Optimizer.zero_grad": "(self, set_to_none=True)",
    },
)


def undo_marks() -> None:
    """Remove torch's compile-disable wrappers from the optimizer methods; lt-train never compiles them."""
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        marked = getattr(torch.optim.Optimizer, name)
        setattr(torch.optim.Optimizer, name, getattr(marked, "__wrapped__", marked))
