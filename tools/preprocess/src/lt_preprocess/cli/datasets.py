"""The commands for finished datasets, including datasets from Megatron-LM and NeMo."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lt_shared import console

MERGE_EXAMPLES = """
lt-preprocess merge 'parts/web-*_text_document' -o data/all_text_document
lt-preprocess merge --input parts/ --output-prefix data/all_text_document
lt-preprocess merge @parts.manifest -o data/listed_text_document --plain
"""


INFO_EXAMPLES = """
lt-preprocess info data/web_text_document
lt-preprocess info data/web_text_document --tokenizer gpt2/ --documents 10
lt-preprocess info @parts.manifest --json
"""

VERIFY_EXAMPLES = """
lt-preprocess verify data/web_text_document
lt-preprocess verify data/web_text_document --deep 1000
lt-preprocess verify @parts.manifest --json > findings.jsonl
"""

CAT_EXAMPLES = """
lt-preprocess cat data/web_text_document > web.jsonl
lt-preprocess cat data/web_text_document --documents 10:20
lt-preprocess cat data/web_text_document --documents 7 --tokenizer gpt2/
lt-preprocess cat data/web_text_document --documents 7 --where
"""

GREP_EXAMPLES = """
lt-preprocess grep 'lorem ipsum' data/web_text_document -i
lt-preprocess grep -F '<|im_start|>' data/web_text_document --max-count 10
"""

SPLIT_EXAMPLES = """
lt-preprocess split data/web_text_document --ratios 98,1,1 -o data/web
lt-preprocess split data/web_text_document --ratios 9,1 --names train,held-out -o data/web
"""

SHUFFLE_EXAMPLES = """
lt-preprocess shuffle data/web_text_document -o data/shuffled_text_document
lt-preprocess shuffle data/web_text_document --seed 7 -o data/again_text_document
"""

IMPORT_EXAMPLES = """
lt-preprocess import tokenized/*.ds --tokenizer gpt2/ -o data/tokens_text_document
lt-preprocess import part-*.npy --dtype uint32 --eod-token 100257 -o data/olmo_text_document
"""

PACK_EXAMPLES = """
lt-preprocess pack data/web_text_document --seq-length 4096 -o data/packed_text_document
"""

LARGEST_SEED = 2**64 - 1


@click.group(cls=console.Group)
def commands() -> None:
    """Find duplicates, and work on finished datasets."""


OUTPUT = click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX.bin and PREFIX.idx.")
FORCE = click.option("--force", is_flag=True, help="Do it again even if the output is up to date.")
PLAIN = click.option("--plain", is_flag=True, help="Print the bare prefix instead of the manifest.")
TOKENIZER = click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    show_default="the one that the sidecar names",
    help="Directory or file of the tokenizer, or its name.",
)
SEED = click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), default=0, metavar="NUMBER", help="The same one, the same result."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a dataset.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Check everything, print the plan as JSON, write nothing.")


def _print_manifest(datasets: list[Any], plain: bool) -> None:
    from lt_shared.contracts import manifest

    writer = manifest.Writer(plain)
    for dataset in datasets:
        writer.write(dataset)
    writer.end()


def _make(plan: Any, build: Callable[[Any], Any], force: bool, plain: bool, dry_run: bool) -> None:
    """Make the one dataset that a plan describes, unless it is up to date, and print its manifest."""
    from lt_preprocess.datasets import provenance, replacement

    dataset = None if force else provenance.finished(plan.result.prefix, plan.derivation)
    if dataset is None and not force:
        replacement.check_derived(plan.result, plan.derivation, plan.files)
    if dry_run:
        console.print_json(plan.to_record())
        return
    if dataset is None:
        dataset = build(plan)
    else:
        console.note(f"{dataset.prefix}: up to date")
    _print_manifest([dataset], plain)


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
    from lt_preprocess.datasets import merge

    sources = [*parts, *([directory] if directory else [])]
    if not sources:
        raise console.UsageError("nothing to merge", "name the parts: prefixes, a glob pattern, a directory, @FILE or -")
    plan = merge.plan(sources, output_prefix)
    _make(plan, merge.build, force, plain, dry_run)


@commands.command(examples=SHUFFLE_EXAMPLES)
@click.argument("source", metavar="PREFIX")
@OUTPUT
@SEED
@FORCE
@PLAIN
@DRY_RUN
def shuffle(source: str, output_prefix: str, seed: int, force: bool, plain: bool, dry_run: bool) -> None:
    """Put the documents of a dataset in random order.

    PREFIX is a dataset, or - or @FILE for its manifest.
    """
    from lt_preprocess.datasets import shuffle

    plan = shuffle.plan(source, output_prefix, seed)
    _make(plan, shuffle.build, force, plain, dry_run)


@commands.command(examples=PACK_EXAMPLES)
@click.argument("source", metavar="PREFIX")
@click.option("--seq-length", type=click.IntRange(1, 2**30), required=True, metavar="N", help="Tokens of a sample of lt-train.")
@OUTPUT
@FORCE
@PLAIN
@DRY_RUN
def pack(source: str, seq_length: int, output_prefix: str, force: bool, plain: bool, dry_run: bool) -> None:
    """Pack whole documents into samples, by best fit, so that few are cut.

    PREFIX is a dataset whose documents have ends (--append-eod), or - or @FILE for its manifest. lt-train trains on these samples
    without cutting them again.
    """
    from lt_preprocess.datasets import packing

    plan = packing.plan(source, output_prefix, seq_length)
    _make(plan, packing.build, force, plain, dry_run)


@commands.command("import", examples=IMPORT_EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@OUTPUT
@click.option("--tokenizer", metavar="TOKENIZER", help="Directory or file of the tokenizer that made the tokens, or its name.")
@click.option(
    "--eod-token",
    metavar="TOKEN",
    show_default="the tokenizer's",
    help="The token that ends documents in .npy files: a special token of --tokenizer, or a number.",
)
@click.option(
    "--dtype",
    type=click.Choice(["uint8", "uint16", "uint32", "uint64", "int32", "int64"]),
    show_default="the smallest for the tokenizer",
    help="The type of a token in files that do not state it: .npy of OLMo-core, MDS columns of bytes.",
)
@FORCE
@PLAIN
@DRY_RUN
def import_tokens(
    sources: tuple[str, ...],
    output_prefix: str,
    tokenizer: str | None,
    eod_token: str | None,
    dtype: str | None,
    force: bool,
    plain: bool,
    dry_run: bool,
) -> None:
    """Make a dataset of token ids that another tool wrote, with its documents.

    SOURCE is a .ds file of datatrove beside its .ds.index, a .npy file of OLMo-core, a shard of mosaicml-streaming or litdata, a
    directory of such files, or a glob pattern.
    """
    from lt_preprocess.datasets import token_import

    plan = token_import.plan(sources, output_prefix, tokenizer, eod_token, dtype)
    _make(plan, token_import.build, force, plain, dry_run)


@commands.command(examples=SPLIT_EXAMPLES)
@click.argument("source", metavar="PREFIX")
@click.option("-o", "--output-prefix", required=True, metavar="PREFIX", help="Write PREFIX_train.bin and .idx, and so on.")
@click.option("--ratios", default="98,1,1", metavar="NUMBERS", help="How large the parts are, relative to each other.")
@click.option("--names", metavar="WORDS", show_default="train,valid,test", help="Names of the parts.")
@SEED
@FORCE
@PLAIN
@DRY_RUN
def split(
    source: str, output_prefix: str, ratios: str, names: str | None, seed: int, force: bool, plain: bool, dry_run: bool
) -> None:
    """Split a dataset by documents: train, valid, test.

    PREFIX is a dataset, or - or @FILE for its manifest. Equal documents go to the same part.
    """
    from lt_preprocess.datasets import replacement, split

    plan = split.plan(source, output_prefix, ratios, names, seed)
    datasets = None if force else plan.finished()
    if datasets is None and not force:
        for result, derivation in zip(plan.results, plan.derivations, strict=True):
            replacement.check_derived(result, derivation, plan.files)
    if dry_run:
        console.print_json(plan.to_record())
        return
    if datasets is None:
        datasets = split.build(plan)
    else:
        console.note(f"{', '.join(one.prefix for one in datasets)}: up to date")
    _print_manifest(datasets, plain)


@commands.command(examples=INFO_EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="PREFIX...")
@TOKENIZER
@click.option("--documents", type=click.IntRange(0), default=3, metavar="COUNT", help="How many first documents to show.")
@JSON
def info(sources: tuple[str, ...], tokenizer: Path | None, documents: int, as_json: bool) -> None:
    """Show a dataset's counts, lengths, tokenizer and first documents.

    PREFIX is a dataset, or - or @FILE for a manifest.
    """
    from lt_preprocess.datasets import source_datasets, statistics

    for dataset in source_datasets.listed(sources):
        report = statistics.read(dataset, tokenizer, documents)
        if as_json:
            console.print_json(report.to_record())
        else:
            console.print_text("\n".join(report.lines()))


@commands.command(examples=VERIFY_EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="PREFIX...")
@click.option(
    "--deep", type=click.IntRange(0), default=0, metavar="COUNT", help="Tokenize so many documents of the source again."
)
@TOKENIZER
@JSON
def verify(sources: tuple[str, ...], deep: int, tokenizer: Path | None, as_json: bool) -> int:
    """Check a dataset's files, checksums and tokens; print every fault and exit with 1 if there is one.

    PREFIX is a dataset, or - or @FILE for a manifest.
    """
    from lt_preprocess.datasets import source_datasets, verification

    count = 0
    for dataset in source_datasets.listed(sources, lenient=True):
        result = verification.verify(dataset, tokenizer, deep)
        count += len(result.findings)
        if as_json:
            console.print_json(result.to_record())
        else:
            for finding in result.findings:
                console.print_text(str(finding))
            console.note(f"{result.prefix}: {result.summary()}")
    return console.ExitCode.FOUND if count else console.ExitCode.OK


@commands.command(examples=CAT_EXAMPLES)
@click.argument("source", metavar="PREFIX")
@click.option("--documents", metavar="RANGE", show_default="all", help="A number, or START:END without END, counted from 0.")
@click.option("--where", is_flag=True, help="Print the documents' source file, line and byte instead of their text.")
@TOKENIZER
def cat(source: str, documents: str | None, where: bool, tokenizer: Path | None) -> None:
    """Print a dataset's documents, or their source lines, as JSON lines.

    PREFIX is a dataset, or - or @FILE for its manifest.
    """
    from lt_preprocess.datasets import decoding, source_places

    records = source_places.records(source, documents) if where else decoding.records(source, tokenizer, documents)
    for record in records:
        sys.stdout.write(console.visible_json(json.dumps(record, ensure_ascii=False)) + "\n")


@commands.command(examples=GREP_EXAMPLES)
@click.argument("pattern", metavar="PATTERN")
@click.argument("source", metavar="PREFIX")
@click.option("-F", "--fixed-strings", is_flag=True, help="PATTERN is text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Take upper and lower case as equal.")
@click.option("--documents", metavar="RANGE", show_default="all", help="A number, or START:END without END, counted from 0.")
@click.option("--max-count", type=click.IntRange(min=1), metavar="COUNT", help="Stop after so many documents.")
@TOKENIZER
def grep(
    pattern: str,
    source: str,
    fixed_strings: bool,
    ignore_case: bool,
    documents: str | None,
    max_count: int | None,
    tokenizer: Path | None,
) -> console.ExitCode:
    """Print the documents whose text matches PATTERN, with their source lines, as JSON lines. Exit with 1 if no text matches.

    PREFIX is a dataset, or - or @FILE for its manifest. PATTERN is a Python regular expression.
    """
    from lt_preprocess.datasets import source_places

    count = 0
    expression = source_places.compiled(pattern, fixed_strings, ignore_case)
    for record in source_places.matching(source, expression, tokenizer, documents, max_count):
        sys.stdout.write(console.visible_json(json.dumps(record, ensure_ascii=False)) + "\n")
        count += 1
    return console.ExitCode.OK if count else console.ExitCode.FOUND
