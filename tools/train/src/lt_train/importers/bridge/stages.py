"""Carry over which pipeline stage has which layers."""

from typing import Any

from lt_train.config.settings.pipeline_layout import (
    COUNTS_EMBEDDING,
    COUNTS_LOSS,
    EMBEDDING,
    LAYER,
    LAYOUT_NAME,
    LOSS,
    PREDICTION,
)
from lt_train.importers.ledger import Ledger

LAYOUT, VIRTUAL = f"model.{LAYOUT_NAME}", "model.virtual_pipeline_model_parallel_size"
ENDS = (COUNTS_EMBEDDING, COUNTS_LOSS)
SYMBOLS = {"embedding": EMBEDDING, "decoder": LAYER, "mtp": PREDICTION, "loss": LOSS}


def translate(ledger: Ledger) -> None:
    text = _layout_text(ledger.peek(LAYOUT))
    if text is not None:
        ledger.take(LAYOUT)
        ledger.set(LAYOUT_NAME, text, LAYOUT)
        ledger.drop(VIRTUAL, "the layout of the pipeline says it")
        return
    if ledger.peek(VIRTUAL) == 1:
        ledger.drop(VIRTUAL, "a stage per rank, as in lt-train")
    if ledger.peek(VIRTUAL) is not None:
        ledger.carry(VIRTUAL, "num_virtual_stages_per_pipeline_rank")
    for name in ENDS:
        ledger.flag(f"model.{name}", name)


def _layout_text(layout: Any) -> str | None:
    """Return a layout as a string; None for no layout, and for parts that lt-train does not have."""
    if isinstance(layout, str):
        return layout
    if not isinstance(layout, list) or not all(isinstance(stage, list) for stage in layout):
        return None
    stages = ["".join(SYMBOLS.get(str(part).lower(), "?") for part in stage) for stage in layout]
    text = "|".join(stages)
    return None if "?" in text or not text else text
