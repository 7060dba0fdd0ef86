"""Steps with FSDP and the kernels that need a Hopper GPU, on two ranks, for `steps_by_hand`; torch computes their GEMMs."""

import dataclasses
from collections.abc import Callable
from typing import Any

from gemms_of_torch import gemm, gemm_gradient
from loss_training import exponential_gemm

STEPS = 3
FSDP = ("--use-torch-fsdp2",)
# A weight of the output layer's own, whose hooks have to do with it, and one that is the embedding's, too.
MODELS = {"own output layer": ("--untie-embeddings-and-output-weights",), "tied": ()}
PRECISIONS = {"fp32": (), "bf16": ("--bf16",)}


def sharded_losses(build: Callable[..., Any]) -> dict[str, Any]:
    """Losses of the steps by precision and model, of runs that `build` makes of options: of ranks that have all weights and
    torch's kernels, and with FSDP. And how many hooks are on weights after the last step."""
    from lt_train.config import kernels
    from lt_train.ops import fused_linear_cross_entropy, fused_swiglu_mlp

    choose = kernels.choose
    fused_linear_cross_entropy.exponential_gemm = exponential_gemm
    fused_swiglu_mlp.gated_gemm, fused_swiglu_mlp.gated_gemm_gradient = gemm, gemm_gradient
    found: dict[str, Any] = {}
    for precision, options in PRECISIONS.items():
        for model, more in MODELS.items():
            common = (*options, *more, "--lr", "1e-2", "--global-batch-size", "4")
            plain = build(*common, "--kernels", "torch")
            expected = [plain.step().loss for _ in range(STEPS)]
            kernels.choose = lambda *run: dataclasses.replace(
                choose(*run), swiglu="gemm-epilogue", cross_entropy="fused-linear", recomputes_swiglu=False
            )
            try:
                run = build(*common, *FSDP, "--kernels", "triton")
            finally:
                kernels.choose = choose
            losses = [run.step().loss for _ in range(STEPS)]
            found[f"{precision} {model}"] = {"expected": expected, "found": losses, "hooks": _hooks(run)}
    return found


def _hooks(run: Any) -> int:
    """On the gathered weights, which stay from step to step."""
    groups = [module._get_fsdp_state()._fsdp_param_group for module in _units(run.state.chunks[0].module)]
    weights = [each._unsharded_param for group in groups if group for each in group.fsdp_params]
    assert weights
    return sum(len(weight._backward_hooks or ()) for weight in weights)


def _units(model: Any) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
