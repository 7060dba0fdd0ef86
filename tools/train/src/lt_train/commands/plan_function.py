"""Call `lt-train plan` from notebooks and scripts. The function has the options and checks of the command."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import click

from lt_shared.console import UsageError, keyword_options
from lt_shared.console.keyword_options import Value
from lt_train.commands import plan_layout
from lt_train.planner import layout_table


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of tensor, pipeline, context, expert and data parallelism; `recompute` is None, "selective" or "full"."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int
    recompute: str | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The layout of a model on a cluster, and the memory of its ranks.

    `fits` says whether the rank with the most memory stays within `usable_bytes`. `rank_memory_bytes` lists the memory of that
    rank: `weights`, `gradients`, `optimizer`, `gathered` (the layers that FSDP gathers at a time), `activations` and `total`.
    `ranks_memory_bytes` has a rank's total for every pipeline stage. `options` are the options that select this layout in
    `lt-train`. `record` is the object that `lt-train plan --json` prints.
    """

    layout: Layout
    fits: bool
    usable_bytes: int
    rank_memory_bytes: Mapping[str, int]
    ranks_memory_bytes: tuple[int, ...]
    options: list[str]
    record: Mapping[str, Any] = dataclasses.field(repr=False)


def plan(*, model: str | os.PathLike[str] | None = None, gpu: str, nodes: int = 1, **options: Value) -> Plan:
    """Choose the best layout for a model on a cluster, which need not exist, or check a layout that the options set.

    `gpu` is a name from `lt-train plan --help`. `options` are the command's other options, with underscores: `bf16=True`,
    `seq_length=8192`, `global_batch_size=1024`, `tensor_model_parallel_size=4`. An option with several values takes a list. None
    and False omit an option. Environment variables such as LT_TRAIN_SEQ_LENGTH are ignored.

    A layout that does not fit is no error: `fits` is False. Raises UsageError for an unknown option or an invalid value, and
    BadConfig for a model that no layout can divide among the ranks.
    """
    command = plan_layout.command
    words = keyword_options.words(command, {"model": model, "gpu": gpu, "nodes": nodes, **options}, "lt-train plan")
    try:
        with command.make_context("plan", words, auto_envvar_prefix=None) as context:
            parameters = dict(context.params)
    except click.UsageError as error:
        raise UsageError(error.format_message()) from None
    del parameters["as_json"]
    record = layout_table.record(plan_layout.choose(parameters.pop("ranks"), parameters))
    return Plan(
        Layout(**{field.name: record[field.name] for field in dataclasses.fields(Layout)}),
        record["fits"],
        record["usable_bytes"],
        record["rank_memory_bytes"],
        tuple(record["ranks_memory_bytes"]),
        record["options"],
        record,
    )
