"""Train on text: `lt-train corpus.jsonl.zst --tokenizer DIR` starts lt-preprocess --stream and trains on its output.

The datasets lie in the run's directory, so the same command continues both. lt-preprocess gets the cores that the ranks and their
readers do not use, at a lower priority. It ends with lt-train: lt-train stops it, and if lt-train is killed, its pipe breaks.
"""

import atexit
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lt_shared.console import Unavailable, UsageError
from lt_shared.files import storage
from lt_train.process import rank_environment, stream_intake

PROGRAM = "lt-preprocess"
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
ENDINGS = (".jsonl", ".json", ".ndjson", ".parquet", ".txt")
NICENESS = "10"


def is_text(word: str) -> bool:
    """Whether a word of DATA names a text file, by its ending. No dataset prefix has such an ending."""
    for ending in COMPRESSIONS:
        word = word.removesuffix(ending)
    return word.endswith(ENDINGS) and not word.startswith("@") and not os.path.lexists(f"{word}.idx")


def tokenize_text(words: tuple[str, ...], options: dict[str, Any], dry_run: bool) -> tuple[str, ...]:
    """Return `words` unchanged. If they name text, start to tokenize it, and return the word that opens its token stream.

    Raises UsageError for text if nothing can be tokenized, Unavailable without lt-preprocess.
    """
    text = [word for word in words if is_text(word)]
    if not text:
        if options["tokenizer"]:
            raise UsageError("--tokenizer is for text as DATA, and there is none", "data that is tokenized names its tokenizer")
        return words
    _check(text, words, options, dry_run)
    program = shutil.which(PROGRAM)
    if program is None:
        raise Unavailable(
            f"{text[0]}: is text, and {PROGRAM}, which tokenizes it, is not on the PATH", "pip install ./tools/preprocess"
        )
    directory = Path(options["save"]) / "data"
    directory.mkdir(parents=True, exist_ok=True)
    command = [program, *text, "--tokenizer", options["tokenizer"], "--append-eod", "--stream", "-o", str(directory / "text")]
    niceness = ["nice", "-n", NICENESS] if shutil.which("nice") else []
    process = subprocess.Popen([*niceness, *command, "--workers", str(_spare_cores(options))], stdout=subprocess.PIPE)
    atexit.register(process.terminate)
    assert process.stdout is not None
    return (stream_intake.open_output(PROGRAM, process.stdout.fileno()),)


def _check(text: Sequence[str], words: Sequence[str], options: dict[str, Any], dry_run: bool) -> None:
    if len(text) < len(words):
        raise UsageError(
            f"{text[0]} is text, other data is not", f"{PROGRAM} --stream makes a stream of it, which blends with others"
        )
    if not options["tokenizer"]:
        raise UsageError(f"{text[0]} is text, and no tokenizer is named", "--tokenizer DIRECTORY")
    if dry_run:
        raise UsageError(f"--dry-run writes nothing, and {text[0]} is not tokenized yet", f"tokenize it with {PROGRAM} first")
    if not options["save"] or storage.is_remote(options["save"]):
        raise UsageError(f"{text[0]} is text: nowhere to tokenize it to", "--save DIRECTORY")
    node = rank_environment.find_node()
    if rank_environment.find() or (node and node.nodes > 1):
        raise UsageError(
            f"{text[0]} is text, which lt-train tokenizes on a single machine, for its own ranks",
            f"{PROGRAM} --stream ... > LIST on one node, and lt-train @LIST --follow",
        )


def _spare_cores(options: dict[str, Any]) -> int:
    ranks = int(options["ranks"] or 1)
    return max(1, len(os.sched_getaffinity(0)) - ranks * (1 + int(options["num_workers"])))
