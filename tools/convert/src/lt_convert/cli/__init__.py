"""The command line of lt-convert."""

import sys
from typing import NoReturn

import click

from lt_convert import formats
from lt_convert.cli import extract_command, follow_command, merge_command
from lt_convert.cli.target_options import DTYPES, check_plan_options, legacy_options, legacy_target, to_option
from lt_shared import console
from lt_shared.contracts import manifest

_QUANTIZABLE = formats.names_with("is_quantizable")
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


def _named() -> click.Group:
    return commands


@click.command(cls=console.DefaultCommand, examples=EXAMPLES, named=_named)
@console.version_option("lt-convert", "numpy", "s3fs")
@click.argument("sources", cls=console.Operands, metavar="SRC...", nargs=-1, required=True)
@to_option
@click.option(
    "-o", "--output", metavar="DST", required=True, help="Directory or URL to write; with several SRC, each goes to DST/NAME."
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Cast all tensors. Default: keep every tensor's dtype.")
@click.option(
    "--quantize",
    type=click.Choice(["fp8-block"]),
    help=f"For {_QUANTIZABLE}: store the weights of linear modules in fp8 with a scale per 128 x 128 block, as DeepSeek-V3.",
)
@legacy_options
@click.option(
    "--shard",
    metavar="I/N",
    help="Convert part I (from 0) of N; the last part publishes DST. auto, auto/N: as the launcher numbers its processes.",
)
@click.option("--ema", is_flag=True, help="Convert the averages that lt-train --ema-decay keeps, in place of the weights.")
@click.option("--no-optimizer", is_flag=True, help="Do not convert the optimizer state.")
@click.option("--no-verify", is_flag=True, help="Do not compare SRC with the checksums that were recorded in it.")
@click.option("--force", is_flag=True, help="Convert again, and replace DST if it is a checkpoint.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: every tensor with its source, size, file and offset.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan of --dry-run as JSON.")
@click.option("--plain", is_flag=True, help="Print the path alone instead of a manifest.")
def command(
    sources: tuple[str, ...],
    to: str,
    output: str,
    dtype: str | None,
    quantize: str | None,
    target_tensor_parallel_size: int | None,
    target_pipeline_parallel_size: int | None,
    target_virtual_pipeline_parallel_size: int | None,
    target_transformer_impl: str | None,
    shard: str | None,
    ema: bool,
    no_optimizer: bool,
    no_verify: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    plain: bool,
) -> None:
    """Convert checkpoints between Hugging Face, Megatron (torch_dist and legacy) and TorchTitan, without a GPU.

    SRC is a checkpoint directory, a run directory (its newest checkpoint), - for the last checkpoint of a manifest on standard
    input, or @FILE for a manifest in a file; s3:// URLs work, too. The format of SRC is detected. Tensors are copied bit for
    bit and streamed: memory does not grow with the model. The same command resumes an interrupted conversion. With --shard,
    several processes and nodes convert one checkpoint together.
    """
    from lt_convert.commands import conversion, plan_table
    from lt_convert.engine import result
    from lt_convert.tensors.source_files import Files
    from lt_shared.console import shard_option

    legacy = legacy_target(
        to,
        target_tensor_parallel_size,
        target_pipeline_parallel_size,
        target_virtual_pipeline_parallel_size,
        target_transformer_impl,
    )
    if quantize and not formats.FORMATS[to].is_quantizable:
        raise console.UsageError(f"--quantize is for --to {_QUANTIZABLE}, not {to}", "drop it")
    check_plan_options(dry_run, as_json)
    part = shard_option.WHOLE if shard is None else shard_option.parse_shard(shard)
    requests = [
        conversion.Request(source, to, destination, dtype, force, legacy, not no_optimizer, not no_verify, bool(quantize), ema)
        for source, destination in conversion.destinations(sources, output)
    ]
    if dry_run:
        for request in requests:
            with Files() as files:
                plan = conversion.plan(request, files, reads_values=False)
            result.check_destination(request.destination, plan.source.directory)
            record = plan.to_record() | ({"parts": plan.parts(part.count)} if shard is not None else {})
            console.print_json(record) if as_json else plan_table.write(record, sys.stdout)
        return
    if len(requests) > 1:
        # All checkpoints are planned before anything is written: one that cannot be converted fails at once.
        for request in requests:
            with Files() as files:
                conversion.plan(request, files, part=part)
    writer = manifest.Writer(plain)
    checkpoints = [conversion.convert_part(request, part) for request in requests]
    for checkpoint in checkpoints:
        if checkpoint is not None:
            writer.write(checkpoint)
    # A manifest without its last line tells the next tool that the result is not complete.
    if None not in checkpoints:
        writer.end()


@click.group(cls=console.Group)
def commands() -> None:
    """Convert checkpoints."""


@commands.command(cls=console.Command, examples=INSPECT_EXAMPLES)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def inspect(path: str, as_json: bool) -> None:
    """Show the format, architecture, size and training progress of a checkpoint.

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
@click.option("--logits", is_flag=True, help="Compare fp32 logits at long positions, too (needs torch and transformers).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: str, other: str | None, logits: bool, as_json: bool) -> int:
    """Check a converted checkpoint, PATH, against its checksums; or compare two checkpoints, PATH and OTHER, of any formats.

    The comparison covers the configuration, then every tensor bit for bit. Exit code 1 means that something differs.
    """
    from lt_convert.commands import checkpoint_comparison, checksum_verification

    if other is None:
        if logits:
            raise console.UsageError("--logits compares two checkpoints", "name the other one too")
        record = checksum_verification.verify(path)
        lines, same = checksum_verification.lines(record), not record["problems"]
    else:
        record = checkpoint_comparison.compare(path, other, logits)
        lines, same = checkpoint_comparison.lines(record), record["same"]
    if as_json:
        console.print_json(record)
    else:
        console.print_text("\n".join(lines))
    return 0 if same else 1


commands.add_command(merge_command.merge)
commands.add_command(extract_command.extract)
commands.add_command(follow_command.follow)


def main() -> NoReturn:
    console.run(command, "lt-convert")
