"""Matrix products of linear layers by the fastest of cuBLASLt's algorithms, found by trying them.

PyTorch takes the algorithm that cuBLAS guesses to be the fastest. On an H200 that computes without pause the limit is power, and
at the shapes of Llama 3 8B the best algorithm is 1 to 5% faster than the guess, forward and for the input's gradient. For the
weight's gradient the guess was the best: PyTorch makes that one.

The first product of a shape times the algorithms for half a second. Which one wins may differ between runs, and with it the last
bits of the losses: not for runs that must be deterministic.
"""

import ctypes
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from lt_train import device

ALGORITHMS = 16
TRIAL_SECONDS = 0.5
WORKSPACE_BYTES = 64 << 20
# Constants of cublasLt.h and library_types.h.
COMPUTE_FLOAT32, FLOAT32 = 68, 0
TYPES = {torch.bfloat16: 14, torch.float16: 2}
TRANSPOSE_FIRST, MAX_WORKSPACE = 3, 1


class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def forward(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows` [m, k] times the transpose of `weight` [n, k], both contiguous and of 16 bits; [m, n]."""
    output = rows.new_empty(rows.shape[0], weight.shape[0])
    return _multiply(Shape(True, output.shape[1], output.shape[0], rows.shape[1], rows.dtype), weight, rows, output)


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """`gradient` [m, n] times `weight` [n, k], both contiguous and of 16 bits; [m, k]."""
    output = gradient.new_empty(gradient.shape[0], weight.shape[1])
    return _multiply(Shape(False, output.shape[1], output.shape[0], gradient.shape[1], gradient.dtype), weight, gradient, output)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A product as cuBLAS sees it, whose matrices lie by columns: [m, k] times [k, n], the first one transposed or not."""

    transposed: bool
    m: int
    n: int
    k: int
    dtype: torch.dtype


class Product:
    """The product of one shape on one device, and the algorithm it takes."""

    def __init__(self, shape: Shape, weight: Tensor, rows: Tensor, output: Tensor):
        self._library = _library()
        self._description = ctypes.c_void_p()
        _check(self._library.cublasLtMatmulDescCreate(ctypes.byref(self._description), COMPUTE_FLOAT32, FLOAT32))
        transposed = ctypes.c_int32(shape.transposed)
        _check(
            self._library.cublasLtMatmulDescSetAttribute(
                self._description, TRANSPOSE_FIRST, ctypes.byref(transposed), ctypes.c_size_t(4)
            )
        )
        first = (shape.k, shape.m) if shape.transposed else (shape.m, shape.k)
        self._layouts = [_layout(shape.dtype, *sizes) for sizes in (first, (shape.k, shape.n), (shape.m, shape.n))]
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._algorithm = self._fastest(weight, rows, output)

    def __call__(self, weight: Tensor, rows: Tensor, output: Tensor) -> None:
        self._run(weight, rows, output, self._algorithm)

    def _run(self, weight: Tensor, rows: Tensor, output: Tensor, candidate: Candidate) -> None:
        first, second, result = self._layouts
        workspace = _workspace(output.device)
        _check(
            self._library.cublasLtMatmul(
                _handle(), self._description, ctypes.byref(self._one),
                ctypes.c_void_p(weight.data_ptr()), first, ctypes.c_void_p(rows.data_ptr()), second, ctypes.byref(self._zero),
                ctypes.c_void_p(output.data_ptr()), result, ctypes.c_void_p(output.data_ptr()), result,
                ctypes.byref(candidate), ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES),
                ctypes.c_void_p(device.stream(output.device)),
            )
        )  # fmt: skip

    def _fastest(self, weight: Tensor, rows: Tensor, output: Tensor) -> Candidate:
        """Candidates run in turns, so that they all meet the same clock, which falls as the device warms up."""
        candidates = self._candidates()
        seconds: dict[int, list[float]] = {number: [] for number in range(len(candidates))}
        spent = 0.0
        for turn in itertools.count():
            if len(candidates) == 1 or (turn > 2 and spent > TRIAL_SECONDS):
                break
            for number, candidate in enumerate(candidates):
                taken = _seconds(functools.partial(self._run, weight, rows, output, candidate))
                spent += taken
                if turn:
                    seconds[number].append(taken)
        return candidates[min(seconds, key=lambda number: statistics.median(seconds[number] or [0.0]))]

    def _candidates(self) -> list[Candidate]:
        preference = ctypes.c_void_p()
        _check(self._library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        _check(
            self._library.cublasLtMatmulPreferenceSetAttribute(preference, MAX_WORKSPACE, ctypes.byref(limit), ctypes.c_size_t(8))
        )
        first, second, result = self._layouts
        found, count = (Candidate * ALGORITHMS)(), ctypes.c_int()
        _check(
            self._library.cublasLtMatmulAlgoGetHeuristic(
                _handle(), self._description, first, second, result, result, preference, ALGORITHMS, found, ctypes.byref(count)
            )
        )
        self._library.cublasLtMatmulPreferenceDestroy(preference)
        return [candidate for candidate in found[: count.value] if candidate.status == 0]


_products: dict[tuple[Shape, torch.device], Product] = {}


def _multiply(shape: Shape, weight: Tensor, rows: Tensor, output: Tensor) -> Tensor:
    product = _products.get((shape, output.device))
    if product is None:
        product = _products[shape, output.device] = Product(shape, weight, rows, output)
    product(weight, rows, output)
    return output


def _seconds(run: Callable[[], None]) -> float:
    begin, end = device.timer(), device.timer()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _layout(dtype: torch.dtype, rows: int, columns: int) -> ctypes.c_void_p:
    layout = ctypes.c_void_p()
    _check(
        _library().cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), TYPES[dtype], ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )
    )
    return layout


@functools.cache
def _library() -> ctypes.CDLL:
    """cuBLASLt as torch has loaded it."""
    assert torch.version.cuda
    return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")


@functools.cache
def _handle() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(_library().cublasLtCreate(ctypes.byref(handle)))
    return handle


@functools.cache
def _workspace(device: torch.device) -> Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt: status {status}")
