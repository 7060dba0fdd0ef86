"""GEMMs with SwiGLU or a softmax's exponentials in their epilogue, by quack's Hopper kernels (NVIDIA's CuTe language).

A GEMM has its accumulators in registers before it writes them; an epilogue computes on the registers, without a pass over memory.
In the loss, the epilogue turns logits into the exponentials of a softmax and sums them
(`lt_train.ops.fused_linear_cross_entropy`). quack compiles a kernel once, for about 10 s, and caches it.

Gate and up are the two halves of a tensor in Megatron's order, not interleaved as in quack's epilogues. So the layer's remaining
GEMMs, which are torch's, and weights, gradients and checkpoints need no change.

Only this module and `lt_train.kernels.grouped_gemm_epilogues` call quack.
"""

import functools
import math
import os
from typing import Any

from torch import Tensor

# Columns of a tile. Row sums cover whole tiles, so the tile width must divide the matrix: columns beyond it would be summed.
WIDE, COLUMNS = 192, 128
LOG2E = math.log2(math.e)


def gated_gemm(rows: Tensor, weight: Tensor, gate_up: Tensor, activation: Tensor) -> None:
    """Multiply `rows` [m, k] by the transpose of `weight` [2 n, k], gates first.

    Writes the product to `gate_up` [m, 2 n], and its SwiGLU to `activation` [m, n]. All tensors have 16 bits; k and n are
    multiples of 8. The kernel computes a column of the gate and the same column of up side by side, so that 4 m n bytes less are
    read. On an H200, 2026-11-22, for Llama 3 8B's width and 32,768 tokens: 11.3 ms instead of 11.7.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    out = {"gate": gate, "up": up, "activation": activation}
    _epilogues().forward(rows, weight.t(), out=out, store_d=False, concat_layout=("B",), config=configuration(), tuned=False)


def gated_gemm_gradient(gradient: Tensor, weight: Tensor, gate_up: Tensor, result: Tensor, activation: Tensor | None) -> None:
    """Write the gradient of `gate_up` [m, 2 n] to `result`, from the output's `gradient` [m, h] and `weight` [h, n].

    Recomputes SwiGLU into `activation`, unless it is None. The GEMM that gives the activation's gradient reads gate and up and
    writes their gradients instead: 4 m n bytes less are read and written. On an H200, 2026-11-22, for Llama 3 8B's width and
    32,768 tokens: 5.9 ms instead of 6.7, and 6.2 with the activation recomputed.
    """
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
    """Import quack now instead of in the first call."""
    _epilogues()


def columns_of_tile(columns: int) -> int:
    """Return the tile width of `exponential_gemm` for a number of columns."""
    return WIDE if columns % WIDE == 0 else COLUMNS


class _Epilogues:
    """The functions that quack traces, for a thread's numbers, once for every kernel that it compiles."""

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
    """Set quack's cache directory and let it hash cutlass. Call this before the first kernel is compiled."""
    from quack import cache

    _let_cutlass_lie_anywhere()
    if cache.CACHE_DIR is None:
        # Not quack's default, see `lt_train.kernels.compile_caches`.
        cache.CACHE_DIR = os.environ.get("QUACK_CACHE_DIR")


def _let_cutlass_lie_anywhere() -> None:
    """Let quack hash an epilogue that calls cutlass when cutlass is installed outside site-packages.

    quack hashes the functions that an epilogue calls, because the hash selects a compiled kernel in its cache. It hashes
    functions of installed packages by name, and other functions with their global variables; one global variable of cutlass
    cannot be hashed. quack takes a package for installed only if its path has a directory called site-packages or dist-packages;
    `pip install --target` installs to any directory. cutlass-dsl's version is part of quack's keys in any case.
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

    # Dynamic scheduling: persistent thread blocks fill the GPU, and a block takes its next tile when it is ready. With a fixed
    # share of tiles, a kernel would end with its slowest block: 821 instead of 809 to 815 ms for a step of 8 layers of Llama 3
    # 8B's width. If collectives occupy some multiprocessors, a block without one would even start after all others: 4.5 ms
    # instead of 2.8.
    return GemmConfig(tile_m=128, tile_n=columns, pingpong=True, is_dynamic_persistent=True)
