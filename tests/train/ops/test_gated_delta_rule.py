"""The gated delta rule in chunks: transformers' results, the rule applied token by token, and documents computed alone."""

import itertools

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from lt_train.ops.gated_delta_rule import CHUNK, gated_delta_rule

KEY_HEADS, VALUE_HEADS, KEYS, VALUES = 2, 6, 8, 12


def inputs(length: int, batch: int = 2, by_channel: bool = False) -> list[Tensor]:
    """Queries, keys, values, logarithms of decays down to -20, and strengths."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(KEY_HEADS, KEYS), (KEY_HEADS, KEYS), (VALUE_HEADS, VALUES)]
    heads = [torch.randn(batch, length, *shape, generator=generator) for shape in shapes]
    decay_shape = (VALUE_HEADS, KEYS) if by_channel else (VALUE_HEADS,)
    decays = -20 * torch.rand(batch, length, *decay_shape, generator=generator) ** 4
    strengths = torch.rand(batch, length, VALUE_HEADS, generator=generator)
    return [tensor.requires_grad_() for tensor in (*heads, decays, strengths)]


def outputs_and_gradients(output: Tensor, parts: list[Tensor]) -> list[Tensor]:
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return [output, *torch.autograd.grad((output * weights).sum(), parts)]


def by_token(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """The rule as published, in float64: one token after the other."""
    query, key = (heads.double() * (heads.double().square().sum(-1, keepdim=True) + 1e-6) ** -0.5 for heads in (query, key))
    query, key = (heads.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for heads in (query * KEYS**-0.5, key))
    state = torch.zeros(len(value), VALUE_HEADS, KEYS, VALUES, dtype=torch.float64)
    outputs = []
    for token in range(value.shape[1]):
        factor = decay[:, token].double().exp()
        state = state * factor.reshape(*factor.shape[:2], -1, 1)
        k = key[:, token].unsqueeze(-1)
        error = value[:, token].double() - (state * k).sum(-2)
        state = state + k * (strength[:, token].double().unsqueeze(-1) * error).unsqueeze(-2)
        outputs.append((state * query[:, token].unsqueeze(-1)).sum(-2))
    return torch.stack(outputs, 1).float()


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("length", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_chunks_compute_the_rule(length: int, by_channel: bool) -> None:
    parts = inputs(length, by_channel=by_channel)
    chunked = outputs_and_gradients(gated_delta_rule(*parts), parts)
    for result, expected in zip(chunked, outputs_and_gradients(by_token(*parts), parts), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_transformers_computes_the_same() -> None:
    query, key, value, decay, strength = inputs(CHUNK + 9)
    theirs, _ = torch_recurrent_gated_delta_rule(query, key, value, g=decay, beta=strength, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(gated_delta_rule(query, key, value, decay, strength), theirs, rtol=1e-4, atol=1e-5)


def test_transformers_decays_channels_the_same() -> None:
    query, key, value, decay, strength = inputs(CHUNK + 9, by_channel=True)
    heads = [part.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for part in (query, key)]
    theirs, _ = recurrent_kimi_delta_attention(*heads, value, decay, strength, None, False, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(gated_delta_rule(query, key, value, decay, strength), theirs, rtol=1e-4, atol=1e-5)


# Borders inside a chunk, at its end, of a document of one token, and of one that is longer than a chunk.
@pytest.mark.parametrize(
    "borders", [(0, 3, 20), (0, CHUNK, 100), (0, 1, 2, CHUNK - 1, CHUNK + 1, 2 * CHUNK + 40), (0, 10, 3 * CHUNK)]
)
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_document_is_computed_alone(borders: tuple[int, ...], by_channel: bool) -> None:
    length = borders[-1]
    parts = inputs(length, batch=1, by_channel=by_channel)
    ends = torch.tensor(borders[1:])
    numbers = torch.searchsorted(ends, torch.arange(length), right=True).int()[None]
    together = outputs_and_gradients(gated_delta_rule(*parts, numbers), parts)
    documents = [gated_delta_rule(*(part[:, start:stop] for part in parts)) for start, stop in itertools.pairwise(borders)]
    alone = outputs_and_gradients(torch.cat(documents, 1), parts)
    for result, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=2e-5)


def test_samples_have_their_own_documents() -> None:
    parts = inputs(CHUNK + 30)
    numbers = torch.zeros(2, CHUNK + 30, dtype=torch.int32)
    numbers[1, 40:] = 1
    output = gated_delta_rule(*parts, numbers)
    torch.testing.assert_close(output[0], gated_delta_rule(*(part[:1] for part in parts))[0])
    torch.testing.assert_close(output[1, 40:], gated_delta_rule(*(part[1:, 40:] for part in parts))[0], rtol=1e-4, atol=1e-5)
