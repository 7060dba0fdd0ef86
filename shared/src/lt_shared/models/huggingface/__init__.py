"""An `Architecture` as Hugging Face `config.json`, and back.

`model_types` chooses transformers' model type; each family has a module that reads and writes its fields, with `config_fields`
for what all have and `rope_parameters` for the rotary embedding. lt-train reads `--model config.json` with it, lt-convert
reads and writes checkpoints.
"""

from lt_shared.models.huggingface.model_types import MODEL_TYPES, from_config, model_type, nearest, to_config

__all__ = ["MODEL_TYPES", "from_config", "model_type", "nearest", "to_config"]
