"""The command that tokenizes."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from lt_preprocess.cli import curation_options, dedup, document_options, megatron_options
from lt_shared import console

if TYPE_CHECKING:
    from lt_preprocess.pipeline.plan import Plan
    from lt_shared.contracts.manifest import Dataset

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web
lt-preprocess 'crawl/*.jsonl.zst' books.jsonl.gz --tokenizer llama3/tokenizer.model --append-eod -o data/web
xz -dc corpus.jsonl.xz | lt-preprocess - --tokenizer gpt2/ --append-eod -o data/web > data/web.manifest
lt-preprocess dump.jsonl --json-keys content --on-error quarantine --tokenizer tokenizer.json -o data/dump
"""


class _Command(console.DefaultCommand):
    """Takes Megatron's lists, which click cannot."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, megatron_options.with_lists_repeated(args))


@click.command(cls=_Command, examples=EXAMPLES, named=lambda: dedup.commands)
@click.argument("files", cls=console.Operands, nargs=-1, metavar="FILE...")
@click.option("--tokenizer", metavar="TOKENIZER", help="Directory or file of the tokenizer, or its name.")
@click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX_text_document.bin and .idx.")
@click.option(
    "--json-keys",
    multiple=True,
    default=("text",),
    metavar="KEY",
    help="A key that holds text; it becomes a part of the file names. Repeat the option for one dataset per key.",
)
@click.option(
    "--sample-by",
    type=click.Choice(["document", "line"]),
    default="document",
    help="What a plain text (.txt) holds: one document, or a document a line.",
)
@click.option("--append-eod", is_flag=True, help="End every document with the tokenizer's end-of-document token.")
@click.option(
    "--eod-token", metavar="TOKEN", help="The special token that --append-eod appends, if not the one that it would choose."
)
@click.option(
    "--special-tokens",
    type=click.Choice(["text", "parse", "reject"]),
    default="text",
    help="A special token written out in a document: text like any other, the token, or a bad line.",
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip", "quarantine"]),
    default="fail",
    help="A line without a document: stop, leave the line out and report it, or also keep it in PREFIX_quarantine.jsonl.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Tokenize part I (from 0) of N of the input into PREFIX-I-of-N_text_document; auto, auto/N: from the launcher.",
)
@click.option(
    "--max-shard-size",
    type=document_options.Size(),
    metavar="SIZE",
    help="Begin another dataset, PREFIX-part00001_text_document, before a .bin has more than SIZE (500M, 2GB) bytes.",
)
@click.option(
    "--stream",
    is_flag=True,
    help="Print a part's manifest line as soon as it is on disk, so lt-train can begin: parts of 4 to 256 million tokens.",
)
@click.option("--workers", type=click.IntRange(min=1), show_default="all cores", help="Threads that tokenize.")
@click.option("--force", is_flag=True, help="Tokenize all again, whatever is there already.")
@click.option("--plain", is_flag=True, help="Print the bare prefixes instead of the manifest.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan as JSON, write nothing.")
@document_options.document_options
@curation_options.curation_options
@megatron_options.megatron_options
@console.version_option("lt-preprocess", "numpy", "numba", "pyarrow", "sentencepiece", "tokenizers", "s3fs")
def command(
    files: tuple[str, ...],
    tokenizer: str | None,
    output_prefix: str,
    json_keys: tuple[str, ...],
    sample_by: Any,
    append_eod: bool,
    eod_token: str | None,
    special_tokens: Any,
    on_error: Any,
    shard: str | None,
    max_shard_size: int | None,
    stream: bool,
    workers: int | None,
    force: bool,
    plain: bool,
    dry_run: bool,
    input: tuple[str, ...],
    keep_length: tuple[str, ...],
    keep_language: str | None,
    decontaminate: tuple[str, ...],
    duplicates: str | None,
    **further: Any,
) -> None:
    """Tokenize documents into indexed datasets that Megatron-LM, NeMo and lt-train read.

    FILE is a file of JSON lines, Parquet, plain text (.txt), CSV, WebDataset's tar or WARC texts, compressed or not (gzip, zstd,
    xz, bzip2), a directory of such files, a glob pattern, a URL such as s3://bucket/key, @LIST for a file of names, or - for
    standard input. The manifest of the datasets goes to standard output.
    """
    if files and input:
        if click.get_current_context().get_parameter_source("input") != click.core.ParameterSource.ENVIRONMENT:
            raise click.UsageError("FILE... and --input both name the input.")
        input = ()
    if not files and not input:
        raise click.UsageError("Missing argument 'FILE...'.")
    document, megatron = document_options.separated(further)
    megatron_options.check_refused(megatron)
    from lt_preprocess.datasets import provenance
    from lt_preprocess.pipeline import journal, plan, run, sidecar

    workers = workers or len(os.sched_getaffinity(0))
    rules = curation_options.rules(keep_length, keep_language, decontaminate, duplicates)
    tokenizer_files, tokenizer_path = megatron_options.find_tokenizer(tokenizer, megatron)
    bos_token = document_options.bos_token(document)
    options = plan.Options(
        append_eod=append_eod,
        on_error=on_error,
        special_tokens=special_tokens,
        shard=_slice(shard),
        max_shard_bytes=max_shard_size,
        stream=stream,
        sample_by=sample_by,
        rules=rules,
        **document_options.plan_options(document, json_keys),
    )
    run_plan = plan.plan([*files, *input], tokenizer_files, tokenizer_path, output_prefix, options, eod_token, bos_token)
    megatron_options.check_files(megatron, tokenizer_files, run_plan.tokenizer.vocab_size)
    datasets = sidecar.up_to_date(run_plan)
    if datasets is None and not force:
        sidecar.check_tokenizer(run_plan)
        sidecar.check_corpus(run_plan)
    if dry_run:
        console.print_json(run_plan.to_record() | {"up_to_date": datasets is not None, "workers": workers})
        return
    megatron_options.note_those_without_effect(megatron)
    _say_what_is_added(run_plan)
    if not append_eod and run_plan.tokenizer.eod is not None:
        console.warn("without --append-eod nothing tells a model where a document ends, and it trains across their borders")
    writer = _Printer(plain, run_plan)
    if datasets is None or force:
        datasets = run.build(run_plan, workers, force, writer.write if stream else None)
        if not stream:
            writer.write(datasets)
    else:
        for dataset in datasets:
            provenance.check_not_planted(dataset.prefix)
        console.note(f"{run_plan.prefix}: up to date")
        journal.delete_finished(run_plan)
        writer.write(datasets)
    writer.end()


class _Printer:
    """Prints the manifest. In a stream, a line says which part of the stream the dataset is.

    Readers without support for streams take the parts for a blend; the weights are the parts' sizes.
    """

    def __init__(self, plain: bool, run_plan: "Plan"):
        from lt_shared.contracts import manifest

        self._lines = manifest.Writer(plain)
        self._stream = run_plan.stream

    def write(self, datasets: "Sequence[Dataset]") -> None:
        for dataset in datasets:
            if self._stream is not None:
                weight = float(dataset.tokens or 1)
                dataset = dataclasses.replace(dataset, stream=self._stream, part=self._lines.count, weight=weight)
            self._lines.write(dataset)

    def end(self) -> None:
        self._lines.end()


def _say_what_is_added(run_plan: "Plan") -> None:
    """Name the tokens that begin and end documents, and the tokens of a transformation."""
    from lt_preprocess.tokenizers.end_of_document import TURN_ENDS

    options = run_plan.options
    if options.bos is not None:
        console.note(f"every document begins with {run_plan.name_of_token(options.bos)} ({options.bos})")
    if options.fim is not None:
        tokens = ", ".join(f"{name} ({number})" for name, number in (options.fim.tokens or {}).items())
        console.note(f"fill in the middle with {tokens}")
    if run_plan.eod is None:
        return
    if run_plan.eod_name in TURN_ENDS:
        console.warn(
            f"every document ends with {run_plan.eod_name} ({run_plan.eod}), which ends a turn of a chat: see --eod-token"
        )
    else:
        console.note(f"every document ends with {run_plan.eod_name} ({run_plan.eod})")


def _slice(shard: str | None) -> Any:
    if shard is None:
        return None
    from lt_shared.console import shard_option

    return shard_option.parse_shard(shard)
