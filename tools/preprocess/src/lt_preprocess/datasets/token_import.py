"""Make a dataset of token ids that another tool wrote, with its documents, without tokenizing.

Tokens keep their values; only their width changes to one of Megatron's. A document without tokens has no sequence. The origin of
each document, its file and its number there, is recorded as for tokenized ones.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.provenance import Derivation
from lt_preprocess.readers import token_files
from lt_preprocess.readers.token_files import TokenBlock, TokenLayout, Tokens
from lt_preprocess.tokenizers import loading
from lt_shared.console import BadConfig, BadData, NoInput, Progress, UsageError, counted, note
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins.origins import TokenizedLines
from lt_shared.files import storage
from lt_shared.tokenizers import tokenizer_files

_LONGEST_SEQUENCE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """An import that has been checked. `result` has no counts and, without a tokenizer, no dtype yet."""

    paths: list[str]
    layout: TokenLayout
    result: Dataset
    files: list[dict[str, Any]]
    derivation: Derivation

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it."""
        return {
            "v": manifest.SIDECAR_VERSION,
            "kind": "plan",
            "command": self.derivation.command,
            "inputs": self.files,
            "result": manifest.record_of(self.result),
            **self.derivation.options,
            "up_to_date": provenance.finished(self.result.prefix, self.derivation) is not None,
        }


def plan(sources: Sequence[str], output_prefix: str, tokenizer: str | None, eod_token: str | None, dtype: str | None) -> Plan:
    """`eod_token` is a number, or a special token of `tokenizer`. `dtype` is for files that do not say it.

    Raises: NoInput for a file that is missing, BadConfig for an end-of-document token that the tokenizer does not have.
    """
    paths = token_files.list_files(sources)
    files = [storage.fingerprint(path) for path in paths]
    result = Dataset(manifest.absolute(output_prefix))
    if tokenizer is not None:
        chosen = tokenizer_files.find(tokenizer)
        loaded = loading.load(chosen)
        eod = loaded.eod if eod_token is None else _eod(eod_token, loaded.special_tokens)
        identity = loading.identity(chosen, Path(tokenizer))
        name = indexed_dataset.dtype_for(loaded.vocab_size).name
        result = dataclasses.replace(result, dtype=name, vocab_size=loaded.vocab_size, eod=eod, tokenizer=identity)
    elif eod_token is not None:
        result = dataclasses.replace(result, eod=_eod(eod_token, {}))
    layout = TokenLayout(dtype or _smallest_dtype(result.vocab_size), result.eod, is_guessed=dtype is None)
    options = {"dtype": dtype, "eod": result.eod, "tokenizer": result.tokenizer and result.tokenizer.sha256}
    derivation = Derivation("import", options, [{"prefix": file["path"], "bin": file} for file in files])
    return Plan(paths, layout, result, files, derivation)


def _eod(token: str, special_tokens: Mapping[str, int]) -> int:
    if token in special_tokens:
        return special_tokens[token]
    if token.isascii() and token.isdigit():
        return int(token)
    if not special_tokens:
        raise UsageError(f"--eod-token {token}: only --tokenizer knows its number", "name the tokenizer, or the number")
    raise BadConfig(
        f"--eod-token {token}: not a special token of this tokenizer", f"one of {', '.join(list(special_tokens)[:5])}"
    )


def _smallest_dtype(vocab_size: int | None) -> str | None:
    """The type that OLMo-core and dolma choose for tokens of a vocabulary."""
    if vocab_size is None:
        return None
    return next(name for name in ("uint8", "uint16", "uint32") if vocab_size - 1 <= np.iinfo(name).max)


