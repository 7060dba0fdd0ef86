"""`megatron.core.dist_checkpointing.strategies.common`: `common.pt`, a file of rank 0 for everything except tensors, until 0.16.

An error of rank 0's disk is held until rank 0 can tell all ranks (`lt_train.checkpoint.shards.first_rank_files`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core.dist_checkpointing.strategies import common

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream, replace_within

UPSTREAM = Upstream(
    "megatron.core.dist_checkpointing.strategies.common",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    # 0.19.2 stores this state among the tensors.
    signatures={"TorchCommonSaveStrategy.save_common": {"0.16.1": "(self, common_state_dict, checkpoint_dir)"}},
)


@contextlib.contextmanager
def save_common_by(save: Callable[..., None]) -> Iterator[None]:
    """Within the context, `save` is called with megatron-core's method and its arguments, if the method exists."""
    strategy = getattr(common, "TorchCommonSaveStrategy", None)
    if strategy is None:
        yield
        return
    save_before = strategy.save_common

    def save_common(self: Any, common_state_dict: Any, checkpoint_dir: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("TorchCommonSaveStrategy.save_common", unknown, unknown_named)
        save(save_before, self, common_state_dict, checkpoint_dir)

    with replace_within(strategy, "save_common", save_common):
        yield
