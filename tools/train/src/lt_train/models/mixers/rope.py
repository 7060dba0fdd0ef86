"""Rotary position embeddings (Su et al. 2021), with the frequency scalings of `lt_shared`."""

import functools
import math
from typing import NamedTuple

import torch
from megatron.core import parallel_state

from lt_shared.models.architecture import Architecture
from lt_shared.models.rope_scaling import AnyScaling, LinearScaling, LongRopeScaling, RopeScaling, YarnScaling
from lt_train.models.mixers.core_attention import document_numbers, sequence_share


def inverse_frequencies(architecture: Architecture, seq_length: int = 0) -> torch.Tensor:
    """Return the radians per token for every pair of rotated channels, float32 [rotary channels / 2].

    LongRoPE has two sets of divisors. As in transformers, the set for long sequences applies if `seq_length` exceeds the original
    positions.
    """
    return _scale_frequencies(
        _plain_frequencies(architecture.rotary_base, architecture.rotary_channels), architecture, seq_length
    )


def local_inverse_frequencies(architecture: Architecture) -> torch.Tensor:
    """Return the radians per token for layers with a window that have a separate base and no scaling."""
    return _plain_frequencies(architecture.local_rotary_base or architecture.rotary_base, architecture.rotary_channels)


def _plain_frequencies(base: float, channels: int) -> torch.Tensor:
    return 1.0 / base ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)


def _scale_frequencies(frequencies: torch.Tensor, architecture: Architecture, seq_length: int) -> torch.Tensor:
    scaling = architecture.rope_scaling
    match scaling:
        case RopeScaling():
            return _llama3(frequencies, scaling)
        case LinearScaling():
            return frequencies / scaling.factor
        case YarnScaling():
            return _yarn(frequencies, scaling, architecture.rotary_base)
        case LongRopeScaling():
            is_long = seq_length > scaling.original_max_position_embeddings
            return frequencies / torch.tensor(scaling.long_factor if is_long else scaling.short_factor)
        case None:
            return frequencies


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Divide low frequencies by the factor, keep high frequencies, and interpolate between them.

    A frequency is low if it turns less than `low_freq_factor` times within the original positions, and high if it turns more than
    `high_freq_factor` times.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    unscaled = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return unscaled * frequencies + (1 - unscaled) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, scaling: YarnScaling, base: float) -> torch.Tensor:
    """Scale as `_llama3` does, but interpolate linearly in the channel.

    The interpolation begins at the channel that turns `beta_fast` times within the original positions, and ends at the channel
    that turns `beta_slow` times.
    """
    channels = 2 * len(frequencies)

    def channel(turns: float) -> float:
        positions = scaling.original_max_position_embeddings
        return channels * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = channel(scaling.beta_fast), channel(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, channels - 1)
    # As in the paper's code, a ramp of width 0 gets a minimal width instead of a division by zero.
    divided = ((torch.arange(len(frequencies), dtype=torch.float32) - first) / ((last - first) or 0.001)).clamp(0, 1)
    return (1 - divided) * frequencies + divided * frequencies / scaling.factor


def magnitude(scaling: AnyScaling | None, max_position_embeddings: int) -> float:
    """Return the scaling's factor for rotated queries and keys (YaRN, LongRoPE), 1 for other scalings."""
    if isinstance(scaling, YarnScaling):
        return scaling.magnitude
    return scaling.magnitude(max_position_embeddings) if isinstance(scaling, LongRopeScaling) else 1.0


def score_scale(architecture: Architecture) -> float | None:
    """Return the factor of the attention scores, None for the inverse root of the head size.

    If all channels of a head are rotated, the magnitude of the scaling becomes part of this factor, which costs nothing. If only
    some are, or if norms follow that undo it, `rotate` applies the magnitude.
    """
    longer = magnitude(architecture.rope_scaling, architecture.max_position_embeddings)
    if longer == 1 or architecture.latent_attention or not _folds_magnitude(architecture):
        return architecture.softmax_scale
    return (architecture.softmax_scale or architecture.kv_channels**-0.5) * longer**2


def _folds_magnitude(architecture: Architecture) -> bool:
    return architecture.rotary_channels == architecture.kv_channels and not architecture.qk_layernorm_after_rope


