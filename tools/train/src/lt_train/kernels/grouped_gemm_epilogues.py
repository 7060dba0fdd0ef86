"""Grouped GEMMs by quack's Hopper kernels, the first with SwiGLU in its epilogue and weight gradients written where they belong.

`lt_train.ops.grouped_gemm` says what a grouped GEMM is; there it is torch's. For a layer of Qwen3-30B-A3B and 131,072 rows on an
H100, 2026-11-25, alone, in ms, torch's and these: second matrix 0.79 and 0.66, gradient of the first one's input 1.49 and 1.30,
weight gradients 1.45 and 1.28, 0.73 and 0.60. torch's weight gradients are then copied into the gradient buffer, 0.8; these are
written or added there by the GEMM, also to float32.

quack can gather the rows in the GEMM as well, but loads them without the tensor memory accelerator then: 2.1 ms instead of 0.35
for the gather and 1.3 for the GEMM, so that rows are gathered before.
"""

import functools
from typing import Any

from torch import Tensor

from lt_train.kernels.gemm_epilogues import configuration, prepare_quack


def times_transposed(rows: Tensor, weight: Tensor, borders: Tensor) -> Tensor:
    """`rows` [m, k], `weight` [groups, n, k]: [m, n]. `borders`, int32 [groups + 1], are as in `lt_train.ops.grouped_gemm`."""
    return _multiply(rows, weight.transpose(1, 2), borders)


def times(rows: Tensor, weight: Tensor, borders: Tensor) -> Tensor:
    """`rows` [m, n], `weight` [groups, n, k]: [m, k]."""
    return _multiply(rows, weight, borders)


def gated(rows: Tensor, weight: Tensor, probabilities: Tensor, borders: Tensor) -> tuple[Tensor, Tensor]:
    """`rows` [m, k] times the transposes of `weight` [groups, 2 n, k], gates first: [m, 2 n]; and its SwiGLU [m, n] times
    `probabilities`, float32 [m]."""
    gate_up = rows.new_empty(len(rows), weight.shape[1])
    gate, up = gate_up.chunk(2, dim=-1)
    out = {"gate": gate, "up": up, "activation": rows.new_empty(gate.shape)}
    if len(rows):
        _gated_gemm()(
            rows, weight.transpose(1, 2), out=out, store_d=False, concat_layout=("B",), config=configuration(), tuned=False,
            cu_seqlens_m=borders, factor=probabilities,
        )  # fmt: skip
    return gate_up, out["activation"]


def weight_gradient(gradient: Tensor, rows: Tensor, borders: Tensor, out: Tensor, adds: bool) -> None:
    """For each group the transpose of its rows of `gradient` [m, n] times its rows of `rows` [m, k], written or added to `out`
    [groups, n, k], of 16 or 32 bits."""
    if not len(rows):
        if not adds:
            out.zero_()
    elif adds:
        _gemm()(gradient.t(), rows, out, out, config=configuration(), cu_seqlens_k=borders, add_to_output=False)
    else:
        _gemm()(gradient.t(), rows, out, config=configuration(), cu_seqlens_k=borders)


def load() -> None:
    """Import quack, which the first call would do."""
    _gemm()


def _multiply(rows: Tensor, matrices: Tensor, borders: Tensor) -> Tensor:
    out = rows.new_empty(len(rows), matrices.shape[2])
    if len(rows):
        _gemm()(rows, matrices, out, config=configuration(), cu_seqlens_m=borders)
    return out


@functools.cache
def _gemm() -> Any:
    """quack's GEMM for a given configuration, without its search for the best."""
    from quack.gemm_interface import gemm_tuned

    prepare_quack()
    return gemm_tuned.fn


@functools.cache
def _gated_gemm() -> Any:
    from quack.activation import swiglu
    from quack.epilogue import gemm_epilogue, unpack
    from quack.epilogue.ops import ColVecLoad

    prepare_quack()

    def forward(acc: Any, factor: Any) -> dict[str, Any]:
        gate, up = unpack(acc)
        return {"gate": gate, "up": up, "activation": swiglu(gate, up) * factor}

    return gemm_epilogue(outputs=("gate", "up", "activation"), mode="acc_pair", ops={"factor": ColVecLoad("factor")})(forward)
