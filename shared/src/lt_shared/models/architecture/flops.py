"""Floating-point operations in a training step: six per GEMM weight, attention's scores and values, and products with a state.

The input embedding is a look-up and has none. Scores and values are counted over the causal half of the score matrix, or over its
part in the sliding window; the figures of Megatron and TorchTitan count the whole matrix. Products with a recurrent state are
counted as Megatron-LM counts them (`num_floating_point_operations` of its training.py). Sparse attention counts the chosen keys
only, whatever a kernel computes, and its indexer the scores of all pairs.
"""

from lt_shared.models.architecture import mlps
from lt_shared.models.architecture.mixers import MIXERS
from lt_shared.models.architecture.sizes import Sizes


def per_token(model: Sizes, sequence_length: int) -> int:
    """Return the FLOPs per token, forward and backward, without recomputation.

    A multi-token prediction layer projects its two inputs, and computes the output layer once more.
    """
    head = model.vocab_size * model.hidden_size
    weights = head + model.mtp_num_layers * (head + 2 * model.hidden_size**2)
    pairs = indexed = 0
    for layer in range(model.num_layers + model.mtp_num_layers):
        mixer = MIXERS[model.mixer(layer)]
        weights += mixer.weights(model) + mixer.products(model) + mlps.weights(model, layer, model.moe_router_topk)
        pairs += scored_pairs(model, layer, sequence_length)
        indexed += mixer.pair_products(model) * sequence_length
    return 6 * weights + 3 * indexed + 3 * (model.query_size + model.value_size) * pairs // sequence_length


def scored_pairs(model: Sizes, layer: int, sequence_length: int) -> int:
    """Return twice the number of query-key pairs that a layer scores in a sequence; a pair on the diagonal counts half."""
    if not MIXERS[model.mixer(layer)].has_scores:
        return 0
    chosen = model.sparse_attention.dsa_indexer_topk if model.sparse_attention else None
    window = min(model.window(layer) or chosen or sequence_length, sequence_length)
    return window * (2 * sequence_length - window)
