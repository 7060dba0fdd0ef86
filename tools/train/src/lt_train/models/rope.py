"""The frequencies of rotary embeddings, with Llama 3.1's scaling.

megatron-core computes the same, but knows only the factor of the scaling: the three numbers that say which frequencies are
stretched are constants there, and its base is a whole number.
"""

import math

import torch

from lt_shared.architecture import Architecture


def inverse_frequencies(architecture: Architecture) -> torch.Tensor:
    """Radians per token of each pair of rotated channels, float32 [rotary channels / 2].

    Scaled, a frequency that turns less than `low_freq_factor` times within the original positions is divided by the factor, one
    that turns more than `high_freq_factor` times is kept, and those between are interpolated.
    """
    channels = architecture.rotary_channels
    frequencies = 1.0 / architecture.rotary_base ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
