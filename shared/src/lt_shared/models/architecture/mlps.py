"""Count the parameters of a layer's MLP: a feed-forward layer, or a router, a shared expert and a number of experts."""

import math

from lt_shared.models.architecture.sizes import Sizes

# The two parameters and the two constants of xIELU in a layer, with their first values. They make factors of 0.8 for positive and
# for negative inputs; the factor for negative ones includes `beta`.
XIELU_NUMBERS = {"alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.8 - 0.5)), "beta": 0.5, "eps": -1e-6}


def weights(model: Sizes, layer: int, experts: int) -> int:
    """Factors of a GEMM: of a feed-forward layer, or of a router, a shared expert and `experts` experts."""
    if not model.has_mlp(layer):
        return 0
    matrices = 3 if model.is_gated else 2
    if not model.has_experts(layer):
        return matrices * model.hidden_size * model.ffn_hidden_size
    width = experts * model.expert_size + (model.moe_shared_expert_intermediate_size or 0)
    return whole_weights(model) + matrices * model.hidden_size * width


def whole_weights(model: Sizes) -> int:
    """Return the weights of a router and of the shared expert's gate, which no tensor-parallel rank divides."""
    return ((model.num_experts or 0) + model.moe_shared_expert_gate) * model.hidden_size


def biases(model: Sizes, layer: int, experts: int) -> int:
    """Return the number of biases in a layer's MLP, and of the numbers that its activation learns."""
    if model.family == "gpt":
        return model.ffn_hidden_size + model.hidden_size
    if not model.has_mlp(layer):
        return 0
    if not model.add_bias_linear:
        return 2 if model.activation == "xielu" else 0
    if model.has_experts(layer):
        return (model.num_experts or 0) + experts * (2 * model.expert_size + model.hidden_size)
    return (2 if model.is_gated else 1) * model.ffn_hidden_size + model.hidden_size
