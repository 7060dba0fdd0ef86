"""The options for the format of the written checkpoint, shared by several commands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from lt_convert import formats
from lt_shared import console

if TYPE_CHECKING:
    from lt_convert.formats.checkpoint import LegacyTarget

_SHARDED = formats.names_with("has_target_options")
DTYPES = ("float32", "bfloat16", "float16")

Decorator = Callable[[Any], Any]

to_option = click.option("--to", type=click.Choice(formats.WRITTEN), required=True, help="Format of the result.")


def legacy_options(function: Any) -> Any:
    """The --target options, which `legacy_target` makes one of."""
    options = (
        click.option("--target-tensor-parallel-size", type=click.IntRange(1), help=f"For {_SHARDED}: tensor parallel size."),
        click.option("--target-pipeline-parallel-size", type=click.IntRange(1), help=f"For {_SHARDED}: pipeline parallel size."),
        click.option(
            "--target-virtual-pipeline-parallel-size",
            type=click.IntRange(2),
            help=f"For {_SHARDED}: model chunks per pipeline rank.",
        ),
        click.option(
            "--target-transformer-impl",
            type=click.Choice(["transformer_engine", "local"]),
            help=f"For {_SHARDED}: Megatron's --transformer-impl. Default: transformer_engine; a legacy SRC keeps its own.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def legacy_target(to: str, tensor: int | None, pipeline: int | None, virtual: int | None, impl: str | None) -> "LegacyTarget":
    """Build the target of a legacy checkpoint. Raises UsageError if these options are set for another format."""
    from lt_convert.formats.checkpoint import LegacyTarget

    if not formats.FORMATS[to].has_target_options and (tensor or pipeline or virtual or impl):
        raise console.UsageError(f"--target options are for --to {_SHARDED}, not {to}", "drop them")
    return LegacyTarget(tensor or 1, pipeline or 1, virtual, impl == "local")


def check_plan_options(dry_run: bool, as_json: bool) -> None:
    if as_json and not dry_run:
        raise console.UsageError("--json shows the plan of --dry-run", "add --dry-run, or drop it: the manifest is JSON")
