"""Models whose RoPE pairs adjacent channels in Hugging Face's files: Helium, ERNIE 4.5, GLM-4; and tiny ones."""

import dataclasses

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.dense import TINY, llama


def _glm(model: Architecture, model_type: str, head: int, qkv_bias: bool = True) -> Architecture:
    return dataclasses.replace(
        model,
        kv_channels=head,
        norm_epsilon=1e-5 if model_type == "glm4" else 1.5625e-07,
        rotary_percent=0.5,
        add_qkv_bias=qkv_bias,
        norm_placement="both" if model_type == "glm4" else "pre",
        model_type=model_type,
    )


def _mixture(model: Architecture, experts: int, chosen: int, width: int, shared: int, dense_layers: int) -> Architecture:
    return dataclasses.replace(
        model,
        num_experts=experts,
        moe_router_topk=chosen,
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=shared or None,
        moe_first_dense_layers=dense_layers,
        moe_router_enable_expert_bias=True,
        moe_aux_loss_coeff=0.001,
    )


_TINY = dataclasses.replace(TINY, tie_embeddings=False)

ADJACENT_PAIRS = (
    dataclasses.replace(_TINY, name="tiny-helium", model_type="helium"),
    dataclasses.replace(TINY, name="tiny-ernie4.5", kv_channels=64, model_type="ernie4_5"),
    _glm(dataclasses.replace(_TINY, name="tiny-glm"), "glm", 32),
    _glm(dataclasses.replace(_TINY, name="tiny-glm4"), "glm4", 32),
    dataclasses.replace(
        llama("ernie-4.5-0.3b", 18, 1024, 3072, 16, 2, 103424, 131072),
        kv_channels=128,
        tie_embeddings=True,
        rotary_base=500000.0,
        model_type="ernie4_5",
    ),
    _mixture(dataclasses.replace(TINY, name="tiny-ernie4.5-moe"), 8, 2, 64, 128, 1),
    _mixture(
        dataclasses.replace(
            llama("ernie-4.5-21b-a3b", 28, 2560, 12288, 20, 4, 103424, 131072), tie_embeddings=True, rotary_base=500000.0
        ),
        *(64, 6, 1536, 3072, 1),
    ),
    _mixture(
        dataclasses.replace(llama("ernie-4.5-300b-a47b", 54, 8192, 28672, 64, 8, 103424, 131072), rotary_base=500000.0),
        *(64, 8, 3584, 0, 3),
    ),
    _glm(llama("glm-4-9b", 40, 4096, 13696, 32, 2, 151552, 8192), "glm", 128),
    _glm(llama("glm-4-9b-0414", 40, 4096, 13696, 32, 2, 151552, 32768), "glm4", 128),
)
