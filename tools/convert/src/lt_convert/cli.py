"""The command line of lt-convert."""

import sys
from typing import NoReturn

import click

from lt_convert import __version__
from lt_shared import console, manifest

EXAMPLES = """
lt-convert run1 --to hf -o run1-hf
lt-convert run1/iter_0001000 --to hf --dtype bfloat16 -o step1000-hf
lt-convert Llama-3.2-1B --to megatron-dist -o llama
lt-convert Llama-3.2-1B --to megatron-dist -o llama --dry-run
lt-train --model llama3.2-1b --save run1 @data.manifest | lt-convert --to hf -o run1-hf -
"""
INSPECT_EXAMPLES = """
lt-convert inspect run1
lt-convert inspect Llama-3.2-1B --json
"""
VERIFY_EXAMPLES = """
lt-convert verify run1-hf
lt-convert verify run1 run1-hf
lt-convert verify run1 run1-hf --logits
"""
FORMATS = ("hf", "megatron-dist", "megatron-legacy", "torchtitan")


class _Command(console.Command):
    """The command without a name, whose help also lists those that have one."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        commands.format_commands(click.Context(commands, info_name=ctx.info_name), formatter)


@click.command(cls=_Command, examples=EXAMPLES)
@click.version_option(__version__)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.option("--to", type=click.Choice(FORMATS), required=True, help="Format of the result.")
@click.option("-o", "--output", metavar="DST", required=True, help="Directory to make, or URL; of several SRC, each in DST/NAME.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Cast all tensors. Default: keep them as they are."
)
@click.option("--target-tensor-parallel-size", type=click.IntRange(1), help="Of megatron-legacy: files that share a layer.")
@click.option("--target-pipeline-parallel-size", type=click.IntRange(1), help="Of megatron-legacy: stages of layers.")
@click.option(
    "--target-virtual-pipeline-parallel-size", type=click.IntRange(2), help="Of megatron-legacy: model chunks of a stage."
)
@click.option(
    "--target-transformer-impl",
    type=click.Choice(["transformer_engine", "local"]),
    help="Of megatron-legacy: the layers that will read it. Default: transformer_engine; a legacy SRC keeps its own.",
)
@click.option("--no-optimizer", is_flag=True, help="Leave the optimizer's state out.")
@click.option("--force", is_flag=True, help="Convert again, and replace DST if it exists.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: every tensor, where it comes from, its size and place.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan of --dry-run as JSON.")
@click.option("--plain", is_flag=True, help="Print the bare path instead of a manifest.")
def command(
    sources: tuple[str, ...],
    to: str,
    output: str,
    dtype: str | None,
    target_tensor_parallel_size: int | None,
    target_pipeline_parallel_size: int | None,
    target_virtual_pipeline_parallel_size: int | None,
    target_transformer_impl: str | None,
    no_optimizer: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    plain: bool,
) -> None:
    """Convert checkpoints between Hugging Face, Megatron (torch_dist and legacy) and TorchTitan, without a GPU.

    SRC is a checkpoint directory, a run directory (its newest checkpoint), - for the last checkpoint of a manifest on standard
    input, or @FILE for one in a file; s3:// URLs work too. Its format is recognised. Tensors are copied bit by bit and streamed:
    memory does not grow with the model. The same command continues an interrupted conversion.
    """
    from lt_convert.commands import conversion, plan_table
    from lt_convert.formats.checkpoint import Layout
    from lt_convert.tensors.source_files import Files

    sizes = (target_tensor_parallel_size, target_pipeline_parallel_size, target_virtual_pipeline_parallel_size)
    if to != "megatron-legacy" and (any(sizes) or target_transformer_impl):
        raise console.UsageError(f"--target options are for --to megatron-legacy, not {to}", "drop them")
    if as_json and not dry_run:
        raise console.UsageError("--json shows the plan of --dry-run", "add --dry-run, or drop it: the manifest is JSON")
    layout = Layout(sizes[0] or 1, sizes[1] or 1, sizes[2], target_transformer_impl == "local")
    requests = [
        conversion.Request(source, to, destination, dtype, force, layout, not no_optimizer)
        for source, destination in conversion.destinations(sources, output)
    ]
    if dry_run:
        for request in requests:
            with Files() as files:
                plan = conversion.plan(request, files)
            conversion.check_place(request.destination, plan.source.directory)
            record = plan.to_record()
            console.print_json(record) if as_json else plan_table.write(record, sys.stdout)
        return
    if len(requests) > 1:
        # What cannot be converted shows before anything is written.
        for request in requests:
            with Files() as files:
                conversion.plan(request, files)
    writer = manifest.Writer(plain)
    for request in requests:
        writer.write(conversion.convert(request))
    writer.end()


@click.group(cls=console.Group)
def commands() -> None:
    """Convert checkpoints."""


@commands.command(cls=console.Command, examples=INSPECT_EXAMPLES)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def inspect(path: str, as_json: bool) -> None:
    """Say what a checkpoint is: format, architecture, size, how it was trained and whether it ever was.

    PATH is a checkpoint or a run directory (its newest checkpoint), in any format, or an s3:// URL.
    """
    from lt_convert.commands import inspection

    record = inspection.inspect(path)
    if as_json:
        console.print_json(record)
    else:
        inspection.write_table(record, sys.stdout)


@commands.command(cls=console.Command, examples=VERIFY_EXAMPLES)
@click.argument("path")
@click.argument("other", required=False)
@click.option("--logits", is_flag=True, help="Compare fp32 logits at long positions too (needs torch and transformers).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: str, other: str | None, logits: bool, as_json: bool) -> int:
    """Check a conversion's result, PATH, against its checksums; or compare two checkpoints, PATH and OTHER, of any formats.

    The comparison takes the configuration first, then every tensor bit by bit. Exit code 1 says that something differs.
    """
    from lt_convert.commands import verification

    if other is None:
        if logits:
            raise console.UsageError("--logits compares two checkpoints", "name the other one too")
        record = verification.verify(path)
        same = not record["problems"]
    else:
        record = verification.compare(path, other, logits)
        same = record["same"]
    if as_json:
        console.print_json(record)
    else:
        for line in verification.lines(record):
            click.echo(line)
    return 0 if same else 1


def main() -> NoReturn:
    is_named = len(sys.argv) > 1 and sys.argv[1] in commands.commands
    console.run(commands if is_named else command, "lt-convert")
