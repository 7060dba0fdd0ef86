"""The mixers hand flash-linear-attention what its kernels take: a stand-in with its arguments gives what the plain path gives."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from lt_shared.models.architecture import GatedDelta
from lt_train.config.kernels import FLASH_LINEAR, FLASH_LINEAR_KIMI
from lt_train.config.settings.layers import TORCH
from lt_train.kernels import delta_rules
from lt_train.models.mixers import convolution, gated_delta, kimi_delta
from lt_train.ops.gated_delta_rule import gated_delta_rule

HIDDEN, LENGTH = 24, 70
DELTA = GatedDelta((0,), 2, 4, 8, 6)
KIMI = GatedDelta((0,), 4, 4, 8, 8, decays_channels=True)
# Three documents in the first sample, one in the second; equal borders bound none.
DOCUMENTS = torch.tensor([[0, 5, 66, LENGTH, LENGTH], [0, LENGTH, LENGTH, LENGTH, LENGTH]], dtype=torch.int32)


def by_document(function: Any, cu_seqlens: Tensor | None, *parts: Tensor) -> Tensor:
    """Apply `function` to each document of the only sample, or to whole samples."""
    if cu_seqlens is None:
        return function(*parts)  # type: ignore[no-any-return]
    assert all(len(part) == 1 for part in parts), "documents lie in one sample"
    assert cu_seqlens.dtype == torch.int64 and cu_seqlens[-1] == parts[0].shape[1]
    borders = cu_seqlens.tolist()
    return torch.cat([function(*(part[:, a:b] for part in parts)) for a, b in itertools.pairwise(borders)], 1)


def rule(
    q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, beta: Tensor, dt_bias: Tensor | None = None, cu_seqlens: Any, **options: Any
) -> tuple[Tensor, None]:
    """As flash-linear-attention documents its arguments."""
    log_rates = options.pop("A_log", None)
    factor = 2 if options.pop("allow_neg_eigval", False) else 1
    has_gates = options.pop("use_gate_in_kernel")
    assert options == dict.fromkeys(("use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel"), True)
    decay = g
    if has_gates:
        assert log_rates is not None and dt_bias is not None
        rates = softplus(g + dt_bias.view(g.shape[2:]))
        decay = -(log_rates.exp() if g.dim() == 3 else log_rates.exp()[:, None]) * rates
    return by_document(gated_delta_rule, cu_seqlens, q, k, v, decay, factor * beta.sigmoid()), None


def convolve(x: Tensor, weight: Tensor, *, activation: str, cu_seqlens: Tensor | None) -> tuple[Tensor, None]:
    assert (activation, weight.dim()) == ("silu", 2)

    def whole(part: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(part.transpose(1, 2), (weight.shape[1] - 1, 0))
        return silu(conv1d(padded, weight.unsqueeze(1), groups=len(weight)).transpose(1, 2))

    return by_document(whole, cu_seqlens, x), None


class Linear(torch.nn.Linear):
    def forward(self, rows: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(rows), None


LINEARS: Any = SimpleNamespace(column=Linear, row=Linear)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank without process groups, nothing compiled, and the stand-in for the package."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(gated_delta, "copy_to_tensor_model_parallel_region", lambda weight: weight)
    for module in (convolution, gated_delta, kimi_delta):
        monkeypatch.setattr(module, "compiled", lambda function: function)
    package = SimpleNamespace(gated_delta=rule, kimi_delta=rule, convolution=convolve)
    monkeypatch.setattr(delta_rules, "load", lambda: package)


def mixer(kind: Any, sizes: GatedDelta, kernels: str) -> Any:
    config: Any = SimpleNamespace(
        hidden_size=HIDDEN,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        params_dtype=torch.float32,
        layernorm_epsilon=1e-6,
        sequence_parallel=False,
    )
    torch.manual_seed(3)
    module = kind(config, sizes, LINEARS, kernels)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module.eval()


@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize(
    ("kind", "sizes", "kernels"),
    [
        (gated_delta.GatedDeltaNet, DELTA, FLASH_LINEAR),
        (gated_delta.GatedDeltaNet, GatedDelta((0,), 2, 4, 8, 6, doubles_strength=True), FLASH_LINEAR),
        (gated_delta.GatedDeltaNet, GatedDelta((0,), 2, 4, 8, 6, doubles_strength=True), FLASH_LINEAR_KIMI),
        (kimi_delta.KimiDeltaAttention, KIMI, FLASH_LINEAR),
    ],
)
def test_kernels_get_what_the_plain_path_computes_with(
    kind: Any, sizes: GatedDelta, kernels: str, documents: Tensor | None
) -> None:
    results = []
    hidden = torch.randn(LENGTH, 2, HIDDEN, generator=torch.Generator().manual_seed(1))
    for choice in (TORCH, kernels):
        module, states = mixer(kind, sizes, choice), hidden.clone().requires_grad_()
        output, _ = module(states, documents, None)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
        results.append([output, *torch.autograd.grad((output * weights).sum(), (states, *module.parameters()))])
    for plain, by_kernel in zip(*results, strict=True):
        torch.testing.assert_close(by_kernel, plain, rtol=1e-3, atol=1e-4)


def test_borders_of_samples_that_follow_each_other() -> None:
    assert delta_rules.borders_of_all_samples(DOCUMENTS, LENGTH).tolist() == [0, 5, 66, 70, 140]
