"""The layout of a model on a planned cluster, as a table and as a JSON record."""

from typing import Any

from lt_train.config.checks import layout_problems, problems, problems_on
from lt_train.config.cluster import GIB, Cluster
from lt_train.config.draft import assemble
from lt_train.config.settings import parallelism
from lt_train.planner import run_table, search
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.planner.search import Choice, ParallelLayout

SHOWN = 3


def choose_layout(options: dict[str, Any], cluster: Cluster) -> Choice:
    """Return the best layout on `cluster`, or the layout in `options`. Raises UsageError or BadConfig if the run cannot work."""
    assert cluster.gpu
    config = assemble(options, (), cluster)
    if options["parallel"] == parallelism.AUTO:
        choice = search.choose(config, options, cluster)
    else:
        for problem in layout_problems(config):
            raise problem
        sizes = search.layout_options(options) | ({"sequence_parallel": True} if options["sequence_parallel"] else {})
        choice = Choice(cluster, ParallelLayout(config, sizes, cluster), (), 1)
    for problem in (*problems(choice.best.config), *problems_on(cluster.gpu.capability, vars(choice.best.config))):
        raise problem
    return choice


def record(choice: Choice) -> dict[str, Any]:
    """Return the JSON object of `lt-train plan`. Sizes are in bytes; `waste` is a share of the time."""
    assert choice.cluster.gpu
    best = choice.best
    return {
        "v": 1,
        "kind": "layout",
        "model": best.config.architecture.name,
        "parameters": best.config.architecture.parameters(),
        "gpu": choice.cluster.gpu.name,
        "nodes": choice.cluster.nodes,
        "gpus_per_node": choice.cluster.ranks_per_node,
        "usable_bytes": search.usable_bytes(choice.cluster),
        "reasons": choice.reasons,
        **_record(best),
        "others": [_record(other) for other in choice.alternatives[:SHOWN]],
    }


def _record(layout: ParallelLayout) -> dict[str, Any]:
    parallel, recompute, work = layout.config.parallelism, layout.config.memory.recompute, layout.pipeline_work
    return {
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
        "expert": parallel.expert,
        "data": parallel.data,
        "recompute": recompute.granularity if recompute else None,
        "options": layout.flags,
        "rank_memory_bytes": layout.estimate.as_record(),
        "ranks_memory_bytes": [estimate.total for estimate in layout.memory.ranks],
        "fits": layout.fits,
        "waste": round(layout.waste, 4),
        "bubble_share": work.bubble_share,
        "rank_work_shares": work.rank_shares,
        "pipeline_share_left": work.share_left,
    }


def table(choice: Choice) -> str:
    """Return the table of `lt-train plan`: the layout, its memory, and the next best layouts."""
    cluster, best = choice.cluster, choice.best
    assert cluster.gpu
    size = CheckpointSize.from_config(best.config)
    rows = [
        ("model", run_table.model_row(best.config.architecture, best.config.precision)),
        ("cluster", f"{cluster.nodes} node(s) x {cluster.ranks_per_node} {cluster.gpu.name}: {cluster.ranks} ranks"),
        ("batch", run_table.batch_row(best.config.batches)),
        ("layout", best.config.parallelism.described + (", layers recomputed" if best.recomputes_layers else "")),
        *(("why" if number == 0 else "", reason) for number, reason in enumerate(choice.reasons)),
        ("memory", run_table.memory_row(best.estimate, cluster)),
        *_stage_rows(best),
        *(("copies", row) for row in run_table.copies_rows(best.config.checkpointing.replicate_interval, size, cluster.nodes)),
        *(("instead", f"{_summary(other)}, waste of about {other.waste:.0%}") for other in choice.alternatives[:SHOWN]),
        ("options", " ".join(best.flags) or "none: these are the defaults"),
    ]
    return run_table.align_rows(rows)


def _summary(layout: ParallelLayout) -> str:
    recomputed = ", layers recomputed" if layout.recomputes_layers else ""
    ends = (("first", layout.config.parallelism.first_stage_layers), ("last", layout.config.parallelism.last_stage_layers))
    end_layers = "".join(f", {layers} layers on the {place}" for place, layers in ends if layers)
    return f"{layout.config.parallelism.described}{end_layers}{recomputed}: {layout.estimate.total / GIB:.1f} GiB"


def _stage_rows(layout: ParallelLayout) -> list[tuple[str, str]]:
    """Return a row with every pipeline stage's memory, if there are several stages. The ranks of a stage need equal memory."""
    estimates = layout.memory.ranks
    if len(estimates) == 1:
        return []
    return [("per stage", " ".join(f"{estimate.total / GIB:.1f}" for estimate in estimates) + " GiB, first to last")]
