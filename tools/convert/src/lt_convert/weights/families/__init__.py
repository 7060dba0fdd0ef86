"""The model families: one module each, with its canonical tensors and a table for every format that has such models."""

from lt_convert.weights.families.adjacent_pairs import ERNIE4_5, GLM, GLM4, HELIUM
from lt_convert.weights.families.apertus import APERTUS
from lt_convert.weights.families.arcee import ARCEE, NEMOTRON, STARCODER2
from lt_convert.weights.families.bamba import BAMBA
from lt_convert.weights.families.cohere import COHERE
from lt_convert.weights.families.deepseek import DEEPSEEK
from lt_convert.weights.families.ernie4_5_moe import ERNIE4_5_MOE
from lt_convert.weights.families.exaone4 import EXAONE4
from lt_convert.weights.families.falcon_h1 import FALCON_H1
from lt_convert.weights.families.gemma import GEMMA, GEMMA2, GEMMA3
from lt_convert.weights.families.glm4_moe import GLM4_MOE
from lt_convert.weights.families.gpt2 import GPT2
from lt_convert.weights.families.gpt_oss import GPT_OSS
from lt_convert.weights.families.granite import GRANITE, GRANITE4, GRANITE4_HYBRID
from lt_convert.weights.families.hunyuan import HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE
from lt_convert.weights.families.kimi_linear import KIMI_LINEAR
from lt_convert.weights.families.lfm2 import LFM2, LFM2_MOE
from lt_convert.weights.families.llama import LLAMA
from lt_convert.weights.families.minimax_m2 import MINIMAX_M2
from lt_convert.weights.families.ministral3 import MINISTRAL3
from lt_convert.weights.families.mistral4 import MISTRAL4
from lt_convert.weights.families.mixtral import MIXTRAL
from lt_convert.weights.families.nemotron_h import NEMOTRON_H
from lt_convert.weights.families.olmo import OLMO, OLMO1, OLMOE
from lt_convert.weights.families.olmo_hybrid import OLMO_HYBRID
from lt_convert.weights.families.phi3 import PHI3
from lt_convert.weights.families.qwen2 import QWEN2
from lt_convert.weights.families.qwen2_moe import QWEN2_MOE
from lt_convert.weights.families.qwen3 import QWEN3
from lt_convert.weights.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from lt_convert.weights.families.qwen3_moe import QWEN3_MOE
from lt_convert.weights.families.qwen3_next import QWEN3_NEXT
from lt_convert.weights.families.smollm3 import SMOLLM3
from lt_convert.weights.families.sparse_attention import SPARSE_ATTENTION
from lt_convert.weights.mapping import Family
from lt_shared.console import BadData
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

# By the `model_type` of transformers.
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "ministral3": MINISTRAL3,
    "mistral3": MINISTRAL3,
    "hunyuan_v1_dense": HUNYUAN_V1_DENSE,
    "hunyuan_v1_moe": HUNYUAN_V1_MOE,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gpt2": GPT2,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe_text": QWEN3_5_MOE,
    "qwen3_5_moe": QWEN3_5_MOE,
    "phi3": PHI3,
    "granite": GRANITE,
    "granitemoe": GRANITE4,
    "granitemoeshared": GRANITE4,
    "granitemoehybrid": GRANITE4,
    "cohere": COHERE,
    "cohere2": COHERE,
    "olmo": OLMO1,
    "olmo2": OLMO,
    "olmo3": OLMO,
    "olmoe": OLMOE,
    "olmo_hybrid": OLMO_HYBRID,
    "minimax_m2": MINIMAX_M2,
    "seed_oss": QWEN2,
    "smollm3": SMOLLM3,
    "arcee": ARCEE,
    "nemotron": NEMOTRON,
    "apertus": APERTUS,
    "starcoder2": STARCODER2,
    "exaone4": EXAONE4,
    "helium": HELIUM,
    "ernie4_5": ERNIE4_5,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "glm": GLM,
    "glm4": GLM4,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "gpt_oss": GPT_OSS,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": SPARSE_ATTENTION,
    "glm_moe_dsa": SPARSE_ATTENTION,
    "kimi_k2": DEEPSEEK,
    "kimi_linear": KIMI_LINEAR,
    "glm4_moe_lite": DEEPSEEK,
    "mistral4": MISTRAL4,
    "glm4_moe": GLM4_MOE,
    "dots1": GLM4_MOE,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "nemotron_h": NEMOTRON_H,
    "bamba": BAMBA,
    "falcon_h1": FALCON_H1,
}


# Types whose models may have Mamba-2 layers, and then have another family.
WITH_MAMBA = {"granitemoehybrid": GRANITE4_HYBRID}


def family_of(architecture: Architecture) -> Family:
    """The family of an architecture. Raises BadData for a combination of features that no family has."""
    kind = huggingface.model_type(architecture)
    if kind is None:
        difference = huggingface.nearest(architecture)
        raise BadData(
            f"{architecture.name}: no supported family has this combination of features{f': {difference}' if difference else ''}",
            "docs/guides/models.md lists the families and their features",
        )
    return WITH_MAMBA[kind] if architecture.mamba and kind in WITH_MAMBA else FAMILIES[kind]
