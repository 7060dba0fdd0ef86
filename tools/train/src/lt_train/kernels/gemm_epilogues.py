"""GEMMs with SwiGLU or a softmax's exponentials in their epilogue, by quack's Hopper kernels (NVIDIA's CuTe language).

A GEMM has its accumulators in registers before it writes them; an epilogue computes on them there, without a pass over memory.
SwiGLU, forward: a column of the gate and the same column of up are computed side by side, and one kernel writes gate, up and
silu(gate) x up. Backward, the GEMM that gives the activation's gradient reads gate and up, and writes their gradients instead.
For a layer of m rows that is 4 m n bytes less read forward, and 4 m n less read and written backward, for the same sums. On an
H200, 2026-11-22, for Llama 3 8B's width and 32,768 tokens: forward 11.3 ms instead of 11.7, backward 5.9 instead of 6.7, and 6.2
with the activation recomputed. The loss: logits become the exponentials that a softmax is made of, and their sums
(`lt_train.ops.fused_linear_cross_entropy`). A kernel takes about 10 s to compile, once: quack keeps it.

Persistent thread blocks fill the GPU, and each takes its next tile when it is ready (dynamic scheduling). With a fixed share of
tiles for each block a kernel would end with the slowest: 821 instead of 809 to 815 ms a step of 8 layers of that width. Where
collectives occupy some of the multiprocessors, blocks without one would even start after the others: 4.5 ms instead of 2.8.

Gate and up are the two halves of one tensor in Megatron's order, not interleaved as in quack's epilogues. So the
layer's remaining GEMMs, which are torch's, and weights, gradients and checkpoints need no change.

This module and `lt_train.kernels.grouped_gemm_epilogues` are the only ones that call quack.
"""

import functools
import math
import os
from typing import Any

from torch import Tensor

# The columns of a tile. Row sums are over whole tiles: columns beyond the matrix would be summed.
WIDE, COLUMNS = 192, 128
LOG2E = math.log2(math.e)


def gated_gemm(rows: Tensor, weight: Tensor, gate_up: Tensor, activation: Tensor) -> None:
    """`rows` [m, k] times the transpose of `weight` [2 n, k], gates first, into `gate_up` [m, 2 n]; its SwiGLU into `activation`
    [m, n].

    In 16 bits; k and n are multiples of 8.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    out = {"gate": gate, "up": up, "activation": activation}
    _epilogues().forward(rows, weight.t(), out=out, store_d=False, concat_layout=("B",), config=configuration(), tuned=False)


def gated_gemm_gradient(gradient: Tensor, weight: Tensor, gate_up: Tensor, result: Tensor, activation: Tensor | None) -> None:
    """The gradient of `gate_up` [m, 2 n], from that of the output [m, h] and `weight` [h, n], into `result`; SwiGLU, recomputed,
    into `activation`, if there is one."""
    operands = dict(zip(("gate", "up"), gate_up.chunk(2, dim=-1), strict=True))
    out = dict(zip(("gate_gradient", "up_gradient"), result.chunk(2, dim=-1), strict=True))
    if activation is not None:
        out["activation"] = activation
    gemm = _epilogues().backward if activation is None else _epilogues().backward_with_activation
    gemm(gradient, weight, out=out, store_d=False, config=configuration(), tuned=False, **operands)


def exponential_gemm(rows: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2^(log2(e) x `rows` [m, k] times the transpose of `weight` [n, k] - `offsets` [m]), and the row sums.

    `rows`, `weight` and the result are bfloat16, k is a multiple of 8 and n of `COLUMNS`; `offsets` and sums are float32 [m].
    """
    chosen = configuration(columns_of_tile(weight.shape[0]))
    result = _epilogues().exponential(rows, weight.t(), offset=offsets.view(1, -1), config=chosen, tuned=False)
    return result["D"], result["total"]


def load() -> None:
    """Import quack, which the first call would do."""
    _epilogues()


def columns_of_tile(columns: int) -> int:
    """Return the tile width of `exponential_gemm` for a number of columns."""
    return WIDE if columns % WIDE == 0 else COLUMNS


class _Epilogues:
    """quack traces these functions for the numbers of a thread, once for each kernel it compiles."""

    def __init__(self) -> None:
        from quack.activation import dswiglu, swiglu
        from quack.epilogue import gemm_epilogue, unpack
        from quack.epilogue.math import pexp2
        from quack.epilogue.ops import ColVecLoad, ColVecReduce

        prepare_quack()

        def forward(acc: Any) -> dict[str, Any]:
            gate, up = unpack(acc)
            return {"gate": gate, "up": up, "activation": swiglu(gate, up)}

        def backward(acc: Any, gate: Any, up: Any) -> dict[str, Any]:
            gate_gradient, up_gradient, _ = dswiglu(gate, up, acc)
            return {"gate_gradient": gate_gradient, "up_gradient": up_gradient}

        def backward_with_activation(acc: Any, gate: Any, up: Any) -> dict[str, Any]:
            gate_gradient, up_gradient, activation = dswiglu(gate, up, acc)
            return {"gate_gradient": gate_gradient, "up_gradient": up_gradient, "activation": activation}

        def exponential(acc: Any, offset: Any) -> dict[str, Any]:
            result = pexp2(acc * LOG2E - offset)
            return {"D": result, "total": result}

        gradients = ("gate_gradient", "up_gradient")
        self.forward = gemm_epilogue(outputs=("gate", "up", "activation"), mode="acc_pair")(forward)
        self.backward = gemm_epilogue(outputs=gradients)(backward)
        self.backward_with_activation = gemm_epilogue(outputs=(*gradients, "activation"))(backward_with_activation)
        self.exponential = gemm_epilogue(ops={"offset": ColVecLoad("offset")}, reduces={"total": ColVecReduce("total")})(
            exponential
        )


def prepare_quack() -> None:
    """Before the first kernel is made."""
    from quack import cache

    _let_cutlass_lie_anywhere()
    if cache.CACHE_DIR is None:
        # Not quack's default, see `lt_train.kernels.compile_caches`.
        cache.CACHE_DIR = os.environ.get("QUACK_CACHE_DIR")


def _let_cutlass_lie_anywhere() -> None:
    """quack hashes what an epilogue calls, to know which compiled kernels to take from its cache.

    It takes functions of installed packages by name, and those of all others with their global variables; cutlass has one that it
    cannot hash. By the path it finds only what lies in a directory called site-packages or dist-packages, but packages also lie
    where `pip install --target` has put them. cutlass-dsl's version is part of quack's keys in any case.
    """
    from quack.gemm_runtime import identity

    is_extern = identity._is_extern_function
    if not hasattr(is_extern, "by_path"):

        def by_module(function: Any) -> bool:
            return is_extern(function) or (getattr(function, "__module__", None) or "").partition(".")[0] == "cutlass"

        by_module.by_path = is_extern  # type: ignore[attr-defined]
        identity._is_extern_function = by_module


@functools.cache
def _epilogues() -> _Epilogues:
    return _Epilogues()


@functools.cache
def configuration(columns: int = WIDE) -> Any:
    from quack.gemm_config import GemmConfig

    return GemmConfig(tile_m=128, tile_n=columns, pingpong=True, is_dynamic_persistent=True)
