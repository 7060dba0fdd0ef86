"""transformers' model type of an architecture: the first whose config.json reads back as the same architecture.

So no rule says which features make which type, and a config.json that would lose a feature is never written.
"""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models import presets, quantization
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import nearest_type, unsupported
from lt_shared.models.huggingface.adjacent_pairs import ERNIE4_5, GLM, GLM4, HELIUM
from lt_shared.models.huggingface.apertus import APERTUS
from lt_shared.models.huggingface.arcee import ARCEE, NEMOTRON, STARCODER2
from lt_shared.models.huggingface.bamba import BAMBA
from lt_shared.models.huggingface.cohere import COHERE, COHERE2
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.huggingface.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, KIMI_K2
from lt_shared.models.huggingface.dots1 import DOTS1
from lt_shared.models.huggingface.ernie4_5_moe import ERNIE4_5_MOE
from lt_shared.models.huggingface.exaone4 import EXAONE4
from lt_shared.models.huggingface.falcon_h1 import FALCON_H1
from lt_shared.models.huggingface.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT
from lt_shared.models.huggingface.glm4_moe import GLM4_MOE
from lt_shared.models.huggingface.gpt2 import GPT2
from lt_shared.models.huggingface.gpt_oss import GPT_OSS
from lt_shared.models.huggingface.granite import GRANITE, GRANITEMOE, GRANITEMOEHYBRID, GRANITEMOESHARED
from lt_shared.models.huggingface.hunyuan import HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE
from lt_shared.models.huggingface.kimi_linear import KIMI_LINEAR
from lt_shared.models.huggingface.lfm2 import LFM2, LFM2_MOE
from lt_shared.models.huggingface.llama import LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3
from lt_shared.models.huggingface.minimax_m2 import MINIMAX_M2
from lt_shared.models.huggingface.ministral3 import MINISTRAL3
from lt_shared.models.huggingface.mistral3 import MISTRAL3
from lt_shared.models.huggingface.mistral4 import MISTRAL4
from lt_shared.models.huggingface.nemotron_h import NEMOTRON_H
from lt_shared.models.huggingface.olmo import OLMO, OLMO2, OLMO3, OLMOE
from lt_shared.models.huggingface.olmo_hybrid import OLMO_HYBRID
from lt_shared.models.huggingface.phi3 import PHI3, architecture_without_usual_factor
from lt_shared.models.huggingface.qwen2_moe import QWEN2_MOE
from lt_shared.models.huggingface.qwen3_5 import QWEN3_5, QWEN3_5_MOE, QWEN3_5_MOE_TEXT, QWEN3_5_TEXT
from lt_shared.models.huggingface.qwen3_moe import QWEN3_MOE
from lt_shared.models.huggingface.qwen3_next import QWEN3_NEXT
from lt_shared.models.huggingface.seed_oss import SEED_OSS
from lt_shared.models.huggingface.smollm3 import SMOLLM3
from lt_shared.models.huggingface.sparse_attention import DEEPSEEK_V32, GLM_MOE_DSA

_ALL = (
    LLAMA,
    MISTRAL,
    MINISTRAL3,
    MISTRAL3,
    HUNYUAN_V1_DENSE,
    HUNYUAN_V1_MOE,
    QWEN2,
    QWEN3,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_5_TEXT,
    QWEN3_5,
    QWEN3_5_MOE_TEXT,
    QWEN3_5_MOE,
    PHI3,
    GRANITE,
    GRANITEMOE,
    GRANITEMOESHARED,
    GRANITEMOEHYBRID,
    COHERE,
    COHERE2,
    OLMO,
    OLMO2,
    OLMO3,
    OLMOE,
    OLMO_HYBRID,
    MINIMAX_M2,
    SEED_OSS,
    SMOLLM3,
    ARCEE,
    NEMOTRON,
    APERTUS,
    STARCODER2,
    EXAONE4,
    HELIUM,
    ERNIE4_5,
    ERNIE4_5_MOE,
    GLM,
    GLM4,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA3,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM_MOE_DSA,
    KIMI_K2,
    KIMI_LINEAR,
    GLM4_MOE_LITE,
    MISTRAL4,
    GLM4_MOE,
    DOTS1,
    LFM2,
    LFM2_MOE,
    NEMOTRON_H,
    BAMBA,
    FALCON_H1,
    GPT2,
)
_TYPES = {kind.name: kind for kind in _ALL}
MODEL_TYPES = tuple(_TYPES)
# Settings that change the model in any type, and are not supported.
_ABSENT_ANYWHERE = ("per_layer_config", "pruned_heads", "transformers_weights")


def model_type(architecture: Architecture) -> str | None:
    """The `model_type` of transformers that computes this architecture; None when it has none."""
    matching_type = _type(architecture)
    return matching_type.name if matching_type else None


def _type(architecture: Architecture) -> ModelType | None:
    candidates = [_TYPES[architecture.model_type]] if architecture.model_type in _TYPES else _TYPES.values()
    return next((candidate for candidate in candidates if _keeps(candidate, architecture)), None)


