"""`lt-convert merge`."""

import sys

import click

from lt_convert.cli.target_options import DTYPES, check_plan_options, legacy_options, legacy_target, to_option
from lt_shared import console
from lt_shared.contracts import manifest

# Names in lt_convert.commands.merge.methods, which imports NumPy.
METHODS = ("linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties")
EXAMPLES = """
lt-convert merge run1 --last 3 --to hf -o run1-merged
lt-convert merge run1 --last 3 --weights minus-sqrt --to megatron-dist -o run1-wsm
lt-convert merge run1=0.7 run1-hf=0.3 --to hf -o blend
lt-convert merge math code --method slerp --parameter t=0.4 --to hf -o blend
lt-convert merge math=0.6 code=0.4 --method ties --base base --parameter density=0.3 --to hf -o blend
lt-convert merge --config merge.yaml --to hf -o blend
lt-convert merge base --adapter lora --to hf -o merged
lt-convert merge run1 --last 3 --to hf -o run1-merged --dry-run
"""


@click.command(cls=console.Command, examples=EXAMPLES)
@click.argument("sources", metavar="SRC[=WEIGHT]...", nargs=-1)
@click.option("--last", type=click.IntRange(2), metavar="N", help="Merge the newest N complete checkpoints of the run SRC.")
@click.option(
    "--weights",
    metavar="NAME",
    help="Weights of checkpoints without one, oldest first: uniform (the default, also called linear), minus-sqrt, ema=DECAY.",
)
@click.option("--method", type=click.Choice(METHODS), help="Merge by mergekit's method of this name, not by averaging.")
@click.option("--base", metavar="BASE", help="Base model of --method. Default for slerp: the first SRC.")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    metavar="NAME=VALUE",
    multiple=True,
    help="Parameter of --method by mergekit's name: t, weight, density, lambda, normalize, rescale. VALUE is YAML.",
)
@click.option(
    "--tokenizer-source",
    metavar="SOURCE",
    help="Merge embeddings by token, into the vocabulary of SOURCE: union, base, or a model's path.",
)
@click.option("--adapter", "adapters", metavar="DIR", multiple=True, help="Merge a LoRA adapter of PEFT into the weights of SRC.")
@click.option("--ema", is_flag=True, help="Merge the averages that lt-train --ema-decay keeps, in place of the weights.")
@click.option("--config", metavar="FILE", help="Read models, method and parameters from a YAML file of mergekit.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random masks of dare_*.")
@to_option
@click.option("-o", "--output", metavar="DST", required=True, help="Directory or URL to write.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Dtype of the result. Default: the checkpoints' dtype.")
@legacy_options
@click.option("--no-verify", is_flag=True, help="Do not compare the checkpoints with the checksums that were recorded in them.")
@click.option("--force", is_flag=True, help="Merge again, and replace DST if it is a checkpoint.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: the checkpoints and weights, every tensor, every file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan of --dry-run as JSON.")
@click.option("--plain", is_flag=True, help="Print the path alone instead of a manifest.")
def merge(
    sources: tuple[str, ...],
    last: int | None,
    weights: str | None,
    method: str | None,
    base: str | None,
    parameters: tuple[str, ...],
    tokenizer_source: str | None,
    adapters: tuple[str, ...],
    ema: bool,
    config: str | None,
    seed: int,
    to: str,
    output: str,
    dtype: str | None,
    target_tensor_parallel_size: int | None,
    target_pipeline_parallel_size: int | None,
    target_virtual_pipeline_parallel_size: int | None,
    target_transformer_impl: str | None,
    no_verify: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    plain: bool,
) -> None:
    """Average or merge checkpoints of a model, in any formats, into one checkpoint.

    SRC is a path as for lt-convert, with its weight after =. Without --method, the result is the average, and weights are divided
    by their sum. Memory does not grow with the model, nor with the number of checkpoints. The optimizer state is not merged. The
    same command resumes an interrupted merge.
    """
    from lt_convert.commands import plan_table
    from lt_convert.commands.merge import merge_request, merging, settings
    from lt_convert.commands.merge import sources as merge_sources
    from lt_convert.tensors.source_files import Files

    legacy = legacy_target(
        to,
        target_tensor_parallel_size,
        target_pipeline_parallel_size,
        target_virtual_pipeline_parallel_size,
        target_transformer_impl,
    )
    check_plan_options(dry_run, as_json)
    request = merge_request.MergeRequest([], to, output, weights, dtype, force, legacy, not no_verify, ema=ema)
    if config is not None and last:
        raise console.UsageError(f"--config {config} names models, method and parameters", "drop the others")
    chosen = merge_sources.chosen(sources, last) if sources else []
    choices = merge_request.Choices(chosen, method, base, settings.parse(parameters), adapters, config, seed, tokenizer_source)
    request = choices.applied(request)
    if dry_run:
        with Files() as files:
            record = merging.planned(request, files).to_record()
        console.print_json(record) if as_json else plan_table.write(record, sys.stdout)
        return
    writer = manifest.Writer(plain)
    writer.write(merging.merge(request))
    writer.end()
