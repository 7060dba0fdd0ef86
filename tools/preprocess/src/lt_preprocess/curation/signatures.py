"""The first pass of deduplication: from the inputs to a file of signatures. A killed run resumes.

Workers parse and hash chunks; this thread appends a record for each document to a hidden file, in the order of the input. Every
few seconds the file is synced and the journal records how far it is valid. At the end the records become columns.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, NamedTuple

import numpy as np

from lt_preprocess.compiler import jit
from lt_preprocess.curation import minhash, signature_files, words
from lt_preprocess.curation.documents import document_texts, with_line_starts
from lt_preprocess.curation.signature_files import Column, Compared, Method, SignatureFile
from lt_preprocess.documents import template_filter
from lt_preprocess.readers import inputs, json_batch, text_template
from lt_preprocess.readers.chunks import BEGINNING, Chunk, Position
from lt_preprocess.readers.slices import Slice
from lt_preprocess.readers.text_template import Template
from lt_preprocess.texts import Texts
from lt_shared.console import NoInput, Progress, UsageError, note, warn
from lt_shared.contracts import manifest
from lt_shared.files import checksums, resumable_files, storage

JOURNAL_INTERVAL_SECONDS = 5.0
CHUNKS_IN_FLIGHT_PER_WORKER = 2
_HASH_BYTES = 16
EVERY_TEXT = Compared()


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked pass over `paths`, whose fingerprints are `sources`, into the file `path`."""

    path: str
    paths: list[str]
    sources: list[dict[str, Any]]
    method: Method
    compared: Compared
    shard: Slice | None

    @property
    def record(self) -> dict[str, Any]:
        """Return all that decides which documents are compared, and how."""
        return {
            "method": self.method,
            **self.compared.to_record(),
            "shard": None if self.shard is None else dataclasses.asdict(self.shard),
            "sources": self.sources,
        }

    @property
    def template(self) -> Template | None:
        return None if self.compared.template is None else text_template.parse(self.compared.template)

    @property
    def fingerprint(self) -> str:
        record = {"v": signature_files.VERSION} | self.record
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def plan(
    patterns: Sequence[str],
    output_prefix: str,
    method: Method,
    compared: Compared = EVERY_TEXT,
    shard: Slice | None = None,
) -> Plan:
    """Raises: NoInput for a missing input, UsageError for standard input and for a remote output."""
    prefix = manifest.absolute(output_prefix)
    if storage.is_remote(prefix):
        raise UsageError(f"-o {prefix}: signatures are written to local files", "copy the list of duplicates afterwards")
    paths = inputs.expand_patterns(patterns)
    for path in paths:
        if path == inputs.STDIN or (os.path.exists(path) and not os.path.isfile(path)):
            raise UsageError(
                f"{inputs.display_name(path)}: cannot be read again when it is tokenized", "write it to a file first"
            )
    with ThreadPoolExecutor(min(32, len(paths))) as pool:
        sources = list(pool.map(storage.fingerprint, paths))
    suffix = "" if shard is None else f"-{shard.index:05d}-of-{shard.count:05d}"
    return Plan(f"{prefix}{suffix}.signatures", paths, sources, method, compared, shard)


def finished(plan: Plan) -> SignatureFile | None:
    """Return the complete file of an earlier run of the plan."""
    if not signature_files.is_signatures(plan.path):
        return None
    stored = SignatureFile.read(plan.path)
    return stored if stored.record.get("plan") == plan.fingerprint else None


class _Records(NamedTuple):
    """One record, uint64 [columns], for each document of a chunk."""

    content: bytes
    documents: int
    bad_lines: int
    end: Position


@dataclasses.dataclass(frozen=True)
class _State:
    """The documents before `position` have records on disk."""

    position: Position = BEGINNING
    documents: int = 0
    bad_lines: int = 0
    crc32: int = 0

    def after(self, records: _Records) -> "_State":
        return _State(
            records.end,
            self.documents + records.documents,
            self.bad_lines + records.bad_lines,
            checksums.crc32(records.content, self.crc32),
        )


def build(plan: Plan, workers: int) -> SignatureFile:
    """Hash all documents. Raises as `inputs.chunks`, and NoInput without documents in an undivided input."""
    record_bytes = signature_files.columns(plan.method) * signature_files.COLUMN_BYTES
    spool_name = f"{plan.path}.records"
    journal_path = os.path.join(os.path.dirname(plan.path), f".{os.path.basename(plan.path)}.journal")
    with resumable_files.locked(journal_path, plan.path) as journal:
        state = _resumed(journal, plan, spool_name, record_bytes)
        with resumable_files.spool(spool_name, state.documents * record_bytes) as spool:
            state = _append_records(plan, workers, state, spool, journal)
            if state.documents == 0 and plan.shard is None:
                raise NoInput(f"{inputs.display_name(plan.paths[0])}: no documents", "did the command that made the input fail?")
            spool.flush()
            _publish(plan, spool, state.documents)
        os.unlink(journal_path)
    if state.bad_lines:
        warn(f"{state.bad_lines:,} lines without a document are not compared; tokenizing reports them")
    return SignatureFile.read(plan.path)


