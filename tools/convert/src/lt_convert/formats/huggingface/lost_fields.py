"""Fields of config.json that no other format has and that a conversion loses: `Source.not_carried` names them.

The fields change neither weights nor logits. They change training (dropout), what transformers loads the model as, or what it
returns. A field that changes the logits is refused when the configuration is read.
"""

from collections.abc import Mapping
from typing import Any

# A field with this value changes nothing; None changes nothing in any field.
_NEUTRAL: Mapping[str, Any] = {
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "dropout"), 0),
    **dict.fromkeys(("router_jitter_noise", "classifier_dropout", "layerdrop"), 0),
    **dict.fromkeys(("output_router_logits", "output_attentions", "output_hidden_states"), False),
    **dict.fromkeys(("auto_map", "problem_type", "task_specific_params", "finetuning_task"), None),
    "use_cache": True,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
}
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model")


def lost_fields(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields of a config.json that a conversion loses, as `config.json's FIELD`."""
    lost = [name for name, neutral in _NEUTRAL.items() if config.get(name) not in (None, neutral)]
    classes = config.get("architectures")
    if isinstance(classes, list) and not all(str(name).endswith(_LANGUAGE_MODELS) for name in classes):
        lost.append("architectures")
    return tuple(f"config.json's {name}" for name in sorted(lost))
