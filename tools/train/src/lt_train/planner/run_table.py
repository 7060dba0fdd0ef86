"""The table that `--dry-run` prints on a terminal. `lt-train plan` shares some rows."""

from collections.abc import Collection

from lt_shared.models.architecture import Architecture
from lt_train.config.cluster import GIB, Cluster
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data
from lt_train.config.settings.precision import Precision
from lt_train.planner import memory_estimate, search
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.planner.memory_estimate import Estimate
from lt_train.planner.stage_work import PipelineWork
from lt_train.process.device import CUDA


def table(config: RunConfig, cluster: Cluster, is_finished: bool) -> str:
    """Return the table of `--dry-run`, a line per subject."""
    batches, saving, parallel = config.batches, config.checkpointing, config.parallelism
    size = CheckpointSize.from_config(config)
    rows = {
        "model": model_row(config.architecture, config.precision),
        "data": _data_row(config.data),
        "steps": f"{batches.train_iters:,} of {batch_row(batches)}: {config.tokens(batches.train_samples):,} tokens",
        **({"phases": "; ".join(config.schedule.described(batches))} if config.schedule else {}),
        "ranks": f"{parallel.world_size} {parallel.device}: {parallel.described}",
        **({"pipeline": str(PipelineWork.from_config(config))} if parallel.pipeline > 1 else {}),
        "memory": memory_row(memory_estimate.estimate(config).fullest_rank, cluster),
        "start": "is finished" if is_finished else saving.start or "from the beginning",
        "save": save_row(saving, size, parallel.device),
    }
    if saving.save_local:
        rows["local"] = _local_row(saving, size, cluster.nodes)
    for row in copies_rows(saving.replicate_interval, size, cluster.nodes):
        rows["copies"] = row
    return align_rows(rows.items())


def copies_rows(interval: int | None, size: CheckpointSize, nodes: int) -> list[str]:
    """Return the row of copies in memory; none without --replicate-interval."""
    if interval is None:
        return []
    often = f"every {interval:,} step(s)" if interval else "for 1% of the training time"
    return [f"{often}: {size.memory_copies(nodes) / GIB:.2f} GiB of each node's memory"]


def _local_row(saving: Checkpointing, size: CheckpointSize, nodes: int) -> str:
    """Return the row of local checkpoints. A node's disk holds the newest set, and the next set while it is written."""
    gib = 2 * size.local_set(nodes) / GIB
    return f"{saving.save_local}, every {saving.local_interval:,} steps: at most {gib:.2f} GiB on a node's disk"


def model_row(model: Architecture, precision: Precision) -> str:
    return f"{model.name}, {model.parameters():,} parameters, {precision.dtype}"


def batch_row(batches: Batches) -> str:
    return f"{batches.described}, micro batch {batches.micro_batch_size}"


def save_row(saving: Checkpointing, size: CheckpointSize, device: str) -> str:
    if not saving.save:
        return "nothing: there is no --save"
    through = f" beside training, through {size.total / GIB:,.2f} GiB of host memory of all nodes together"
    is_chosen_later = saving.async_save is None and device == CUDA
    beside = f"{through} where it is free" if is_chosen_later else through if saving.async_save else ""
    return f"{saving.save}, every {saving.save_interval:,} steps{beside}"


def memory_row(estimate: Estimate, cluster: Cluster) -> str:
    if cluster.gpu is None:
        return str(estimate)
    usable_bytes = search.usable_bytes(cluster)
    verdict = "fits into" if estimate.total <= usable_bytes else "does not fit into"
    return f"{estimate}, {verdict} {usable_bytes / GIB:.1f}"


def align_rows(rows: Collection[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _data_row(data: Data) -> str:
    if data.mock:
        return "made up"
    counts = [dataset.tokens for dataset in data.datasets]
    tokens = f", {sum(filter(None, counts)):,} tokens" if None not in counts else ""
    return f"{len(counts)} dataset(s){tokens}"