def build(plan: Plan) -> Dataset:
    """Copy and publish the documents.

    Raises: BadData for a damaged file and a token beyond the vocabulary, NoInput if there are no tokens, CannotCreate and
    IoFailure when the output cannot be written; nothing is visible then.
    """
    dtype = np.dtype(plan.result.dtype or _width_of(plan))
    limit = plan.result.vocab_size or np.iinfo(dtype).max + 1
    first_documents: list[int] = []
    with indexed_dataset.Writer(plan.result.prefix, dtype) as writer:
        with Progress("importing", sum(storage.size_bytes(path) for path in plan.paths), "B") as progress:
            for path in plan.paths:
                first_documents.append(writer.documents)
                _copy(path, plan.layout, writer, limit)
                progress.advance(storage.size_bytes(path))
        if not writer.tokens:
            raise NoInput(f"{plan.paths[0]}: no tokens", "did the command that made the input fail?")
        result = dataclasses.replace(plan.result, documents=writer.documents, tokens=writer.tokens, dtype=dtype.name)
        options = {"eod": plan.result.eod}
        origins = _origins(plan, first_documents, writer.documents)
        sidecar = provenance.sidecar(result, writer.complete(), plan.derivation, options, plan.files, origins)
        writer.publish(sidecar)
    note(f"{counted(writer.documents, 'document')}, {counted(writer.tokens, 'token')}")
    return result


def _width_of(plan: Plan) -> str:
    """Choose the width of tokens whose vocabulary is not known, by the first block of every file."""
    for path in plan.paths:
        for block in token_files.blocks(path, plan.layout):
            if block.tokens.dtype.itemsize > 2:
                return "int32"
            break
    return "uint16"


def _copy(path: str, layout: TokenLayout, writer: indexed_dataset.Writer, limit: int) -> None:
    """Append the documents of a file. Tokens after the last end are a document, too."""
    nothing = np.zeros(0, np.int32)
    unfinished = tokens_before = 0
    for block in token_files.blocks(path, layout):
        _check_tokens(path, block.tokens, tokens_before, limit)
        writer.append(block.tokens, nothing, nothing)
        unfinished = _append_documents(path, block, unfinished, writer)
        tokens_before += len(block.tokens)
    if unfinished:
        _append_lengths(path, np.array([unfinished]), writer)


def _append_documents(path: str, block: TokenBlock, unfinished: int, writer: indexed_dataset.Writer) -> int:
    """Append the index of the documents that end in a block; returns how many tokens the next document already has."""
    if not len(block.ends):
        return unfinished + len(block.tokens)
    lengths = np.diff(block.ends, prepend=0)
    lengths[0] += unfinished
    _append_lengths(path, lengths, writer)
    return len(block.tokens) - int(block.ends[-1])


def _append_lengths(path: str, lengths: token_files.Ends, writer: indexed_dataset.Writer) -> None:
    if int(lengths.max()) > _LONGEST_SEQUENCE:
        raise BadData(
            f"{path}: a document of {int(lengths.max()):,} tokens, too many for an index", "is the end of documents right?"
        )
    writer.append_index(lengths[lengths > 0], (lengths > 0).astype(np.int32))


def _check_tokens(path: str, tokens: Tokens, tokens_before: int, limit: int) -> None:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < limit:
        index = int(np.flatnonzero((tokens < 0) | (tokens >= limit))[0])
        raise BadData(
            f"{path}: token {tokens_before + index:,} is {int(tokens[index])}, expected 0 to {limit - 1}",
            "is it the right --dtype and --tokenizer?",
        )


def _origins(plan: Plan, first_documents: list[int], documents: int) -> TokenizedLines:
    """Document i of a file is its row i, from 1."""
    ends = [*first_documents[1:], documents]
    files = [number for number, (first, end) in enumerate(zip(first_documents, ends, strict=True)) if first < end]
    nothing = np.zeros(0, np.int64)
    return TokenizedLines(
        documents,
        plan.files,
        documents_of_runs=np.array([first_documents[number] for number in files], np.int64),
        files_of_runs=np.array(files, np.int64),
        lines=np.ones(len(files), np.int64),
        files_of_marks=nothing,
        marked_lines=nothing,
        offsets=nothing,
        kinds=dict.fromkeys(files, "row"),
    )
