"""DeepSeek's sparse attention: megatron-core's options for the indexer that chooses the tokens of every query."""

from collections.abc import Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, SparseAttention
from lt_shared.models.architecture.sparse_attention import SIZES
from lt_shared.models.megatron_arguments.gated_delta import SPARSE, VARIANT

POSITIVE = click.IntRange(min=1)
INTERLEAVED = "dsa_indexer_rope_interleaved"

OPTIONS = console.section(
    "Sparse attention",
    click.option("--dsa-indexer-n-heads", type=POSITIVE, help="Set the number of heads of the indexer; by default 64."),
    click.option("--dsa-indexer-head-dim", type=POSITIVE, help="Set the size of an indexer's head; by default 128."),
    click.option("--dsa-indexer-topk", type=POSITIVE, help="Set the number of tokens that a query sees; by default 2048."),
    click.option(
        "--dsa-indexer-rope-interleaved",
        is_flag=True,
        default=None,
        help="Rotate adjacent channels of the indexer's heads as pairs (GLM-5).",
    ),
)


def changed_fields(options: dict[str, Any], base: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options change. Raises BadConfig for an option of a model without sparse attention."""
    requested = {name: options[name] for name in (*SIZES, INTERLEAVED) if options[name] is not None}
    sparse = base.sparse_attention or (SparseAttention() if options[VARIANT] == SPARSE else None)
    if sparse is None:
        if requested:
            name = next(iter(requested)).replace("_", "-")
            raise BadConfig(
                f"--{name} for a model without sparse attention", f"add --{VARIANT.replace('_', '-')} {SPARSE} or drop it"
            )
        return {}
    return {"sparse_attention": SparseAttention(**{**vars(sparse), **requested})}
