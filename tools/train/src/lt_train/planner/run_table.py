"""What a run would do, for people: `--dry-run` on a terminal."""

from lt_train.config.cluster import GIB, Cluster
from lt_train.config.run_config import RunConfig
from lt_train.planner import memory_estimate, search


def table(config: RunConfig, cluster: Cluster, is_finished: bool) -> str:
    """A line per subject."""
    model, batches, saving = config.architecture, config.batches, config.checkpointing
    batch = f"{batches.global_batch_size} x {batches.seq_length} tokens, micro batch {batches.micro_batch_size}"
    tokens = batches.train_samples * batches.seq_length
    rows = {
        "model": f"{model.name}, {model.parameters():,} parameters, {config.precision.dtype}",
        "data": _data(config),
        "steps": f"{batches.train_iters:,} of {batch}: {tokens:,} tokens",
        "ranks": f"{config.parallelism.world_size} {config.parallelism.device}: {config.parallelism.described}",
        "memory": _memory(config, cluster),
        "start": "is finished" if is_finished else saving.start or "from the beginning",
        "save": f"{saving.save}, every {saving.save_interval:,} steps" if saving.save else "nothing: there is no --save",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows.items())


def _data(config: RunConfig) -> str:
    if config.data.mock:
        return "made up"
    counts = [dataset.tokens for dataset in config.data.datasets]
    known = f", {sum(filter(None, counts)):,} tokens" if None not in counts else ""
    return f"{len(counts)} dataset(s){known}"


def _memory(config: RunConfig, cluster: Cluster) -> str:
    estimate = memory_estimate.estimate(config)
    if cluster.gpu is None:
        return str(estimate)
    usable_bytes = search.usable_bytes(cluster)
    verdict = "fits into" if estimate.total <= usable_bytes else "does not fit into"
    return f"{estimate}, {verdict} {usable_bytes / GIB:.1f}"
