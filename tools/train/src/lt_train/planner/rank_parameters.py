"""How many parameters a rank holds before data-parallel ranks shard them; exact but for the padding of buffers.

Every function returns a pair: the dense parameters, which all data-parallel ranks share, and those of the rank's own experts.
"""

from lt_shared.architecture import Architecture
from lt_train.config.settings.parallelism import Parallelism


def stage_parameters(model: Architecture, parallel: Parallelism, pipeline_rank: int) -> tuple[int, int]:
    """Count the parameters of a pipeline rank: its layers and, on the first and the last rank, the ends of the model."""
    start = sum(parallel.layers_of(rank, model.num_layers) for rank in range(pipeline_rank))
    stop = start + parallel.layers_of(pipeline_rank, model.num_layers)
    layers = [layer_parameters(model, parallel, layer) for layer in range(start, stop)]
    dense, experts = sum(count for count, _ in layers), sum(count for _, count in layers)
    vocabulary = vocabulary_parameters(model, parallel)
    is_first, is_last = pipeline_rank == 0, pipeline_rank == parallel.pipeline - 1
    if is_first:
        dense += vocabulary + (0 if model.family == "llama" else model.max_position_embeddings * model.hidden_size)
    if is_last:
        dense += model.hidden_size * (1 if model.family == "llama" else 2)
        dense += 0 if model.tie_embeddings and is_first else vocabulary
        if model.mtp_num_layers:
            mtp_dense, mtp_experts = layer_parameters(model, parallel, model.num_layers)
            projection = 2 * model.hidden_size**2 + 3 * model.hidden_size
            dense += model.mtp_num_layers * (mtp_dense + projection)
            # The last stage has a copy of the embedding for them unless the embedding itself is there.
            dense += 0 if is_first or model.tie_embeddings else vocabulary
            experts += model.mtp_num_layers * mtp_experts
    return dense, experts


def layer_parameters(model: Architecture, parallel: Parallelism, layer: int) -> tuple[int, int]:
    """Count the parameters of a layer on one of the tensor-parallel ranks that split it."""
    tensor = parallel.tensor
    vectors = model.vectors(layer, 0)
    split = model.num_attention_heads if model.attention_sinks else 0
    if model.add_qkv_bias or model.add_bias_linear or model.family == "gpt":
        split += model.query_size + 2 * model.kv_size + (model.ffn_hidden_size if model.family == "gpt" else 0)
    vectors -= split - split // tensor
    whole = _whole_projections(model)
    attention = (model.mixer_weights(layer) - whole) // tensor + whole
    if not model.has_experts(layer):
        return attention + model.mlp_weights(layer, 0) // tensor + vectors, 0
    routers = (model.num_experts or 0) * model.hidden_size
    shared = model.mlp_weights(layer, 0) - routers
    local_experts = (model.num_experts or 0) // parallel.expert
    experts = model.mlp_weights(layer, local_experts) + model.vectors(layer, local_experts)
    experts -= model.mlp_weights(layer, 0) + model.vectors(layer, 0)
    return attention + shared // tensor + routers + vectors, experts // parallel.expert_tensor(model)


def vocabulary_parameters(model: Architecture, parallel: Parallelism) -> int:
    """Count the parameters of the embedding, or of the output layer, on one of the tensor-parallel ranks that split it."""
    return parallel.padded_vocab_size(model) // parallel.tensor * model.hidden_size


def _whole_projections(model: Architecture) -> int:
    """Count the weights of the projections down to latents, which every tensor-parallel rank has whole."""
    latent = model.latent_attention
    return model.hidden_size * ((latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim) if latent else 0
