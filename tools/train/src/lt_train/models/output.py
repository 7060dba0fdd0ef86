"""The output layer: logits of the vocabulary, and the loss of every token.

`Kernels.cross_entropy` selects one of four implementations of the loss: "fused-linear" multiplies and reduces a block of tokens
at a time and never holds all logits, and so does "fp8-linear", which multiplies in fp8; "triton" reads the logits once in each
pass; "torch" is megatron-core's, which makes a float32 copy.

With `z_loss_coeff`, z_loss_coeff x log(Z)^2 is added to the minimized loss, Z being the softmax normalizer (PaLM: 1e-4). It keeps
the logits from drifting, which costs precision in 16 bits. The reported loss stays the cross entropy.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    reduce_from_tensor_model_parallel_region,
    vocab_parallel_cross_entropy,
)
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from lt_shared.models.architecture import Architecture
from lt_train.config.settings.layers import FUSED_LINEAR, TRITON
from lt_train.models.norms import compiled
from lt_train.ops.parallel_linear import column_parallel
from lt_train.ops.row_exchange import Exchange


class OutputLayer(ColumnParallelLinear):  # type: ignore[misc]
    """The vocabulary columns of this tensor-parallel rank. A tied layer has no weight; `forward` gets the embedding's.

    Logits are scaled and capped (Granite, Gemma) before the padding is masked and the losses are computed.
    """

    def __init__(
        self,
        config: TransformerConfig,
        architecture: Architecture,
        padded_vocab_size: int,
        has_weight: bool,
        cross_entropy: str,
        z_loss_coeff: float,
        exchange: Exchange,
        overlaps: bool = False,
        fp8_losses: Callable[..., Tensor] | None = None,
    ):
        """`overlaps`: `exchange` gathers rows while GEMMs run. `fp8_losses` is the function of "fp8-linear"."""
        super().__init__(
            config.hidden_size,
            padded_vocab_size,
            config=config,
            init_method=config.init_method,
            bias=False,
            skip_weight_param_allocation=not has_weight,
        )
        self.vocab_size, self.scaling = architecture.vocab_size, architecture.logits_scaling
        self.cap = architecture.final_logit_softcapping
        self.cross_entropy, self.z_loss_coeff = cross_entropy, z_loss_coeff
        self.exchange, self.overlaps, self.fp8_losses = exchange, overlaps, fp8_losses

    def forward(self, hidden_states: Tensor, labels: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return float32 losses [b, s] for `hidden_states` [s, b, h] and `labels` [b, s]. Without labels, return logits."""
        if labels is None:
            return self._logits(hidden_states, weight).transpose(0, 1).contiguous()
        if self.fp8_losses is not None or self.cross_entropy == FUSED_LINEAR:
            return self._fused_losses(hidden_states, labels, self.weight if weight is None else weight)
        logits = self._logits(hidden_states, weight)
        if not self.z_loss_coeff:
            return self._losses(logits, labels)
        # log(Z) is the cross entropy plus the logit of the label, so no second softmax is needed; the backward pass needs memory
        # for one more gradient of the logits. The label logits are read first, because megatron-core overwrites fp32 logits.
        chosen = label_logits(labels, logits)
        losses = self._losses(logits, labels)
        return with_gradient_of(losses, self.z_loss_coeff * (losses + chosen).square())

    def _logits(self, hidden_states: Tensor, weight: Tensor | None) -> Tensor:
        """Return logits [s, b, columns], minus infinity in the padding."""
        if self.overlaps:
            logits = column_parallel(hidden_states, self.weight if weight is None else weight, self.exchange)
        else:
            logits, _ = super().forward(hidden_states, weight=weight)
        if self.scaling != 1:
            logits = logits / self.scaling
        if self.cap is not None:
            logits = _Cap.apply(logits, self.cap)  # type: ignore[no-untyped-call]
        first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
        return exclude_padding(logits, first, self.vocab_size)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        labels = labels.t().contiguous()
        if self.cross_entropy == TRITON:
            from lt_train.kernels.cross_entropy import cross_entropy

            losses = cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), self.exchange.group).view_as(labels)
        else:
            losses = vocab_parallel_cross_entropy(logits, labels)
        return losses.t().contiguous()

    def _fused_losses(self, hidden_states: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1]).contiguous()
        if self.fp8_losses is None:
            from lt_train.ops.fused_linear_cross_entropy import output_losses
        else:
            output_losses = self.fp8_losses
        losses = output_losses(rows, weight, labels.t().reshape(-1).contiguous(), self.exchange, self.vocab_size)
        return losses.view(labels.shape[::-1]).t().contiguous()


def exclude_padding(logits: Tensor, first: int, vocab_size: int) -> Tensor:
    """Set the columns of `logits` [s, b, columns] that pad the vocabulary to minus infinity, in place.

    `first` is the token id of column 0. Megatron keeps the padding in the softmax: its loss depends on the amount of padding,
    which the tensor-parallel size determines, and differs from the loss of the converted model, which has none.
    """
    real = max(0, vocab_size - first)
    if real < logits.shape[-1]:
        logits[..., real:] = float("-inf")
    return logits


def label_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """Return the logit of every label, float32 [b, s], from `labels` [b, s] and the local `logits` [s, b, columns]."""
    columns = logits.shape[-1]
    # Contiguous, because megatron-core all-reduces a copy of a non-contiguous tensor and loses the result.
    local = labels.transpose(0, 1).contiguous() - parallel_state.get_tensor_model_parallel_rank() * columns
    is_local = (local >= 0) & (local < columns)
    # Indexing instead of `gather`, which would save the logits for its backward pass.
    rows = torch.arange(local.numel(), device=local.device)
    selected = logits.view(-1, columns)[rows, local.clamp(0, columns - 1).flatten()].view_as(local).float()
    # `where` instead of a product with the mask, because the columns of the padding hold -inf.
    chosen: Tensor = reduce_from_tensor_model_parallel_region(torch.where(is_local, selected, 0.0))
    return chosen.transpose(0, 1)


def with_gradient_of(losses: Tensor, penalty: Tensor) -> Tensor:
    """Return `losses` with the gradient of `losses + penalty`."""
    combined: Tensor = _WithGradientOf.apply(losses, penalty)  # type: ignore[no-untyped-call]
    return combined


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, penalty: Tensor) -> Tensor:
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


class _Cap(torch.autograd.Function):
    """c * tanh(x / c), computed in float32. It saves its input and not its output, which the loss overwrites."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, cap: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.cap = cap
        return compiled(_capped)(logits, cap)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        return compiled(_capped_gradient)(logits, gradient, ctx.cap), None


def _capped(logits: Tensor, cap: float) -> Tensor:
    return (cap * torch.tanh(logits.float() / cap)).type_as(logits)


def _capped_gradient(logits: Tensor, gradient: Tensor, cap: float) -> Tensor:
    return (gradient.float() * (1 - torch.tanh(logits.float() / cap).square())).type_as(logits)
