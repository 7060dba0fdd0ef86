"""The gpt-oss family: Llama's attention with sinks, biases in all linear layers, and experts in stacks.

Hugging Face stacks a layer's experts in tensors of [expert, in, out], and the outputs of the first matrix are gate 0, up 0,
gate 1, up 1 ... Megatron has [out, in], first all gates, then all ups, as for any SwiGLU. TorchTitan has [expert, out, in], gates
and ups still alternating. In both published models the experts are as wide as the model, so the second matrix also fits
untransposed: only the logits show the mistake.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, mixtral, qwen2
from lt_convert.weights.families.llama import KEY, LAYER, MEGATRON_LAYER, MLP_NORM, QUERY, TORCHTITAN_LAYER
from lt_convert.weights.mapping import MEGATRON, MEGATRON_LOCAL, MEGATRON_TE, Family, Shape, Table
from lt_convert.weights.weight_ops import Alias, Experts, ExpertSlice, GateAndUp, QueryGroups, Rows, Transposed, WeightOp
from lt_shared.models.architecture import Architecture

SINKS, PROJECTION_BIAS = f"{LAYER}self_attn.sinks", f"{LAYER}self_attn.o_proj.bias"
ROUTER, ROUTER_BIAS = f"{LAYER}mlp.router.weight", f"{LAYER}mlp.router.bias"
GATE_UP, GATE_UP_BIAS = f"{LAYER}mlp.experts.gate_up_proj", f"{LAYER}mlp.experts.gate_up_proj_bias"
DOWN, DOWN_BIAS = f"{LAYER}mlp.experts.down_proj", f"{LAYER}mlp.experts.down_proj_bias"


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden, ffn, experts = architecture.hidden_size, architecture.expert_size, architecture.num_experts or 0
    layer: dict[str, Shape] = {
        **llama.attention(architecture),
        qwen2.QUERY_BIAS: (architecture.query_size,),
        qwen2.KEY_BIAS: (architecture.kv_size,),
        qwen2.VALUE_BIAS: (architecture.kv_size,),
        PROJECTION_BIAS: (hidden,),
        SINKS: (architecture.num_attention_heads,),
        ROUTER: (experts, hidden),
        ROUTER_BIAS: (experts,),
        GATE_UP: (experts, hidden, 2 * ffn),
        GATE_UP_BIAS: (experts, 2 * ffn),
        DOWN: (experts, ffn, hidden),
        DOWN_BIAS: (experts, hidden),
    }
    return llama.decoder(architecture, layer)


COMMON: Table = {
    **{pattern: op for pattern, op in llama.MEGATRON_TABLE.items() if ".mlp." not in pattern},
    f"{MEGATRON_LAYER}self_attention.linear_qkv.bias": QueryGroups(qwen2.QUERY_BIAS, qwen2.KEY_BIAS, qwen2.VALUE_BIAS),
    f"{MEGATRON_LAYER}self_attention.linear_proj.bias": Rows(PROJECTION_BIAS),
    f"{MEGATRON_LAYER}self_attention.core_attention.softmax_offset": Rows(SINKS),
    f"{MEGATRON_LAYER}pre_mlp_layernorm.weight": Rows(MLP_NORM),
    f"{MEGATRON_LAYER}mlp.router.weight": Rows(ROUTER),
    f"{MEGATRON_LAYER}mlp.router.bias": Rows(ROUTER_BIAS),
}
# Of an expert.
OF_EXPERTS: dict[str, WeightOp] = {
    "linear_fc1.weight": ExpertSlice(Transposed(GateAndUp(GATE_UP))),
    "linear_fc1.bias": ExpertSlice(GateAndUp(GATE_UP_BIAS)),
    "linear_fc2.weight": ExpertSlice(Transposed(Rows(DOWN))),
    "linear_fc2.bias": ExpertSlice(Rows(DOWN_BIAS)),
}
LEGACY_EXPERTS: Table = {
    **{f"{MEGATRON_LAYER}mlp.experts.local_experts.{{expert}}.{name}": op for name, op in OF_EXPERTS.items()},
    **{f"{MEGATRON_LAYER}mlp.experts.{name}{{expert}}": Alias(op) for name, op in OF_EXPERTS.items()},
}

TORCHTITAN_TABLE: Table = {
    **{pattern: op for pattern, op in llama.TORCHTITAN_TABLE.items() if ".feed_forward." not in pattern},
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wq.weight": Rows(QUERY),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wk.weight": Rows(KEY),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wq.bias": Rows(qwen2.QUERY_BIAS),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wk.bias": Rows(qwen2.KEY_BIAS),
    f"{TORCHTITAN_LAYER}attention.qkv_linear.wv.bias": Rows(qwen2.VALUE_BIAS),
    f"{TORCHTITAN_LAYER}attention.wo.bias": Rows(PROJECTION_BIAS),
    f"{TORCHTITAN_LAYER}attention.sinks": Rows(SINKS),
    f"{TORCHTITAN_LAYER}moe.router.gate.weight": Rows(ROUTER),
    f"{TORCHTITAN_LAYER}moe.router.gate.bias": Rows(ROUTER_BIAS),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.mlp1_weight_EGD": Experts(ExpertSlice(Transposed(Rows(GATE_UP)))),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.mlp1_bias_EG": Rows(GATE_UP_BIAS),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.mlp2_weight_EDF": Experts(ExpertSlice(Transposed(Rows(DOWN)))),
    f"{TORCHTITAN_LAYER}moe.routed_experts.inner_experts.mlp2_bias_ED": Rows(DOWN_BIAS),
}
# TorchTitan up to 0.2.
NAMES_OF_2025 = {
    **llama.NAMES_OF_2025,
    "moe.routed_experts.inner_experts.": "moe.experts.",
    **dict.fromkeys(("_EGD", "_EG", "_EDF", "_ED"), ""),
}

GPT_OSS = Family(
    name="gpt_oss",
    shapes=shapes,
    tables={
        MEGATRON: {
            **COMMON,
            f"{MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Alias(Rows(MLP_NORM), written=True),
            **{f"{MEGATRON_LAYER}mlp.experts.experts.{name}": Experts(op) for name, op in OF_EXPERTS.items()},
        },
        MEGATRON_TE: {**COMMON, **LEGACY_EXPERTS},
        MEGATRON_LOCAL: {**llama.renamed(COMMON, llama.LOCAL_NAMES), **LEGACY_EXPERTS},
        **llama.torchtitan_tables(TORCHTITAN_TABLE, NAMES_OF_2025),
    },
    extra_state_modules=mixtral.EXTRA_STATE_MODULES,
)
