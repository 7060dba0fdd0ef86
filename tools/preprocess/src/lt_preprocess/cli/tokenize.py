"""The command that tokenizes."""

import os
from pathlib import Path

import click

from lt_preprocess import __version__
from lt_preprocess.cli import datasets
from lt_shared import console

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web
lt-preprocess 'crawl/*.jsonl.zst' books.jsonl.gz --tokenizer llama3/tokenizer.model --append-eod -o data/web
xz -dc corpus.jsonl.xz | lt-preprocess - --tokenizer gpt2/ --append-eod -o data/web > data/web.manifest
lt-preprocess dump.jsonl --json-key content --on-error skip --tokenizer tokenizer.json -o data/dump
"""


class _Command(console.Command):
    """Its help is the help of the whole tool, and lists the named commands."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        datasets.commands.format_commands(click.Context(datasets.commands, info_name=ctx.info_name), formatter)


@click.command(cls=_Command, examples=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--tokenizer", required=True, type=click.Path(path_type=Path), metavar="PATH", help="Directory or file of the tokenizer."
)
@click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX_text_document.bin and .idx.")
@click.option(
    "--json-key", default="text", metavar="KEY", help="The key that holds the text; it becomes a part of the file name."
)
@click.option("--append-eod", is_flag=True, help="End every document with the tokenizer's end-of-document token.")
@click.option(
    "--on-error",
    type=click.Choice(["error", "skip"]),
    default="error",
    help="A line without a document: stop and write nothing, or leave the line out and report it.",
)
@click.option("--workers", type=click.IntRange(min=1), show_default="all cores", help="Threads that tokenize.")
@click.option("--force", is_flag=True, help="Tokenize again even if the dataset is up to date.")
@click.option("--plain", is_flag=True, help="Print the bare prefix instead of the manifest.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan as JSON, write nothing.")
@click.version_option(__version__, prog_name="lt-preprocess")
def command(
    files: tuple[str, ...],
    tokenizer: Path,
    output_prefix: str,
    json_key: str,
    append_eod: bool,
    on_error: str,
    workers: int | None,
    force: bool,
    plain: bool,
    dry_run: bool,
) -> None:
    """Tokenize JSON lines into an indexed dataset that Megatron-LM, NeMo and lt-train read.

    FILE is a file of JSON lines, plain or compressed (gzip, zstd, xz), a glob pattern, a URL such as s3://bucket/key, or - for
    standard input. A manifest of what was made goes to standard output.
    """
    from lt_preprocess import dataset
    from lt_shared import manifest

    workers = workers or len(os.sched_getaffinity(0))
    plan = dataset.plan(list(files), tokenizer, output_prefix, dataset.Options(json_key, append_eod, on_error))
    if dry_run:
        console.print_json(plan.to_record() | {"workers": workers})
        return
    made = None if force else dataset.finished(plan)
    if made is None:
        made = dataset.build(plan, workers)
    else:
        console.note(f"{plan.prefix}: up to date")
    writer = manifest.Writer(plain)
    writer.write(made)
    writer.end()
