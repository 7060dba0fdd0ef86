"""Grouped GEMMs by quack's Hopper kernels, with SwiGLU in an epilogue and weight gradients written to the gradient buffer.

`lt_train.ops.grouped_gemm` defines a grouped GEMM and implements it by torch. Times in ms of torch's kernels and these, for a
layer of Qwen3-30B-A3B and 131,072 rows on an H100 without other work, 2026-11-25: the second matrix 0.79 and 0.66, the gradient
of the first matrix's input 1.49 and 1.30, the weight gradients 1.45 and 1.28, and 0.73 and 0.60. torch's weight gradients are
copied to the gradient buffer afterwards, 0.8; quack's GEMM writes or adds them to the buffer, also in float32.

quack can also gather the rows in the GEMM, but then it loads them without the tensor memory accelerator: 2.1 ms instead of 0.35
for a gather and 1.3 for the GEMM. So rows are gathered before the GEMM.
"""

import functools
from typing import Any

from torch import Tensor

from lt_train.kernels.gemm_epilogues import configuration, prepare_quack


def times_transposed(rows: Tensor, weight: Tensor, borders: Tensor) -> Tensor:
    """Multiply a group's rows of `rows` [m, k] by the transpose of its matrix in `weight` [groups, n, k]. Returns [m, n].

    `borders`, int32 [groups + 1], are defined in `lt_train.ops.grouped_gemm`.
    """
    return _multiply(rows, weight.transpose(1, 2), borders)


def times(rows: Tensor, weight: Tensor, borders: Tensor) -> Tensor:
    """Multiply a group's rows of `rows` [m, n] by its matrix in `weight` [groups, n, k]. Returns [m, k]."""
    return _multiply(rows, weight, borders)


def gated(rows: Tensor, weight: Tensor, probabilities: Tensor, borders: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply `rows` [m, k] by the transposes of `weight` [groups, 2 n, k], gates first.

    Returns the product [m, 2 n], and its SwiGLU [m, n] times `probabilities`, float32 [m].
    """
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
    """Write or add every group's weight gradient to `out` [groups, n, k], of 16 or 32 bits.

    A group's weight gradient is the transpose of its rows of `gradient` [m, n] times its rows of `rows` [m, k].
    """
    if not len(rows):
        if not adds:
            out.zero_()
    elif adds:
        _gemm()(gradient.t(), rows, out, out, config=configuration(), cu_seqlens_k=borders, add_to_output=False)
    else:
        _gemm()(gradient.t(), rows, out, config=configuration(), cu_seqlens_k=borders)


def load() -> None:
    """Import quack now instead of in the first call."""
    _gemm()


def _multiply(rows: Tensor, matrices: Tensor, borders: Tensor) -> Tensor:
    out = rows.new_empty(len(rows), matrices.shape[2])
    if len(rows):
        _gemm()(rows, matrices, out, config=configuration(), cu_seqlens_m=borders)
    return out


@functools.cache
def _gemm() -> Any:
    """Return quack's GEMM with a fixed configuration, without quack's search for the best one."""
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
