"""Say which known model type has the settings of an unknown one, and which settings it lacks."""

from collections.abc import Collection, Mapping
from typing import Any

# Settings of every model type, or of none: they say nothing about the layers.
_GENERAL_TEXT = """
_name_or_path architectures attention_dropout auto_map bos_token_id chunk_size_feed_forward decoder_start_token_id dtype
eos_token_id id2label initializer_range is_decoder is_encoder_decoder label2id model_type num_labels output_attentions
output_hidden_states output_router_logits pad_token_id problem_type quantization_config return_dict router_aux_loss_coef
sep_token_id text_config tie_word_embeddings torch_dtype transformers_version use_cache vision_config vocab_size
"""
_GENERAL = frozenset(_GENERAL_TEXT.split())
_SHOWN = 6


def hint(config: Mapping[str, Any], settings_of_types: Mapping[str, Collection[str]]) -> str | None:
    """Return a sentence about the type in `settings_of_types` that shares most settings with `config`.

    None if the most similar type shares less than a third of the settings.
    """
    text = config.get("text_config")
    settings = {name for name, value in {**config, **(text if isinstance(text, dict) else {})}.items() if value is not None}
    settings -= _GENERAL
    shares = {name: _share(settings, set(type_settings) - _GENERAL) for name, type_settings in settings_of_types.items()}
    if not shares or max(shares.values()) < 1 / 3:
        return None
    name = max(shares, key=lambda kind: shares[kind])
    lacking = sorted(settings - set(settings_of_types[name]))
    if not lacking:
        return f"its settings are those of {name}, but its layers may not be"
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    return f"the nearest is {name}, which does not have {', '.join(lacking[:_SHOWN])}{more}"


def _share(settings: set[str], type_settings: set[str]) -> float:
    return len(settings & type_settings) / (len(settings | type_settings) or 1)
