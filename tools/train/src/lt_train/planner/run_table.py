"""What a run would do, for people: `--dry-run` on a terminal. `lt-train plan` has some of its rows."""

from collections.abc import Collection

from lt_train.config.cluster import GIB, Cluster
from lt_train.config.run_config import RunConfig
from lt_train.planner import checkpoint_size, memory_estimate, search, stage_work
from lt_train.planner.memory_estimate import Estimate
from lt_train.runtime.device import CUDA


def table(config: RunConfig, cluster: Cluster, is_finished: bool) -> str:
    """A line per subject."""
    batches, saving = config.batches, config.checkpointing
    rows = {
        "model": model_row(config),
        "data": _data(config),
        "steps": f"{batches.train_iters:,} of {batch_row(config)}: {config.tokens(batches.train_samples):,} tokens",
        **({"phases": "; ".join(config.schedule.described(batches))} if config.schedule else {}),
        "ranks": f"{config.parallelism.world_size} {config.parallelism.device}: {config.parallelism.described}",
        **({"pipeline": stage_work.described(config)} if config.parallelism.pipeline > 1 else {}),
        "memory": memory_row(memory_estimate.estimate(config), cluster),
        "start": "is finished" if is_finished else config.checkpointing.start or "from the beginning",
        "save": save_row(config),
    }
    if saving.save_local:
        rows["local"] = _local(config, saving.save_local, cluster.nodes)
    return aligned(rows.items())


def _local(config: RunConfig, directory: str, nodes: int) -> str:
    """The bound of a node's disk: the newest set, and the next while it is written."""
    needed = 2 * checkpoint_size.local_set_bytes(config, nodes) / GIB
    return f"{directory}, every {config.checkpointing.local_interval:,} steps: at most {needed:.2f} GiB on a node's disk"


def model_row(config: RunConfig) -> str:
    model = config.architecture
    return f"{model.name}, {model.parameters():,} parameters, {config.precision.dtype}"


def batch_row(config: RunConfig) -> str:
    batches = config.batches
    return f"{batches.global_batch_size} x {batches.seq_length} tokens, micro batch {batches.micro_batch_size}"


def save_row(config: RunConfig) -> str:
    saving = config.checkpointing
    if not saving.save:
        return "nothing: there is no --save"
    host_gib = checkpoint_size.checkpoint_bytes(config) / GIB
    through = f" beside training, through {host_gib:,.2f} GiB of host memory of all nodes together"
    is_chosen_later = saving.async_save is None and config.parallelism.device == CUDA
    beside = f"{through} where it is free" if is_chosen_later else through if saving.async_save else ""
    return f"{saving.save}, every {saving.save_interval:,} steps{beside}"


def memory_row(estimate: Estimate, cluster: Cluster) -> str:
    if cluster.gpu is None:
        return str(estimate)
    usable_bytes = search.usable_bytes(cluster)
    verdict = "fits into" if estimate.total <= usable_bytes else "does not fit into"
    return f"{estimate}, {verdict} {usable_bytes / GIB:.1f}"


def aligned(rows: Collection[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _data(config: RunConfig) -> str:
    if config.data.mock:
        return "made up"
    counts = [dataset.tokens for dataset in config.data.datasets]
    known = f", {sum(filter(None, counts)):,} tokens" if None not in counts else ""
    return f"{len(counts)} dataset(s){known}"