def _keeps(kind: ModelType, architecture: Architecture) -> bool:
    """Whether the type's config.json says all that the architecture does, but for what matters to training alone."""
    back = _read_back(kind, architecture)
    return back is not None and _computed(back) == _computed(architecture)


def _read_back(kind: ModelType, architecture: Architecture) -> Architecture | None:
    """Write the config.json of type `kind` and read it again. None if the type cannot express the architecture."""
    try:
        return kind.read(_config(kind, architecture, "float32"), architecture.name)
    except (BadConfig, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def nearest(architecture: Architecture) -> str | None:
    """The type that loses the least, and the fields that it loses; None if no type can hold the model."""
    requested_fields = dataclasses.asdict(_computed(architecture))
    changes = {}
    for kind in _ALL:
        back = _read_back(kind, architecture)
        if back is not None:
            fields = dataclasses.asdict(_computed(back)).items()
            changes[kind.name] = [
                f"{field} {value!s:.80}, not {requested_fields[field]!s:.80}"
                for field, value in fields
                if value != requested_fields[field]
            ]
    if not changes:
        return None
    name = min(changes, key=lambda name: len(changes[name]))
    return f"the nearest is {name}, which has {', '.join(changes[name])}"


def _computed(architecture: Architecture) -> Architecture:
    """Drop the fields that do not change the model's output."""
    same = architecture_without_usual_factor(architecture)
    return dataclasses.replace(same, init_std=0.0, moe_aux_loss_coeff=0.0)


def to_config(architecture: Architecture, dtype: str) -> dict[str, Any]:
    """The content of config.json for a model whose tensors are stored as `dtype` ("bfloat16", ...).

    Raises BadConfig when transformers has no model type for it.
    """
    matching_type = _type(architecture)
    if matching_type is None:
        kinds = ", ".join(MODEL_TYPES)
        raise BadConfig(f"{architecture.name}: has no Hugging Face form here, which are {kinds}", nearest(architecture))
    return _config(matching_type, architecture, dtype)


def _config(kind: ModelType, architecture: Architecture, dtype: str) -> dict[str, Any]:
    return {
        "architectures": [kind.class_name],
        "model_type": kind.name,
        "vocab_size": architecture.vocab_size,
        "tie_word_embeddings": architecture.tie_embeddings,
        "initializer_range": architecture.init_std,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
        **kind.write(architecture),
    }


def from_config(config: dict[str, Any], name: str) -> Architecture:
    """Read a config.json. Raises BadConfig for an unknown model type or a setting that has no place here."""
    kind = config.get("model_type")
    unsupported.refuse(config, name)
    if kind not in _TYPES:
        raise BadConfig(f"{name}: model type {kind!r:.80} is not known here", _hint(config))
    quantization.of_config(config, name)
    try:
        _check_one_reading(config, name, _TYPES[kind])
        config = {**_TYPES[kind].defaults, **_TYPES[kind].language_model(config)}
        architecture = _TYPES[kind].read(config, name)
        _check_layer_types(config, architecture, _TYPES[kind])
        return architecture
    except KeyError as error:
        raise BadConfig(f"{name}: config.json has no {error}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise BadConfig(f"{name}: config.json is malformed: {error}") from None


def _hint(config: dict[str, Any]) -> str:
    """Return the hint of an unknown model type: the type with the most similar settings, and where the known types are listed."""
    settings: dict[str, set[str]] = {}
    for architecture in presets.PRESETS.values():
        matching_type = _type(architecture) if architecture.name.startswith("tiny") else None
        if matching_type is not None:
            settings.setdefault(matching_type.name, set(_config(matching_type, architecture, "float32")))
    nearest_words = nearest_type.hint(config, settings)
    return f"{nearest_words}; {unsupported.HINT}" if nearest_words else unsupported.HINT


def _check_one_reading(config: dict[str, Any], name: str, kind: ModelType) -> None:
    """Raise BadConfig for settings that transformers reads beside, or instead of, the settings read here."""
    for field in _ABSENT_ANYWHERE:
        if config.get(field):
            raise BadConfig(f"{name}: has {field}, which is not supported")
    for alias, field in kind.aliases.items():
        if alias in config and config[alias] != config.get(field):
            raise BadConfig(f"{name}: {alias} and {field} are one setting, and contradict each other", "remove the wrong one")


def _check_layer_types(config: dict[str, Any], architecture: Architecture, kind: ModelType) -> None:
    """Raise BadConfig if `layer_types` contradicts the layers that were read."""
    layer_types = config.get("layer_types")
    if not layer_types:
        return
    read = kind.layer_types(architecture)
    if list(layer_types) != read:
        first = next((layer for layer, pair in enumerate(zip(layer_types, read, strict=False)) if pair[0] != pair[1]), len(read))
        actual = layer_types[first] if first < len(layer_types) else "missing"
        raise BadConfig(
            f"{architecture.name}: layer_types has {sorted(set(map(str, layer_types)))}; layer {first} is {actual}, "
            f"and only models in which it is {read[first] if first < len(read) else 'missing'} are known here"
        )
