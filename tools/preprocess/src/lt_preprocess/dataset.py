"""One dataset: from what the command line asks for to a published `.bin/.idx` pair and its manifest.

The sidecar beside the pair keeps the manifest line, a fingerprint of every input (size and modification time, or the object's
version on a remote store) and the options that change the result. A later run with the same three has nothing to do. The number
of workers is not among them: it does not change a byte.
"""

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess import documents, inputs, pipeline
from lt_preprocess import tokenizer as tokenizers
from lt_preprocess.chunks import Position
from lt_preprocess.slices import Slice
from lt_preprocess.tokenizer import Tokenizer
from lt_shared import indexed_dataset, manifest, storage, tokenizer_files
from lt_shared.console import BadConfig, BadData, NoInput, Progress, UsageError, note, warn

SIDECAR_VERSION = 1
REPORTED_LINES = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """What changes the result, besides the inputs and the tokenizer."""

    json_key: str = "text"
    append_eod: bool = False
    on_error: str = "error"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A command that has been checked: every input exists and the tokenizer is loaded. `inputs` are fingerprints."""

    prefix: str
    paths: list[str]
    inputs: list[dict[str, Any]] | None
    tokenizer: Tokenizer
    identity: manifest.Tokenizer
    options: Options

    @property
    def dtype(self) -> str:
        return indexed_dataset.dtype_for(self.tokenizer.vocab_size).name

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it."""
        return {
            "v": SIDECAR_VERSION,
            "kind": "plan",
            "prefix": self.prefix,
            "outputs": [f"{self.prefix}{extension}" for extension in (".bin", ".idx", ".json")],
            "inputs": self.inputs or [{"path": path} for path in self.paths],
            "tokenizer": dataclasses.asdict(self.identity),
            "vocab_size": self.tokenizer.vocab_size,
            "eod": self.tokenizer.eod,
            "dtype": self.dtype,
            "options": dataclasses.asdict(self.options),
            "up_to_date": finished(self) is not None,
        }


def plan(patterns: list[str], tokenizer: Path, output_prefix: str, options: Options) -> Plan:
    """Check everything that can be checked before work begins.

    Raises: NoInput for a missing input or tokenizer, BadData for a tokenizer that cannot be read, BadConfig when `append_eod`
    asks for a token that the tokenizer does not have.
    """
    paths = inputs.resolve(patterns)
    if paths.count(inputs.STDIN) > 1:
        raise UsageError("- (standard input) is given twice; it can be read once")
    if len(set(paths)) < len(paths):
        warn("some inputs are given more than once, and are read as often")
    fingerprints = None if inputs.STDIN in paths else [storage.fingerprint(path) for path in paths]
    files = tokenizer_files.find(tokenizer)
    loaded = tokenizers.load(files)
    if options.append_eod and loaded.eod is None:
        raise BadConfig(
            f"{tokenizer}: this tokenizer has no end-of-document token for --append-eod",
            "name its eos_token in a tokenizer_config.json beside it, or leave --append-eod out",
        )
    prefix = manifest.absolute(f"{output_prefix}_{options.json_key}_document")
    return Plan(prefix, paths, fingerprints, loaded, tokenizers.identity(files, tokenizer), options)


def finished(wanted: Plan) -> manifest.Dataset | None:
    """The dataset that an earlier run of the same command has left whole, or None."""
    sidecar = manifest.sidecar_path(wanted.prefix)
    if wanted.inputs is None or not storage.exists(sidecar):
        return None
    try:
        record = json.loads(storage.read_bytes(sidecar))
        found = manifest.Dataset.from_record(record["dataset"])
        same = (
            record["v"] == SIDECAR_VERSION
            and record["inputs"] == wanted.inputs
            and record["options"] == dataclasses.asdict(wanted.options)
            and found.tokenizer is not None
            and found.tokenizer.sha256 == wanted.identity.sha256
        )
    except (ValueError, KeyError, TypeError):
        return None
    if not same or not _is_whole(wanted.prefix, found):
        return None
    return dataclasses.replace(found, prefix=wanted.prefix, tokenizer=wanted.identity)


