"""The command line of lt-convert."""

from pathlib import Path

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


@click.command(cls=console.Command, examples=EXAMPLES)
@click.version_option(__version__)
@click.argument("source", metavar="SRC")
@click.option("--to", type=click.Choice(["hf", "megatron-dist"]), required=True, help="Format of the result.")
@click.option("-o", "--output", metavar="DST", required=True, type=click.Path(path_type=Path), help="Directory to make.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Cast all tensors. Default: keep them as they are."
)
@click.option("--force", is_flag=True, help="Convert again, and replace DST if it exists.")
@click.option("--dry-run", is_flag=True, help="Print the plan as JSON: every tensor, where it comes from and its size.")
@click.option("--plain", is_flag=True, help="Print the bare path instead of a manifest.")
def command(source: str, to: str, output: Path, dtype: str | None, force: bool, dry_run: bool, plain: bool) -> None:
    """Convert a checkpoint of the Llama family between Megatron torch_dist and Hugging Face, without a GPU.

    SRC is a checkpoint directory, a run directory (its newest checkpoint), - for the last checkpoint of a manifest on standard
    input, or @FILE for one in a file. Its format is recognised. Tensors are copied bit by bit and streamed: memory does not grow
    with the model.
    """
    from lt_convert import conversion
    from lt_convert.tensors import OpenFiles

    request = conversion.Request(source, to, output, dtype, force)
    if dry_run:
        with OpenFiles() as files:
            console.print_json(conversion.plan(request, files).to_record())
        return
    writer = manifest.Writer(plain)
    writer.write(conversion.convert(request))
    writer.end()


def main() -> None:
    console.run(command, "lt-convert")
