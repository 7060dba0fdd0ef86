"""Translate Megatron-Bridge's precision. The section mixed_precision overrides the fields of model, optimizer and ddp.

`MixedPrecisionConfig.setup` writes each of its fields, defaults too, into the other sections that have a field of the name.
"""

from typing import Any

from lt_train.config.settings.precision import DELAYED
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.megatron.switches import delayed_scaling, sharded
from lt_train.importers.upstream.rows import is_default

SECTION = "mixed_precision"
TYPES = ("bf16", "fp16", "fp8", "fp4")
OVERRIDDEN = ("model", "optimizer", "ddp")
SAYS_IT = f"{SECTION} overrides it"
BY_DEFAULT = f"{SECTION} overrides it by a default that the file does not say"
# The name of a configuration whose only deviations from the defaults are its type.
NAMES = {"bf16_mixed": "bf16", "fp16_mixed": "fp16"}
SUMS = "gradients are summed in float32, or in the type of the weights"
SUMS_OF_FP16 = "lt-train sums gradients in float32, Megatron-Bridge in float16"


def resolve(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the name of a precision by its setting. A name of another configuration stays, and no table knows it."""
    name = str(values.get(SECTION, "")).replace("-", "_")
    if name not in NAMES:
        return values
    return {key: value for key, value in values.items() if key != SECTION} | {f"{SECTION}.{NAMES[name]}": True}


def translate(ledger: Ledger) -> None:
    is_overridden = any(key.startswith(f"{SECTION}.") for key in ledger.original_values())
    if is_overridden:
        for key in ledger.remaining_keys():
            section, _, name = key.partition(".")
            source = f"{SECTION}.{name}"
            if section in OVERRIDDEN and ledger.knows(source):
                is_stated = name not in TYPES or source in ledger.original_values()
                is_same = is_stated or is_default(ledger.peek(key), ledger.upstream(source))
                ledger.drop(key, SAYS_IT if is_same else BY_DEFAULT, Effect.NONE if is_same else Effect.RUN)
    for name in ("bf16", "fp16"):
        keys = [f"{section}.{name}" for section in (SECTION, "model", "optimizer")]
        switches = [ledger.take(key) for key in keys]
        if any(switches):
            ledger.set(name, True, *keys)
    _types(ledger)
    prefix = SECTION if is_overridden else "model"
    _fp8(ledger, prefix)
    for kind in ("fp8", "fp4"):
        is_on = ledger.get("fp8_format") if kind == "fp8" else ledger.peek(f"{prefix}.fp4")
        if not is_on:
            for key in [key for key in ledger.remaining_keys() if key.rpartition(".")[2].startswith(f"{kind}_")]:
                ledger.drop(key, f"{kind} is off")
    _gradients(ledger)
    sharded(ledger, ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"), "ddp.", bool(ledger.get("bf16") or ledger.get("fp16")))


def _types(ledger: Ledger) -> None:
    """Refuse 16-bit weights without a 16-bit precision; beside one, the type of the weights follows from it."""
    for section in (SECTION, "model", "optimizer"):
        key = f"{section}.params_dtype"
        if "16" in str(ledger.peek(key)) and not (ledger.get("bf16") or ledger.get("fp16")):
            ledger.drop(key, "lt-train has 16-bit weights with --bf16 or --fp16 alone", Effect.RUN)


def _fp8(ledger: Ledger, prefix: str) -> None:
    form = ledger.take(f"{prefix}.fp8")
    if not form:
        return
    ledger.carry_value(f"{prefix}.fp8", "fp8_format", str(form))
    key = f"{prefix}.fp8_recipe"
    recipe = ledger.peek(key) or ledger.upstream(key)
    if recipe == DELAYED:
        delayed_scaling(ledger, key)
    else:
        ledger.take(key)
        ledger.carry_value(key, "fp8_recipe", recipe)


def _gradients(ledger: Ledger) -> None:
    """Translate the type of the gradient reduction."""
    keys = (f"{SECTION}.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
    stated = [(key, ledger.take(key)) for key in keys]
    is_single = next((value for _, value in stated if value is not None), True)
    for key, value in stated:
        if value is not None and is_single is False and ledger.get("bf16"):
            ledger.set("grad_reduce_in_bf16", True, key)
        elif value is False and is_single is False and ledger.get("fp16"):
            ledger.drop_value(key, value, SUMS_OF_FP16, Effect.RESULT)
        elif value is not None:
            ledger.drop_value(key, value, SUMS, Effect.NONE)
    is_silent = not any(key.startswith(f"{SECTION}.") or key in keys for key in ledger.original_values())
    if is_silent and ledger.get("bf16") and any(key.startswith("ddp.") for key in ledger.original_values()):
        # The default of DistributedDataParallelConfig, which MixedPrecisionConfig alone overrides.
        ledger.default("grad_reduce_in_bf16", True)
