"""Sparse attention as the arguments of megatron-core's DSA, and back.

megatron-core rotates the indexer's queries and keys by a Hadamard matrix (`dsa_indexer_rotate_activation`), which changes no
score but for rounding, so the argument is not read.
"""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, SparseAttention
from lt_shared.models.architecture.sparse_attention import SIZES
from lt_shared.models.megatron_arguments.gated_delta import SPARSE, VARIANT

_INTERLEAVED, _FREQUENCY = "dsa_indexer_rope_interleaved", "dsa_indexer_topk_freq"
_RELU, _EPSILON = "dsa_indexer_scoring_relu", "dsa_indexer_k_norm_epsilon"
# The epsilon of the norm of the indexer's keys, in every transformers model.
KEY_NORM_EPSILON = 1e-6


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    sparse = architecture.sparse_attention
    if sparse is None:
        return {}
    sizes = {name: getattr(sparse, name) for name in (*SIZES, _INTERLEAVED)}
    return {VARIANT: SPARSE, **sizes, "dsa_indexer_rotate_activation": False, _EPSILON: KEY_NORM_EPSILON}


def from_arguments(arguments: Mapping[str, Any], name: str) -> SparseAttention | None:
    """Return the indexer's sizes, None without one. Raises BadConfig for an indexer that computes something else."""
    if arguments.get(VARIANT) != SPARSE:
        return None
    if arguments.get(_FREQUENCY, 1) not in (None, 1):
        raise BadConfig(
            f"{name}: {_FREQUENCY} is {arguments[_FREQUENCY]!r:.80}: layers that take the tokens of an earlier layer's indexer"
            " are not supported"
        )
    if arguments.get(_RELU, True) is False:
        raise BadConfig(f"{name}: {_RELU} is False, and the indexers of transformers apply ReLU to their scores")
    if arguments.get(_EPSILON) not in (None, KEY_NORM_EPSILON):
        raise BadConfig(f"{name}: {_EPSILON} is {arguments[_EPSILON]!r:.80}, and transformers has {KEY_NORM_EPSILON}")
    interleaved = bool(arguments.get(_INTERLEAVED))
    return SparseAttention(**{size: arguments[size] for size in SIZES}, dsa_indexer_rope_interleaved=interleaved)
