"""How fast lt-preprocess is, beside gigatoken, tiktoken, sentencepiece, Hugging Face tokenizers and Megatron-LM's scripts.

    nox -s bench -- preprocess                        # builds the corpus on the first run; then about 15 minutes
    nox -s bench -- preprocess --quick                # a rough look, under 3 minutes
    nox -s bench -- preprocess --check                # ids of the whole mixed corpus against the libraries, nothing timed
    nox -s bench -- preprocess --megatron ~/Megatron-LM --markdown docs/guides/tokenizing-speed.md

Every figure is of a process of its own. Programs that are compared run one after the other on the same documents, round by
round, so that whatever else the machine does falls on all of them; figures are medians of the rounds, ratios medians of the
rounds' ratios. MB are 10^6 bytes of text in UTF-8, MiB of memory 2^20 bytes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import corpus
import encoding
import measurement
import models
import programs
import report
from measurement import Bench

SECTIONS = {
    "encoders": encoding.encoders,
    "cores": encoding.cores,
    "lines": encoding.lines,
    "programs": programs.programs,
    "memory": programs.memory,
    "compilation": programs.compilation,
    "ids": programs.ids,
}


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench -- preprocess", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="take english.jsonl and mixed.jsonl from DIR")
    parser.add_argument("--megatron", type=Path, metavar="DIR", help="a Megatron-LM checkout, whose scripts run as well")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help=f"also write the tables into FILE, from {report.BEGIN}")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", default=measurement.CACHE, help="for what is made (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="less text, one round, not every section")
    parser.add_argument("--check", action="store_true", help="only compare ids; exit 1 when some differ")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=" ".join(SECTIONS))
    return parser.parse_args(arguments)


def prepared(chosen: argparse.Namespace, work: Path) -> Bench:
    """Build what is missing: corpus, tokenizers, documents."""
    directory = chosen.corpus or chosen.work / "corpus"
    if chosen.corpus is None and not (directory / corpus.MIXED).is_file():
        measurement.say("building the corpus, which takes some minutes")
        corpus.build(directory, chosen.work / "packages")
    texts = {name: work / f"{name}.texts" for name in (corpus.MIXED, corpus.ENGLISH)}
    for name, store in texts.items():
        corpus.write_texts(directory / name, store)
    scale = measurement.QUICK if chosen.quick else measurement.FULL
    tokenizers = chosen.work / "tokenizers"
    return Bench(scale, directory, work, tokenizers, models.models(tokenizers), texts, chosen.megatron)


def main() -> int:
    chosen = options()
    if chosen.markdown:
        report.check_markers(chosen.markdown)
    chosen.work.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=chosen.work) as work:
        bench = prepared(chosen, Path(work))
        names = ("ids",) if chosen.check else chosen.only or bench.scale.sections
        tables = []
        for name in names:
            tables.append(SECTIONS[name](bench))
            print(tables[-1].plain(), flush=True)
    if chosen.markdown:
        parts = [f"Measured on {report.machine()}", *(table.markdown() for table in tables)]
        report.write_markdown(chosen.markdown, "\n\n".join(parts))
    measurement.say(f"{(time.monotonic() - start) / 60:.1f} minutes")
    return 1 if any(table.has_failed for table in tables) else 0


if __name__ == "__main__":
    sys.exit(main())
