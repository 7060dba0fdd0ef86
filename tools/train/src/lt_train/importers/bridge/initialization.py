"""Megatron-Bridge's functions that draw the first weights, which its file writes with their arguments."""

import math

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

NORMAL = "torch.nn.init.normal_"
USUAL = "--init-method-std draws the same weights"
OTHER = "lt-train draws first weights by --init-method-std"
# megatron-core's own, which it takes where nothing is said.
STANDARD_DEVIATION = 0.02


def translate(ledger: Ledger) -> None:
    """Drop the functions. megatron-core fills them in: normal, and narrower by the depth for the layers' outputs."""
    deviation = ledger.get("init_method_std") or STANDARD_DEVIATION
    depth = 2 * (ledger.get("num_layers") or 1)
    for name, expected in (
        ("init_method", deviation),
        ("output_layer_init_method", deviation / math.sqrt(depth)),
        ("embedding_init_method", deviation),
    ):
        prefix = f"model.{name}."
        keys = [key for key in ledger.left() if key.startswith(prefix)]
        arguments = {key.removeprefix(prefix): ledger.peek(key) for key in keys}
        is_usual = (
            arguments.get("_target_") == NORMAL
            and not arguments.get("_args_")
            and arguments.get("mean", 0.0) == 0.0
            and _is_close(arguments.get("std"), expected)
        )
        for key in keys:
            ledger.drop(key, USUAL if is_usual else OTHER, Effect.NONE if is_usual else Effect.RESULT)


def _is_close(value: object, expected: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, expected, rel_tol=1e-6)