def rotated_magnitude(architecture: Architecture) -> float:
    """Return the magnitude that `rotate` applies, 1 if it is part of the factor of the scores (see `score_scale`)."""
    if _folds_magnitude(architecture):
        return 1.0
    return magnitude(architecture.rope_scaling, architecture.max_position_embeddings)


class Angles:
    """Compute the angles of this context-parallel rank's positions, cached for one length, because all layers share them."""

    def __init__(self, inverse_frequencies: torch.Tensor):
        self.inverse_frequencies = inverse_frequencies
        self._angles_by_length: dict[int, torch.Tensor] = {}

    def __call__(self, length: int) -> torch.Tensor:
        """Return float32 angles [length, 1, 1, channels]. The two channels of a pair are half of the channels apart."""
        if length not in self._angles_by_length:
            self._angles_by_length = {length: self._compute(length)}
        return self._angles_by_length[length]

    def _compute(self, length: int) -> torch.Tensor:
        angles = torch.outer(local_positions(length, self.inverse_frequencies.device), self.inverse_frequencies)
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


def local_positions(length: int, device: torch.device) -> torch.Tensor:
    """Return the positions of this context-parallel rank's tokens in their sample, float32 [length]."""
    ranks, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    positions = torch.arange(length * ranks, device=device, dtype=torch.float32)
    return positions if ranks == 1 else sequence_share(positions, 0, rank, ranks)


class QueryTemperature(NamedTuple):
    """A temperature of queries that grows with the position: a query at position p is multiplied by
    1 + `beta` log(1 + floor(p / `original`)) (Ministral 3, Mistral 4)."""

    beta: float
    original: int

    @classmethod
    def of(cls, architecture: Architecture) -> "QueryTemperature | None":
        scaling = architecture.rope_scaling
        if not architecture.query_temperature_beta or not isinstance(scaling, YarnScaling):
            return None
        return cls(architecture.query_temperature_beta, scaling.original_max_position_embeddings)

    def scale(self, query: torch.Tensor, documents: torch.Tensor | None) -> torch.Tensor:
        """Multiply `query` [s, b, heads, d] by the factors of this context-parallel rank's positions."""
        factors = query_temperatures(self.beta, self.original, documents, len(query), query.device)
        return query if factors is None else query * factors.to(query.dtype)


@functools.lru_cache(maxsize=2)
def query_temperatures(
    beta: float, original: int, documents: torch.Tensor | None, length: int, device: torch.device
) -> torch.Tensor | None:
    """Return the factors of this context-parallel rank's `length` queries, float32 [length, b or 1, 1, 1]; None if all are 1.

    A query at position p has the factor 1 + `beta` log(1 + floor(p / `original`)). If attention ends at documents' borders,
    `documents` [b, n + 1], positions count from the beginning of a document. The factors are cached for all layers of a micro
    batch, by the identity of `documents`.
    """
    ranks = parallel_state.get_context_parallel_world_size()
    if length * ranks <= original:
        return None
    positions = local_positions(length, device)[:, None]
    if documents is not None:
        begins = documents.long().gather(1, document_numbers(documents, length * ranks).long()).t()
        if ranks > 1:
            begins = sequence_share(begins, 0, parallel_state.get_context_parallel_rank(), ranks)
        positions = positions - begins
    return (1 + beta * torch.log1p(torch.floor(positions / original)))[:, :, None, None]


def rotate(heads: torch.Tensor, angles: torch.Tensor, magnitude: float) -> torch.Tensor:
    """Rotate the first channels of `heads` [s, b, heads, d] by `angles` [s, 1, 1, channels] and multiply them by `magnitude`."""
    channels = angles.shape[-1]
    turned, passed = heads[..., :channels], heads[..., channels:]
    cosines = (torch.cos(angles) * magnitude).to(heads.dtype)
    sines = (torch.sin(angles) * magnitude).to(heads.dtype)
    first, second = torch.chunk(turned, 2, dim=-1)
    turned = (turned * cosines) + (torch.cat((-second, first), dim=-1) * sines)
    return torch.cat((turned, passed), dim=-1)
