"""Count the parameters of a rank before data-parallel ranks shard them; exact except for the padding of buffers.

Every function returns a pair: the dense parameters, which all data-parallel ranks share, and the parameters of the rank's
experts.
"""

from lt_shared.models.architecture import Architecture, mlps
from lt_train.config.settings.parallelism import Parallelism
from lt_train.planner.mixer_costs import COSTS


def stage_parameters(model: Architecture, parallel: Parallelism, pipeline_rank: int) -> tuple[int, int]:
    """Count the parameters of a pipeline rank: its layers and, on the first and the last rank, the ends of the model."""
    numbers = parallel.layer_numbers(pipeline_rank, model.num_layers)
    layers = [layer_parameters(model, parallel, layer) for layer in numbers]
    dense, experts = sum(count for count, _ in layers), sum(count for _, count in layers)
    vocabulary = vocabulary_parameters(model, parallel)
    is_first, is_last = pipeline_rank == 0, pipeline_rank == parallel.pipeline - 1
    if is_first:
        dense += vocabulary + (0 if model.family == "llama" else model.max_position_embeddings * model.hidden_size)
    if is_last:
        dense += model.hidden_size * model.vectors_of_norm
        dense += 0 if model.tie_embeddings and is_first else vocabulary
        if model.mtp_num_layers:
            mtp_dense, mtp_experts = layer_parameters(model, parallel, model.num_layers)
            projection = 2 * model.hidden_size**2 + 3 * model.hidden_size
            dense += model.mtp_num_layers * (mtp_dense + projection)
            # Multi-token prediction needs the embedding: the last stage has a copy unless it holds the embedding already.
            dense += 0 if is_first or model.tie_embeddings else vocabulary
            experts += model.mtp_num_layers * mtp_experts
    return dense, experts


def layer_parameters(model: Architecture, parallel: Parallelism, layer: int) -> tuple[int, int]:
    """Count the parameters of a layer on a tensor-parallel rank."""
    tensor = parallel.tensor
    vectors = model.vectors(layer, 0)
    costs = COSTS[model.mixer(layer)]
    split = costs.split_vectors(model) + (model.ffn_hidden_size if model.family == "gpt" else 0)
    vectors -= split - split // tensor
    whole = costs.whole_weights(model)
    mixer = (model.mixer_weights(layer) - whole) // tensor + whole
    if not model.has_experts(layer):
        return mixer + model.mlp_weights(layer, 0) // tensor + vectors, 0
    routers = mlps.whole_weights(model)
    shared = model.mlp_weights(layer, 0) - routers
    local_experts = (model.num_experts or 0) // parallel.expert
    experts = model.mlp_weights(layer, local_experts) + model.vectors(layer, local_experts)
    experts -= model.mlp_weights(layer, 0) + model.vectors(layer, 0)
    return mixer + shared // tensor + routers + vectors, experts // parallel.expert_tensor(model)


def vocabulary_parameters(model: Architecture, parallel: Parallelism) -> int:
    """Count the parameters of the embedding, or of the output layer, on a tensor-parallel rank."""
    return parallel.padded_vocab_size(model) // parallel.tensor * model.hidden_size
