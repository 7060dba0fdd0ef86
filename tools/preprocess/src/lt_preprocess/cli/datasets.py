"""The commands that work on finished datasets, those of Megatron-LM and NeMo included."""

from typing import Any

import click

from lt_shared import console

MERGE_EXAMPLES = """
lt-preprocess merge 'parts/web-*_text_document' -o data/all_text_document
lt-preprocess merge --input parts/ --output-prefix data/all_text_document
lt-preprocess merge @parts.manifest -o data/all_text_document --plain
"""


@click.group(cls=console.Group)
def commands() -> None:
    """Work on finished datasets."""


OUTPUT = click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX.bin and PREFIX.idx.")
FORCE = click.option("--force", is_flag=True, help="Do it again even if the output is up to date.")
PLAIN = click.option("--plain", is_flag=True, help="Print the bare prefix instead of the manifest.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Check everything, print the plan as JSON, write nothing.")


def _print_manifest(made: list[Any], plain: bool) -> None:
    from lt_shared import manifest

    writer = manifest.Writer(plain)
    for dataset in made:
        writer.write(dataset)
    writer.end()


@commands.command(examples=MERGE_EXAMPLES)
@click.argument("parts", nargs=-1, metavar="PART...")
@click.option("--input", "directory", metavar="DIRECTORY", help="Merge all datasets in a directory, as PART does.")
@OUTPUT
@FORCE
@PLAIN
@DRY_RUN
def merge(parts: tuple[str, ...], directory: str | None, output_prefix: str, force: bool, plain: bool, dry_run: bool) -> None:
    """Merge datasets into one.

    PART is the prefix of a dataset, a glob pattern of prefixes, a directory, @FILE with prefixes or a manifest, or - for a
    manifest on standard input.
    """
    from lt_preprocess import derivation, merge

    sources = [*parts, *([directory] if directory else [])]
    if not sources:
        raise console.UsageError("nothing to merge", "name the parts: prefixes, a glob pattern, a directory, @FILE or -")
    plan = merge.plan(sources, output_prefix)
    if dry_run:
        console.print_json(plan.to_record())
        return
    made = None if force else derivation.finished(plan.result.prefix, plan.derivation)
    if made is None:
        made = merge.build(plan)
    else:
        console.note(f"{made.prefix}: up to date")
    _print_manifest([made], plain)
