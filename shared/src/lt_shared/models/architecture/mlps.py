"""Count the parameters of a layer's MLP: a feed-forward layer, or a router, a shared expert and a number of experts."""

from lt_shared.models.architecture.sizes import Sizes


def weights(model: Sizes, layer: int, experts: int) -> int:
    """Factors of a GEMM: of a feed-forward layer, or of a router, a shared expert and `experts` experts."""
    matrices = 3 if model.is_gated else 2
    if not model.has_experts(layer):
        return matrices * model.hidden_size * model.ffn_hidden_size
    width = experts * model.expert_size + (model.moe_shared_expert_intermediate_size or 0)
    return whole_weights(model) + matrices * model.hidden_size * width


def whole_weights(model: Sizes) -> int:
    """Return the weights of a router and of the shared expert's gate, which no tensor-parallel rank divides."""
    return ((model.num_experts or 0) + model.moe_shared_expert_gate) * model.hidden_size


def biases(model: Sizes, layer: int, experts: int) -> int:
    """Return the number of bias parameters in a layer's MLP."""
    if model.family == "gpt":
        return model.ffn_hidden_size + model.hidden_size
    if not model.add_bias_linear:
        return 0
    if model.has_experts(layer):
        return (model.num_experts or 0) + experts * (2 * model.expert_size + model.hidden_size)
    return (2 if model.is_gated else 1) * model.ffn_hidden_size + model.hidden_size
