"""Fill in the defaults that a class of Megatron-Bridge's models has and a file leaves out. run_config.yaml spells all out."""

from typing import Any

from lt_train.importers.upstream.rows import options

TARGET = "model._target_"
# A published model that has all of its sizes.
PRESET = "model.preset"
# Defaults of GPTModelProvider that lt-train does not have.
DEFAULTS = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
# The fields of a class that a nested configuration of megatron-core holds.
NESTED = "model.transformer."
FUNCTIONS = "torch.nn.functional."


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with the defaults of the model's class. A class that no table knows adds none but GPTModelProvider's."""
    values = {key.replace(NESTED, "model.", 1) if key.startswith(NESTED) else key: value for key, value in values.items()}
    if not any(key.startswith("model.") for key in values) or PRESET in values:
        return values
    name = str(values.get(TARGET, "")).rpartition(".")[2]
    defaults = DEFAULTS | options("megatron_bridge_providers").get(name, {})
    if "activation_func" in defaults:
        defaults["activation_func"] = FUNCTIONS + defaults["activation_func"]
    width = values.get("model.hidden_size", defaults.get("hidden_size"))
    if isinstance(width, int):
        # megatron-core's default, also of a gated MLP.
        defaults.setdefault("ffn_hidden_size", 4 * width)
    absent = {key: value for key, value in defaults.items() if values.get(f"model.{key}") is None and value is not None}
    return values | {f"model.{key}": value for key, value in absent.items()}
