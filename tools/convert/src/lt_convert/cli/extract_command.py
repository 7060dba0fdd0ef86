"""`lt-convert extract`."""

import click

from lt_shared import console
from lt_shared.contracts import manifest

EXAMPLES = """
lt-convert extract tuned --base base --rank 32 -o lora
"""


@click.command(cls=console.Command, examples=EXAMPLES)
@click.argument("tuned", metavar="SRC")
@click.option("--base", metavar="BASE", required=True, help="The model before fine-tuning.")
@click.option("--rank", type=click.IntRange(1), default=16, show_default=True, help="Rank of the matrices.")
@click.option("-o", "--output", metavar="DST", required=True, help="Directory or URL to write.")
@click.option("--no-verify", is_flag=True, help="Do not compare the checkpoints with the checksums that were recorded in them.")
@click.option("--force", is_flag=True, help="Extract again, and replace DST if lt-convert wrote it.")
@click.option("--dry-run", is_flag=True, help="Print the plan as JSON and stop.")
@click.option("--plain", is_flag=True, help="Print the path alone instead of a manifest.")
def extract(tuned: str, base: str, rank: int, output: str, no_verify: bool, force: bool, dry_run: bool, plain: bool) -> None:
    """Extract a LoRA adapter in PEFT's format from a fine-tuned model and its base, in any formats.

    Linear layers get the best approximation of their difference with the given rank. Norms and embeddings that differ are stored
    whole. The same command resumes an interrupted extraction.
    """
    from lt_convert.commands.merge import extraction
    from lt_convert.tensors.source_files import Files

    request = extraction.Extraction(tuned, base, output, rank, force, not no_verify)
    if dry_run:
        with Files() as files:
            console.print_json(extraction.planned(request, files).to_record())
        return
    writer = manifest.Writer(plain)
    writer.write(extraction.extract(request))
    writer.end()
