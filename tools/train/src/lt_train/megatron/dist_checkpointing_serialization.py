"""`megatron.core.dist_checkpointing.serialization`: refuse a state beside the tensors that Megatron does not write."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import serialization

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream, replaced

UPSTREAM = Upstream(
    "megatron.core.dist_checkpointing.serialization",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={"load_common_state_dict": "(checkpoint_dir)"},
)


@contextlib.contextmanager
def loading_common_by(load: Callable[[Callable[[Any], Any], Any], dict[str, Any]]) -> Iterator[None]:
    """Within, megatron-core loads the state beside the tensors by `load`, which gets its function and the directory."""
    load_common = serialization.load_common_state_dict

    def load_common_state_dict(checkpoint_dir: Any, *unknown: Any, **unknown_named: Any) -> dict[str, Any]:
        UPSTREAM.refuse_unknown("load_common_state_dict", unknown, unknown_named)
        return load(load_common, checkpoint_dir)

    with (
        replaced(serialization, "load_common_state_dict", load_common_state_dict),
        # The package has the same function under its own name.
        replaced(dist_checkpointing, "load_common_state_dict", load_common_state_dict),
    ):
        yield
