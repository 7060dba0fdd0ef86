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
    _glm(llama("glm-4-9b", 40, 4096, 13696, 32, 2, 151552, 8192), "glm", 128),
    _glm(llama("glm-4-9b-0414", 40, 4096, 13696, 32, 2, 151552, 32768), "glm4", 128),
)
