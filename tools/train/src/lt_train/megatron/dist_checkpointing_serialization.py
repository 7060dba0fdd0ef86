"""`megatron.core.dist_checkpointing.serialization`: the state beside the tensors, and the file that names a checkpoint's format.

- A state that Megatron does not write is refused with the checkpoint's name (`lt_train.checkpoint.object_reader`).
- Rank 0 alone writes `metadata.json`. An error of its disk is held until rank 0 can tell all ranks
  (`lt_train.checkpoint.shards.first_rank_files`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import serialization

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream, replace_within

UPSTREAM = Upstream(
    "megatron.core.dist_checkpointing.serialization",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={"load_common_state_dict": "(checkpoint_dir)", "save_config": "(config, checkpoint_dir)"},
)


@contextlib.contextmanager
def load_common_by(load: Callable[[Callable[[Any], Any], Any], dict[str, Any]]) -> Iterator[None]:
    """Within, megatron-core loads the state beside the tensors by `load`, which gets the original function and the directory."""
    load_common = serialization.load_common_state_dict

    def load_common_state_dict(checkpoint_dir: Any, *unknown: Any, **unknown_named: Any) -> dict[str, Any]:
        UPSTREAM.refuse_unknown("load_common_state_dict", unknown, unknown_named)
        return load(load_common, checkpoint_dir)

    with (
        replace_within(serialization, "load_common_state_dict", load_common_state_dict),
        # The package has the same function under its own name.
        replace_within(dist_checkpointing, "load_common_state_dict", load_common_state_dict),
    ):
        yield


@contextlib.contextmanager
def save_config_by(save: Callable[..., None]) -> Iterator[None]:
    """Within the context, `save` is called instead of `save_config`, with the original function and its arguments."""
    save_before = serialization.save_config

    def save_config(config: Any, checkpoint_dir: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("save_config", unknown, unknown_named)
        save(save_before, config, checkpoint_dir)

    with replace_within(serialization, "save_config", save_config):
        yield
