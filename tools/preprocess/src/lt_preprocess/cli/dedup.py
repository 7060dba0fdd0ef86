"""The command that finds duplicates among documents, before they are tokenized."""

import os
from typing import Any

import click

from lt_preprocess.cli.datasets import FORCE
from lt_preprocess.cli.datasets import commands as commands
from lt_shared import console

DEDUP_EXAMPLES = """
lt-preprocess dedup 'crawl/*.jsonl.zst' -o data/crawl
lt-preprocess dedup 'crawl/*.jsonl.zst' --method minhash --shard 0/2 -o data/crawl
lt-preprocess dedup 'data/crawl-*-of-00002.signatures' -o data/crawl
"""


@commands.command(examples=DEDUP_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX.signatures and PREFIX.duplicates.")
@click.option(
    "--method",
    type=click.Choice(["exact", "minhash"]),
    default="exact",
    show_default=True,
    help="Find equal texts, or also texts that share most runs of 5 words.",
)
@click.option("--json-keys", multiple=True, default=("text",), metavar="KEY", help="A key that holds text, as for tokenizing.")
@click.option(
    "--sample-by",
    type=click.Choice(["document", "line"]),
    default="document",
    help="Plain text holds one document, or a document a line, as for tokenizing.",
)
@click.option("--template", metavar="TEXT", help="Make a text of several fields, as for tokenizing.")
@click.option(
    "--shard", metavar="I/N", help="Write the signatures of part I (from 0) of N; auto, auto/N: as Slurm numbers tasks."
)
@click.option("--workers", type=click.IntRange(min=1), show_default="all cores", help="Threads that hash.")
@FORCE
@click.option("--plain", is_flag=True, help="Print the bare path instead of the manifest.")
def dedup(
    files: tuple[str, ...],
    output_prefix: str,
    method: Any,
    json_keys: tuple[str, ...],
    sample_by: Any,
    template: str | None,
    shard: str | None,
    workers: int | None,
    force: bool,
    plain: bool,
) -> None:
    """Find duplicates among documents; tokenizing with --duplicates leaves them out.

    FILE is an input as for tokenizing, or a file of signatures from another run of this command. With --shard only signatures are
    written; one more run that names all their files compares them.
    """
    from lt_preprocess.curation import deduplication
    from lt_preprocess.curation.signature_files import Compared
    from lt_shared.console import shard_option

    part = None if shard is None else shard_option.parse_shard(shard)
    workers = workers or len(os.sched_getaffinity(0))
    if template is not None and json_keys != ("text",):
        raise console.UsageError("--template and --json-keys both say where the text is", "name all fields in --template")
    compared = Compared(json_keys, sample_by, template)
    path, record = deduplication.run(files, output_prefix, method, compared, part, workers, force)
    if plain:
        click.echo(path)
    else:
        console.print_json(record)
        console.print_json({"v": 1, "kind": "end", "count": 1})
