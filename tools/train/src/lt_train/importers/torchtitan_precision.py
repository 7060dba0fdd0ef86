"""Translate TorchTitan's types of weights and gradients, its converters of linear layers, and what is recomputed."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

GATHERING = ("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp", "force_recompute_fp8_weight_in_bwd")


def translate(ledger: Ledger) -> None:
    kind = ledger.take("training.mixed_precision_param", "bfloat16")
    if kind == "bfloat16":
        ledger.default("bf16", True, "training.mixed_precision_param")
    elif kind == "float32":
        ledger.drop_value("training.mixed_precision_param", kind, "as without --bf16", Effect.NONE)
    else:
        ledger.drop_value("training.mixed_precision_param", kind, "lt-train takes bfloat16 or float32 there")
    for key, reason in (
        ("training.mixed_precision_reduce", "gradients are summed in float32"),
        ("training.dtype", "lt-train's weights are float32, whatever it computes in"),
    ):
        effect = Effect.RUN if key == "training.dtype" else Effect.RESULT
        ledger.drop(key, reason, Effect.NONE if ledger.peek(key) == "float32" else effect)
    converters = ledger.take("model.converters") or []
    converters = [str(entry) for entry in converters] if isinstance(converters, list) else [str(converters)]
    switches = ["model.converters", "training.enable_float8"]
    float8 = ledger.take("training.enable_float8") or any("float8" in entry for entry in converters)
    if ledger.peek("training.fp8_linear") in ("", False):
        ledger.drop("training.fp8_linear", "float8 is off")
    elif ledger.peek("training.fp8_linear") == "dynamic":
        float8 = ledger.take("training.fp8_linear")
        switches.append("training.fp8_linear")
    other_converters = [entry for entry in converters if "float8" not in entry]
    if other_converters:
        ledger.drop_value("model.converters", other_converters, "lt-train has float8 alone")
    for section in ("float8", "quantize.linear.float8", "quantize.dense.float8"):
        switches.append(f"{section}.enable_float8_linear")
        float8 = ledger.take(switches[-1]) or float8
        recipe = ledger.take_text(f"{section}.recipe_name")
        if recipe and float8:
            ledger.set("fp8_recipe", "rowwise" if "rowwise" in recipe else "tensorwise", f"{section}.recipe_name")
            if recipe not in ("rowwise", "tensorwise"):
                reason = "lt-train has tensorwise and rowwise; this is the nearer one"
                ledger.drop_value(f"{section}.recipe_name", recipe, reason, Effect.RESULT)
        for key in [key for key in ledger.remaining_keys() if key.startswith(f"{section}.")]:
            if not float8:
                ledger.drop(key, "float8 is off")
            elif key.endswith(GATHERING):
                ledger.drop(key, "lt-train chooses how weights in fp8 are gathered", Effect.SPEED)
            else:
                is_off = not ledger.peek(key)
                reason = "lt-train chooses which layers have fp8"
                ledger.drop(key, reason, Effect.NONE if is_off else Effect.RESULT)
    if not other_converters:
        for key in [key for key in ledger.remaining_keys() if key.startswith(("quantize.", "mx."))]:
            ledger.drop(key, "no converter of the model reads it")
    if float8:
        ledger.set("fp8_format", "hybrid", *switches)
    mode = ledger.take("activation_checkpoint.mode")
    if mode in ("selective", "full"):
        ledger.set("recompute_granularity", mode, "activation_checkpoint.mode")
    elif mode not in (None, "none"):
        ledger.drop_value("activation_checkpoint.mode", mode, "lt-train takes selective, full or none there")
