"""Megatron-Bridge's functions that draw the first weights, which its file writes with their arguments."""

import math

from lt_train.importers.bridge import mup
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.megatron import initialization as first_weights

NORMAL = "torch.nn.init.normal_"
USUAL = "--init-method-std draws the same weights"


def translate(ledger: Ledger) -> None:
    """Drop the functions. megatron-core fills them in: normal, narrower by the depth for the layers' outputs, and by the
    width with muP.

    The run's start is to be translated before.
    """
    deviation = first_weights.deviation(ledger)
    depth, width = 2 * (ledger.get("num_layers") or 1), mup.width_multiplier(ledger)
    for name, expected in (
        ("init_method", deviation / math.sqrt(width)),
        ("output_layer_init_method", deviation / math.sqrt(depth * width)),
        ("embedding_init_method", deviation),
    ):
        prefix = f"model.{name}."
        keys = [key for key in ledger.remaining_keys() if key.startswith(prefix)]
        arguments = {key.removeprefix(prefix): ledger.peek(key) for key in keys}
        is_usual = (
            arguments.get("_target_") == NORMAL
            and not arguments.get("_args_")
            and arguments.get("mean", 0.0) == 0.0
            and _is_close(arguments.get("std"), expected)
        )
        for key in keys:
            if is_usual:
                ledger.drop(key, USUAL)
            first_weights.drop(ledger, key)
    if _is_close(ledger.peek("model.embedding_init_method_std"), deviation):
        ledger.drop("model.embedding_init_method_std", USUAL)
    first_weights.drop(ledger, "model.embedding_init_method_std")
    if ledger.peek("model.perform_initialization") is False:
        first_weights.drop(ledger, "model.perform_initialization")
    if ledger.peek("model.use_cpu_initialization") is True:
        first_weights.drop(ledger, "model.use_cpu_initialization", first_weights.OTHER_NUMBERS, Effect.RESULT)


def _is_close(value: object, expected: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, expected, rel_tol=1e-6)
