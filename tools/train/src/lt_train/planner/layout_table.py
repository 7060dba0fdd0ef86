"""The layout of a model on a cluster that need not be there, for people and for programs."""

from typing import Any

from lt_train.config.checks import layout_problems, problems, problems_on
from lt_train.config.cluster import GIB, Cluster
from lt_train.config.draft import assemble
from lt_train.config.settings import parallelism
from lt_train.planner import run_table, search
from lt_train.planner.search import Choice, ParallelLayout

SHOWN = 3


def on_cluster(options: dict[str, Any], cluster: Cluster) -> Choice:
    """The best layout, or the one that `options` give. Raises UsageError or BadConfig for a run that cannot work there."""
    assert cluster.gpu
    config = assemble(options, (), cluster)
    if options["parallel"] == parallelism.AUTO:
        choice = search.choose(config, options, cluster)
    else:
        for problem in layout_problems(config):
            raise problem
        sizes = {name: options[name] for name in search.SIZES if options[name] not in (None, False, 1)}
        choice = Choice(cluster, ParallelLayout(config, sizes, cluster), (), 1)
    for problem in (*problems(choice.best.config), *problems_on(cluster.gpu.capability, vars(choice.best.config))):
        raise problem
    return choice


def record(choice: Choice) -> dict[str, Any]:
    """The JSON object of `lt-train plan`; sizes in bytes, `waste` a share of the time."""
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
        "others": [_record(other) for other in choice.others[:SHOWN]],
    }


def _record(found: ParallelLayout) -> dict[str, Any]:
    parallel, recompute, work = found.config.parallelism, found.config.memory.recompute, found.pipeline_work
    return {
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
        "expert": parallel.expert,
        "data": parallel.data,
        "recompute": recompute.granularity if recompute else None,
        "options": found.flags,
        "rank_memory_bytes": found.estimate.as_record(),
        "ranks_memory_bytes": [estimate.total for estimate in found.memory.ranks],
        "fits": found.fits,
        "waste": round(found.waste, 4),
        "bubble_share": work.bubble_share,
        "rank_work_shares": work.rank_shares,
        "pipeline_share_left": work.share_left,
    }


def table(choice: Choice) -> str:
    """The same for people."""
    cluster, best = choice.cluster, choice.best
    assert cluster.gpu
    rows = [
        ("model", run_table.model_row(best.config.architecture, best.config.precision)),
        ("cluster", f"{cluster.nodes} node(s) x {cluster.ranks_per_node} {cluster.gpu.name}: {cluster.ranks} ranks"),
        ("batch", run_table.batch_row(best.config.batches)),
        ("layout", best.config.parallelism.described + (", layers recomputed" if best.recomputes_layers else "")),
        *(("why" if number == 0 else "", reason) for number, reason in enumerate(choice.reasons)),
        ("memory", run_table.memory_row(best.estimate, cluster)),
        *_stages(best),
        *(("instead", f"{_short(other)}, waste of about {other.waste:.0%}") for other in choice.others[:SHOWN]),
        ("options", " ".join(best.flags) or "none: these are the defaults"),
    ]
    return run_table.aligned(rows)


def _short(found: ParallelLayout) -> str:
    recomputed = ", layers recomputed" if found.recomputes_layers else ""
    ends = (("first", found.config.parallelism.first_stage_layers), ("last", found.config.parallelism.last_stage_layers))
    own = "".join(f", {layers} layers on the {place}" for place, layers in ends if layers)
    return f"{found.config.parallelism.described}{own}{recomputed}: {found.estimate.total / GIB:.1f} GiB"


def _stages(found: ParallelLayout) -> list[tuple[str, str]]:
    """Return the totals of the pipeline ranks, if there are several; the ranks of a stage are alike."""
    estimates = found.memory.ranks
    if len(estimates) == 1:
        return []
    return [("per stage", " ".join(f"{estimate.total / GIB:.1f}" for estimate in estimates) + " GiB, first to last")]