def _resumed(journal: IO[bytes], plan: Plan, spool_name: str, record_bytes: int) -> _State:
    """Return the last state in the journal if the plan is equal and the records are intact; otherwise begin anew."""
    lines = journal.read().split(b"\n")[:-1]
    if lines and lines[0] == _journal_header(plan):
        for line in reversed(lines[1:]):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                fields = json.loads(line)
                state = _State(Position(*fields["position"]), fields["documents"], fields["bad_lines"], fields["crc32"])
                if resumable_files.holds(spool_name, state.documents * record_bytes, state.crc32):
                    name = inputs.display_name(plan.paths[min(state.position.input, len(plan.paths) - 1)])
                    note(f"resuming at byte {state.position.offset:,} of {name}: {state.documents:,} documents hashed")
                    return state
            break
    journal.seek(0)
    journal.truncate()
    journal.write(_journal_header(plan) + b"\n")
    return _State()


def _journal_header(plan: Plan) -> bytes:
    return json.dumps({"v": signature_files.VERSION, "kind": "journal", "plan": plan.fingerprint}).encode()


def _append_records(plan: Plan, workers: int, state: _State, spool: IO[bytes], journal: IO[bytes]) -> _State:
    jit.apart(lambda: _prepare(plan.method))
    part = plan.shard or Slice()
    next_sync_seconds = time.monotonic() + JOURNAL_INTERVAL_SECONDS
    sample_by, template = plan.compared.sample_by, plan.template
    json_keys = plan.compared.json_keys if template is None else template.json_keys
    with Progress("hashing", inputs.total_bytes(plan.paths, part, sample_by), "B") as progress:
        chunks = inputs.chunks(plan.paths, part, state.position, progress.advance, json_keys, sample_by)
        work = functools.partial(_records, method=plan.method, json_keys=json_keys, template=template)
        with contextlib.closing(_in_order(chunks, workers, work)) as results:
            for records in results:
                spool.write(records.content)
                state = state.after(records)
                if time.monotonic() >= next_sync_seconds:
                    resumable_files.sync(spool)
                    journal.write(json.dumps(dataclasses.asdict(state)).encode() + b"\n")
                    os.fsync(journal.fileno())
                    next_sync_seconds = time.monotonic() + JOURNAL_INTERVAL_SECONDS
    return state


def _prepare(method: Method) -> None:
    json_batch.prepare()
    if method == "minhash":
        minhash.bands(words.words(Texts.from_list([b"the words of a shingle and more"])))


def _records(chunk: Chunk, method: Method, json_keys: tuple[str, ...], template: Template | None) -> _Records:
    chunk, line_starts = with_line_starts(chunk)
    batch = chunk.batch(json_keys)
    if template is not None:
        batch = template_filter.fill(chunk, batch, template)
    texts = document_texts(batch)
    records = np.empty((len(texts.offsets) - 1, signature_files.columns(method)), np.uint64)
    records[:, signature_files.INPUT] = chunk.end.input
    records[:, signature_files.POSITION] = line_starts.of_documents(batch.lines)
    records[:, signature_files.EXACT_HIGH : signature_files.FIRST_BAND] = exact_hashes(texts)
    if method == "minhash":
        records[:, signature_files.FIRST_BAND :] = minhash.bands(words.words(texts))
    return _Records(records.tobytes(), len(records), len(batch.bad_lines), chunk.end)


def exact_hashes(texts: Texts) -> Column:
    """Return the texts' BLAKE2b-128, uint64 [texts, 2]."""
    digests = [hashlib.blake2b(text, digest_size=_HASH_BYTES).digest() for text in texts.to_list()]
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def _in_order(chunks: Iterable[Chunk], workers: int, work: Callable[[Chunk], _Records]) -> Generator[_Records, None, None]:
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="hash")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        pending: collections.deque[Future[_Records]] = collections.deque()
        for chunk in chunks:
            pending.append(pool.submit(work, chunk))
            if len(pending) >= CHUNKS_IN_FLIGHT_PER_WORKER * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _header(plan: Plan) -> dict[str, Any]:
    return {"v": signature_files.VERSION, "kind": "signatures", "plan": plan.fingerprint}


def _publish(plan: Plan, spool: IO[bytes], documents: int) -> None:
    """Write the records of `spool` as columns, a block of records at a time: a mapped spool would count as memory."""
    count = signature_files.columns(plan.method)
    spool.seek(0)
    with storage.publish(plan.path) as file:
        line = signature_files.first_line(_header(plan) | {"documents": documents} | plan.record)
        file.write(line)
        for first in range(0, documents, signature_files.DOCUMENTS_AT_ONCE):
            block_documents = min(signature_files.DOCUMENTS_AT_ONCE, documents - first)
            content = spool.read(block_documents * count * signature_files.COLUMN_BYTES)
            records = np.frombuffer(content, np.uint64).reshape(block_documents, count)
            for column in range(count):
                file.seek(len(line) + (column * documents + first) * signature_files.COLUMN_BYTES)
                file.write(records[:, column].tobytes())
