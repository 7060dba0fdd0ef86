"""Steps with FSDP and the kernels that need a Hopper GPU, on two ranks, for `steps_by_hand`; torch computes their GEMMs."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from gemms_of_torch import gemm, gemm_gradient
from loss_training import exponential_gemm

STEPS = 2
# Triton's kernels are interpreted here, a program at a time: half of the tokens and of the width take a third of the time.
SMALL = ("--hidden-size", "32", "--ffn-hidden-size", "64", "--seq-length", "8")
FSDP = ("--use-torch-fsdp2",)
# A weight of the output layer's own, whose hooks have to do with it, and one that is the embedding's, too.
UNTIED = ("--untie-embeddings-and-output-weights",)
RUNS = {"fp32, own output layer": UNTIED, "bf16, tied": ("--bf16",)}
EXPERTS = ("--num-experts", "4", "--moe-router-topk", "2")
MODELS = {"own output layer, recomputed": (*UNTIED, "--recompute-granularity", "full"), "tied, experts": EXPERTS}


def sharded_losses(build: Callable[..., Any]) -> dict[str, Any]:
    """Losses of the steps of each of RUNS, of runs that `build` makes of options: of ranks that have all weights and
    torch's kernels, and with FSDP. And how many hooks are on weights after the last step."""
    from lt_train.config import kernels
    from lt_train.ops import fused_linear_cross_entropy, fused_swiglu_mlp

    choose = kernels.choose
    fused_linear_cross_entropy.exponential_gemm = exponential_gemm
    fused_swiglu_mlp.gated_gemm, fused_swiglu_mlp.gated_gemm_gradient = gemm, gemm_gradient
    found: dict[str, Any] = {}
    for name, options in RUNS.items():
        common = (*options, *SMALL, "--lr", "1e-2", "--global-batch-size", "4")
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
        found[name] = {"expected": expected, "found": losses, "hooks": _hooks(run)}
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


class GatheredBuffer:
    """In place of memory that ranks read of each other: what they have of it is brought up to date by barriers alone."""

    def __init__(self, group: Any, count: int, dtype: torch.dtype):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.parts = [torch.full((count,), math.nan, dtype=dtype) for _ in range(self.size)]

    def rank_buffer(self, rank: int) -> torch.Tensor:
        return self.parts[rank]

    def barrier(self) -> None:
        found = [torch.empty_like(part) for part in self.parts]
        torch.distributed.all_gather(found, self.parts[self.rank], group=self.group)
        for rank, part in enumerate(found):
            if rank != self.rank:
                self.parts[rank].copy_(part)


def peer_losses(build: Callable[..., Any]) -> dict[str, Any]:
    """Losses with FSDP's collectives by torch and by each other's memory; between the steps ranks evaluate, and set weights."""
    from lt_train.config import kernels
    from lt_train.models import builder

    choose, symmetric = kernels.choose, builder.SymmetricBuffer
    builder.SymmetricBuffer = GatheredBuffer
    found: dict[str, Any] = {}
    try:
        for model, options in MODELS.items():
            outcome = {}
            for collectives in ("torch", kernels.PEER_MEMORY):
                kernels.choose = lambda *run, chosen=collectives: dataclasses.replace(
                    choose(*run), collectives=chosen, adamw="triton"
                )
                run = build("--bf16", *options, *FSDP, *SMALL, "--lr", "1e-2", "--kernels", "torch")
                outcome[collectives] = _losses_between_changes(run)
                assert (run.state.chunks[0].collectives.gathering is None) == (collectives == "torch")
            found[model] = outcome
    finally:
        kernels.choose, builder.SymmetricBuffer = choose, symmetric
    return found


def _losses_between_changes(run: Any) -> list[float]:
    (chunk,) = run.state.chunks
    losses = [run.step().loss, run.step().loss, run.forward_backward.evaluate(run._batches(1.0), 1), run.step().loss]
    chunk.load_state_dict({name: tensor.data for name, tensor in chunk.sharded_state_dict().items()})
    losses += [run.forward_backward.evaluate(run._batches(1.0), 1), run.step().loss]
    run.step(mask=math.nan)
    return [*losses, run.step().loss]
