"""Turn the ConfigContainer that a recipe of Megatron-Bridge makes into the values of the run_config.yaml that a run writes."""

from collections.abc import Collection
from typing import Any

from lt_train.importers.python.configuration import Configuration
from lt_train.importers.python.values import MISSING, Instance, Unknown
from lt_train.importers.upstream.bridge_fields import row
from lt_train.importers.upstream.rows import options

MIXED_PRECISION = "megatron.bridge.training.mixed_precision"
# Precisions by their names, for recipes outside of a checkout of Megatron-Bridge.
PROVIDER = "megatron.bridge.models.gpt_provider.GPTModelProvider"
# Fields of a model that say how it trains.
OF_TRAINING = (
    *("hidden_dropout", "attention_dropout", "init_method_std", "moe_aux_loss_coeff", "moe_z_loss_coeff", "bf16", "fp16"),
    *("moe_router_load_balancing_type", "moe_token_drop_policy", "moe_expert_capacity_factor"),
)
# Fields of a model that say how its computation is spread and which activations are kept.
OF_LAYOUT = (
    *("sequence_parallel", "calculate_per_token_loss", "deterministic_mode", "virtual_pipeline_model_parallel_size"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
)
PRECISIONS = {"bf16_mixed": {"bf16": True, "grad_reduce_in_fp32": True}, "16_mixed": {"fp16": True}}


def values_of(configuration: Configuration, carried: Collection[str]) -> dict[str, Any]:
    """Return the nested values of a recipe's container. Unknown values stay where they are.

    `carried` are keys that become options, and stay also if they have their defaults.
    """
    container = configuration.value
    _resolve_precision(configuration, container)
    tree: dict[str, Any] = configuration.known_tree()
    for name, section in container.attributes.items():
        if isinstance(section, Instance) and isinstance(tree.get(name), dict):
            leave_out_defaults(configuration, carried, name, section, tree[name])
    _flatten_model(configuration, carried, container, tree)
    _name_preset(configuration, container, tree)
    spread_precision(tree)
    _take_tokenizers_vocabulary(tree)
    dataset = tree.get("dataset")
    if isinstance(dataset, dict) and dataset.get("seq_length") is not None:
        # GPTDatasetConfig.finalize copies the one to the other; recipes set the one alone.
        dataset.pop("sequence_length", None)
    return tree


def _resolve_precision(configuration: Configuration, container: Instance) -> None:
    """Replace the name of a precision, such as "bf16_mixed", by its settings."""
    name = container.attributes.get("mixed_precision")
    if isinstance(name, str):
        settings = configuration.call(MIXED_PRECISION, "get_mixed_precision_config", name)
        if settings is MISSING:
            settings = PRECISIONS.get(name.replace("-", "_"), Unknown(f"the settings of {name}", "mixed_precision"))
        container.attributes["mixed_precision"] = settings


def _flatten_model(configuration: Configuration, carried: Collection[str], container: Instance, tree: dict[str, Any]) -> None:
    """Put the fields of `model.transformer` beside the fields of `model`, where providers have them."""
    model, outer = container.attributes.get("model"), tree.get("model")
    if isinstance(outer, dict) and isinstance(outer.get("transformer"), dict):
        inner = outer.pop("transformer")
        if isinstance(model, Instance) and isinstance(model.attributes.get("transformer"), Instance):
            leave_out_defaults(configuration, carried, "model", model.attributes["transformer"], inner)
        tree["model"] = {**inner, **outer}


def leave_out_defaults(
    configuration: Configuration, carried: Collection[str], name: str, section: Instance, values: dict[str, Any]
) -> None:
    """Leave out fields of other versions, which no table knows, where they have their defaults."""
    known = options("megatron_bridge")
    for field, default in configuration.tree.defaults(section).items():
        key = f"{name}.{field}"
        if field in values and values[field] == default and key not in known and key not in carried and row(key) is None:
            del values[field]


def _name_preset(configuration: Configuration, container: Instance, tree: dict[str, Any]) -> None:
    """Let lt-train's preset stand for a published model, beside what the recipe has changed and what trains it."""
    model = container.attributes.get("model")
    preset, converted = configuration.interpreter.converted.get(id(model), ("", {}))
    if preset and isinstance(tree.get("model"), dict):
        same = {name for name, value in converted.items() if configuration.tree.convert(value) == tree["model"].get(name)}
        changed = {name: value for name, value in tree["model"].items() if name not in same or name in OF_TRAINING}
        changed.pop("seq_length", None)
        tree["model"] = {**changed, "_target_": PROVIDER, "preset": preset}


def spread_precision(tree: dict[str, Any]) -> None:
    """Write the settings of the precision into the model where it has them, as MixedPrecisionConfig.setup does."""
    precision, model = tree.get("mixed_precision"), tree.get("model")
    if isinstance(precision, dict) and isinstance(model, dict):
        model.update({field: value for field, value in precision.items() if field in model and not field.startswith("_")})


def _take_tokenizers_vocabulary(tree: dict[str, Any]) -> None:
    """Megatron-Bridge replaces the model's vocabulary by the tokenizer's if the recipe says so."""
    tokenizer, model = tree.get("tokenizer"), tree.get("model")
    if isinstance(tokenizer, dict) and isinstance(model, dict) and tokenizer.get("use_tokenizer_vocab_size") is True:
        model.pop("vocab_size", None)
        model["should_pad_vocab"] = True
