"""Translate Muon's settings. lt-train uses megatron-core's defaults, and orthogonalizes whole matrices in every layout."""

from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.rows import is_default

NAMES = ("muon", "dist_muon")
# Defaults in megatron/core/optimizer/optimizer_config.py of 0.19, except `muon_tp_mode`, which is lt-train's choice.
SETTINGS: dict[str, Any] = {
    "muon_momentum": 0.95,
    "muon_nesterov": False,
    "muon_use_nesterov": False,
    "muon_split_qkv": True,
    "muon_no_split_qkv": False,
    "muon_scale_mode": "spectral",
    "muon_fp32_matmul_prec": "medium",
    "muon_coefficient_type": "quintic",
    "muon_num_ns_steps": 5,
    "muon_extra_scale_factor": 1.0,
    "muon_scalar_optimizer": "adam",
    "muon_tp_mode": "duplicated",
}
OTHERS = ("adaptive_muon_", "lion_", "soap_", "sgd_momentum")


def translate(ledger: Ledger, section: str, optimizer: str, tensor: int, defaults: dict[str, Any]) -> None:
    """Carry `optimizer` over if it is Muon, and drop the settings of unused optimizers.

    `defaults` are the trainer's defaults that differ from megatron-core's.
    """
    is_muon = optimizer in NAMES
    unused = (*OTHERS, *(() if is_muon else SETTINGS))
    for key in [key for key in ledger.remaining_keys() if key.startswith(tuple(f"{section}{name}" for name in unused))]:
        ledger.drop(key, "another optimizer reads it")
    if not is_muon:
        return
    ledger.take(f"{section}optimizer")
    ledger.set("optimizer", "muon", f"{section}optimizer")
    for name, value in SETTINGS.items():
        key = f"{section}{name}"
        if not ledger.has(key) and name not in defaults:
            continue
        requested = _word(ledger.take(key, defaults.get(name)))
        if is_default(requested, value):
            ledger.drop_value(key, requested, "as in lt-train", Effect.NONE)
        elif name == "muon_tp_mode" and tensor == 1:
            ledger.drop_value(key, requested, "with a tensor parallel size of 1 all modes are one", Effect.NONE)
        else:
            ledger.drop_value(key, requested, f"lt-train's Muon has {value} there", Effect.RUN)


def _word(value: Any) -> Any:
    """Join the words of a command-line option. An option without words is a switch that is on."""
    if isinstance(value, list):
        return " ".join(map(str, value)) if value else True
    return value
