"""Mistral's models with a vision tower in transformers, of which the language model is read: a Ministral 3 or a Mistral 4."""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.huggingface.ministral3 import MINISTRAL3
from lt_shared.models.huggingface.mistral4 import MISTRAL4

_TEXT_TYPES = {kind.name: kind for kind in (MINISTRAL3, MISTRAL4)}


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's settings from the settings of a vision model. Raises BadConfig for another language model."""
    text = dict(config["text_config"])
    kind = text.get("model_type")
    if kind not in _TEXT_TYPES:
        raise BadConfig(f"the language model in a mistral3 is a {kind!r}, known here are {' and '.join(_TEXT_TYPES)}")
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {**_TEXT_TYPES[kind].defaults, **text, **tied}


def _read(config: dict[str, Any], name: str) -> Architecture:
    return _TEXT_TYPES[config["model_type"]].read(config, name)


def _write(architecture: Architecture) -> dict[str, Any]:
    raise BadConfig(
        f"{architecture.name}: a model with a vision tower is read, and not written",
        f"{' and '.join(_TEXT_TYPES)} are the language models alone",
    )


MISTRAL3 = ModelType("mistral3", "Mistral3ForConditionalGeneration", _write, _read, language_model=_language_model)