def _is_whole(prefix: str, dataset: manifest.Dataset) -> bool:
    """Whether both files are there; the index is published last, so only the size of the tokens is worth comparing."""
    index, tokens = indexed_dataset.idx_path(prefix), indexed_dataset.bin_path(prefix)
    if not (storage.exists(index) and storage.exists(tokens)) or dataset.dtype is None or dataset.tokens is None:
        return False
    return storage.size_bytes(tokens) == dataset.tokens * np.dtype(dataset.dtype).itemsize


@dataclasses.dataclass
class _Totals:
    text_bytes: int = 0
    bad_lines: int = 0
    first_bad_lines: list[documents.BadLine] = dataclasses.field(default_factory=list)

    def report(self) -> None:
        """Tell the user which lines were left out."""
        if self.bad_lines:
            for line in self.first_bad_lines:
                note(f"skipped: {line}")
            warn(f"{self.bad_lines:,} lines skipped; {len(self.first_bad_lines)} of them are named above")

    def add(self, encoded: pipeline.Encoded) -> None:
        self.text_bytes += encoded.text_bytes
        self.bad_lines += len(encoded.bad_lines)
        self.first_bad_lines.extend(encoded.bad_lines[: REPORTED_LINES - len(self.first_bad_lines)])


def build(wanted: Plan, workers: int) -> manifest.Dataset:
    """Tokenize everything and publish the dataset.

    Raises: BadData for a line without a document unless the options say skip, NoInput when no document is left, CannotCreate and
    IoFailure when the output cannot be written. Nothing is visible then.
    """
    totals = _Totals()
    eod = wanted.tokenizer.eod if wanted.options.append_eod else None
    dtype = indexed_dataset.dtype_for(wanted.tokenizer.vocab_size)
    with indexed_dataset.Writer(wanted.prefix, dtype) as writer:
        encoders = [wanted.tokenizer.new_encoder() for _ in range(workers)]
        start_seconds = time.monotonic()
        with Progress("tokenizing", inputs.total_bytes(wanted.paths), "B") as progress:
            blocks = inputs.chunks(wanted.paths, Slice(), Position(), progress.advance)
            encoding = pipeline.encode(blocks, encoders, wanted.options.json_key, eod, dtype)
            with contextlib.closing(encoding):
                for encoded in encoding:
                    if encoded.bad_lines and wanted.options.on_error == "error":
                        raise BadData(str(encoded.bad_lines[0]), "--on-error skip leaves such lines out and reports them")
                    totals.add(encoded)
                    writer.append(encoded.tokens, encoded.sequence_lengths, encoded.sequences_per_document)
        totals.report()
        if writer.tokens == 0:
            found = f"{writer.documents:,} documents, all without text" if writer.documents else "no documents"
            raise NoInput(f"{_names(wanted.paths)}: {found}", "did the command that made the input fail?")
        dataset = manifest.Dataset(
            wanted.prefix,
            writer.documents,
            writer.tokens,
            wanted.dtype,
            wanted.tokenizer.vocab_size,
            wanted.tokenizer.eod,
            wanted.identity,
        )
        writer.publish((manifest.sidecar_path(wanted.prefix), _sidecar(wanted, dataset, totals)))
    seconds = time.monotonic() - start_seconds
    note(
        f"{dataset.documents:,} documents, {dataset.tokens:,} tokens, {totals.text_bytes / 1e6:,.1f} MB of text, "
        f"{totals.text_bytes / 1e6 / seconds:,.1f} MB/s"
    )
    return dataset


def _sidecar(wanted: Plan, dataset: manifest.Dataset, totals: _Totals) -> bytes:
    record = {
        "v": SIDECAR_VERSION,
        "dataset": manifest.record_of(dataset),
        "inputs": wanted.inputs,
        "options": dataclasses.asdict(wanted.options),
        "skipped_lines": totals.bad_lines,
    }
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def _names(paths: list[str]) -> str:
    names = [inputs.display_name(path) for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
