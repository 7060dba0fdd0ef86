"""Output layer and loss in fp8: the three GEMMs of the output layer take half the time that they take in 16 bits.

Hidden states and weight are e4m3 with one scale per tensor. The logits of `CHUNK` tokens at a time are written in 16 bits, read
once for the loss, and read once more for their gradient in e5m2 and its transpose (`kernels.fp8_logits`), both of which are kept
for the backward pass: as many bytes as logits in 16 bits. The gradient of the loss and the scale of a token multiply rows of h
numbers, as in `ops.fused_linear_cross_entropy`.

Every tensor-parallel rank holds some rows of the weight, so some columns of the logits. Ranks exchange two numbers per token and
chunk, and sum the rows' gradient. Labels of the vocabulary's padding have no logits.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lt_train.kernels.cross_entropy import row_terms
from lt_train.kernels.fp8_logits import LABEL, cast_gradient, other_shares
from lt_train.kernels.row_ops import scale
from lt_train.ops.fp8_casts import Fp8Output
from lt_train.ops.fp8_gemm import Cast
from lt_train.ops.row_exchange import Exchange
from lt_train.ops.wgrad_accumulation import accumulate_product

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Tokens whose logits are in memory at once, a multiple of the cast's tiles. The vocabulary of Llama 3 makes 1 GiB of it, and its
# GEMM fills an H200 more than a hundred times.
CHUNK = 4096


def output_losses(
    rows: Tensor, weight: Tensor, labels: Tensor, exchange: Exchange, vocabulary: int, settings: Fp8Output
) -> Tensor:
    """Return the loss in nats, float32 [m], for `labels`, int64 [m]. Logits are the gathered rows times the transposed weight.

    The local `rows` [..., h] and `weight` [n, h] are contiguous and bfloat16; h, n and m are multiples of 16. The weights, in the
    order of the ranks, hold a row per token of the `vocabulary`, then padding. The weight's gradient is added to its `main_grad`.
    """
    losses: Tensor = _Fp8LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, labels, exchange, vocabulary, settings
    )
    return losses


class _Fp8LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, labels: Tensor, exchange: Exchange, vocabulary: int, settings: Fp8Output
    ) -> Tensor:
        casts = settings.casts
        rows = exchange.gather(rows, whole=True).whole()
        (count, _), width = rows.shape, len(weight)
        first = exchange.group.rank() * width if exchange.group else 0
        columns = min(max(0, vocabulary - first), width)
        labels = labels - first
        amax = casts.amax(weight)
        multiply = _Logits(rows, weight, amax, settings)
        trains = any(ctx.needs_input_grad[:2])
        gradient = weight.new_empty((count, width) if trains else 0, dtype=E5M2)
        transpose = weight.new_empty((width, count) if trains else 0, dtype=E5M2)
        losses = torch.empty(count, dtype=torch.float32, device=rows.device)
        shares = torch.empty_like(losses)
        logits = rows.new_empty(min(CHUNK, count), width)
        for start in range(0, count, CHUNK):
            place = slice(start, min(start + CHUNK, count))
            chunk = multiply(place, logits[: place.stop - start])
            normalizers, chosen = row_terms(chunk, labels[place], columns, exchange.group)
            losses[place] = normalizers - chosen
            if trains:
                shares[place] = other_shares(losses[place])
                cast_gradient(chunk, labels[place], normalizers, shares[place], columns, gradient[place], transpose[:, place])
        ctx.save_for_backward(rows, weight, amax, gradient, transpose, shares)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weight, ctx.exchange, ctx.casts = weight, exchange, casts
        return losses

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        rows, weight, amax, gradient, transpose, shares = ctx.saved_tensors
        casts, dtype = ctx.casts, rows.dtype
        factors = loss_gradient * shares
        unit = torch.full((1,), 1 / LABEL, device=rows.device)
        weight_transpose = casts.cast_transpose(weight, amax, E4M3)

        def rows_gradient(place: slice, out: Tensor) -> None:
            casts.multiply((gradient[place], unit), weight_transpose, dtype, fast=False, out=out)
            scale(out, factors[place], out)

        finish = ctx.exchange.start_sum(*rows.shape, rows, rows_gradient)
        scaled = scale(rows, factors, torch.empty_like(rows))
        rows_transpose = casts.cast_transpose(scaled, casts.amax(scaled), E4M3)
        # A weight that FSDP has gathered has no buffer.
        buffer = getattr(ctx.weight, "main_grad", None)
        multiply = partial(casts.multiply, (transpose, unit), rows_transpose, fast=False)
        weight_gradient = accumulate_product(multiply, ctx.weight, buffer, dtype, casts.writes_float32)
        return finish(), weight_gradient, None, None, None, None


class _Logits:
    """Multiply slices of `rows` by the transpose of `weight`. The operands are cast once."""

    def __init__(self, rows: Tensor, weight: Tensor, amax: Tensor, settings: Fp8Output):
        self.rows, self.weight, self.settings = rows, weight, settings
        self.casts: tuple[Cast, Cast] | None = None
        if settings.casts_logits:
            cast = settings.casts.cast
            self.casts = cast(rows, settings.casts.amax(rows), E4M3), cast(weight, amax, E4M3)

    def __call__(self, place: slice, out: Tensor) -> Tensor:
        if self.casts is None:
            return torch.mm(self.rows[place], self.weight.t(), out=out)
        (numbers, factor), weight = self.casts
        return self.settings.casts.multiply((numbers[place], factor), weight, out.dtype, fast=self.settings.fast, out=out)
