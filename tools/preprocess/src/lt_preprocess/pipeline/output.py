"""The output of one part of a run (all of it without --max-shard-size and --stream): a dataset for each key, and bad lines.

All datasets of a part have the same documents, so that the second key's document 7 belongs to the first key's. The files appear
together at the end: the quarantined lines first, then each dataset. Before the last part is published, parts with higher numbers
that an earlier, longer run left are deleted: later nothing would tell that they do not belong to this run.
"""

import base64
import contextlib
import glob
import json
import re
import tempfile
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from lt_preprocess.documents.assembly import Documents
from lt_preprocess.pipeline import origin_rows, removals, sidecar
from lt_preprocess.pipeline.encoding import Encoded
from lt_preprocess.pipeline.origin_rows import InputLines, OriginRows
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.pipeline.state import State
from lt_preprocess.readers.batch import BadLine
from lt_shared.console import note, visible_json, warn
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import Extent
from lt_shared.files import checksums, resumable_files, storage


class OutputPart:
    """A context manager. With `is_resumable`, it resumes from `state`, and an exception leaves the partial files."""

    def __init__(self, plan: Plan, state: State, is_resumable: bool):
        self._plan = plan
        self._part = state.part
        self._is_resumable = is_resumable
        self._origin_bytes, self._origin_crc32 = state.origin_bytes, state.origin_crc32
        self._origin_name = origin_rows.name(plan.output_prefixes(state.part)[0])
        self._quarantine_path = plan.quarantine_path(state.part)
        self._quarantine: IO[bytes] | None = None
        self.quarantine_bytes, self.quarantine_crc32 = state.quarantine_bytes, state.quarantine_crc32
        self._writers = {
            prefix: indexed_dataset.Writer(prefix, plan.dtype_of(prefix), extent if is_resumable else None)
            for prefix, extent in zip(plan.output_prefixes(state.part), state.extents, strict=True)
        }
        self._published: dict[str, manifest.Dataset] = {}
        if state.is_closed and is_resumable:
            self._leave_out_what_was_published()

    def _leave_out_what_was_published(self) -> None:
        for prefix in list(self._writers):
            if not indexed_dataset.is_partial(prefix):
                del self._writers[prefix]
                self._published[prefix] = manifest.describe(prefix)
        if not self._writers:
            resumable_files.discard(self._origin_name)
        if self.quarantine_bytes and not resumable_files.exists(self._quarantine_path):
            resumable_files.withdraw(self._quarantine_path)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._quarantine_stack = stack.enter_context(contextlib.ExitStack())
            # Deleted when all datasets are published.
            self.origins = OriginRows(stack.enter_context(self._origin_file()), self._origin_bytes, self._origin_crc32)
            for writer in self._writers.values():
                stack.enter_context(writer)
            self._stack = stack.pop_all()
        return self

    def _origin_file(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        if not self._is_resumable or not self._writers:
            return tempfile.TemporaryFile()
        return resumable_files.spool(self._origin_name, self._origin_bytes)

    @property
    def extents(self) -> tuple[Extent, ...]:
        return tuple(writer.extent for writer in self._writers.values())

    def fitting(self, columns: list[Documents]) -> int:
        """How many of the documents fit into this part; a part takes at least one."""
        limit = self._plan.options.most_tokens(self._part, np.dtype(self._plan.dtype).itemsize)
        if limit is None:
            return len(columns[0].sequences_per_document)
        tokens_left = [limit - writer.tokens for writer in self._writers.values()]
        fitting = min(column.fitting(tokens) for column, tokens in zip(columns, tokens_left, strict=True))
        is_empty = all(extent.documents == 0 for extent in self.extents)
        return max(fitting, 1) if is_empty and len(columns[0].sequences_per_document) else fitting

    def append(self, columns: list[Documents], encoded: Encoded, before: InputLines, first: int) -> None:
        """`columns` are the documents of a chunk from number `first` on; the lines of its input before it are known."""
        last = first + len(columns[0].sequences_per_document)
        self.origins.add(encoded, before, first, last, self.extents[0].documents)
        for writer, column in zip(self._writers.values(), columns, strict=True):
            writer.append(*column)

    def quarantine(self, lines: list[BadLine]) -> None:
        for line in lines:
            record = {"source": line.source, "line": line.line, "offset": line.offset, "reason": line.reason} | _raw(line.raw)
            content = visible_json(json.dumps(record, ensure_ascii=False)).encode("utf-8", "surrogateescape") + b"\n"
            self._opened_quarantine().write(content)
            self.quarantine_bytes += len(content)
            self.quarantine_crc32 = checksums.crc32(content, self.quarantine_crc32)

    def _opened_quarantine(self) -> IO[bytes]:
        if self._quarantine is None:
            path = self._quarantine_path
            publishing = resumable_files.resumable(path, self.quarantine_bytes) if self._is_resumable else storage.publish(path)
            self._quarantine = self._quarantine_stack.enter_context(publishing)
        return self._quarantine

    def sync(self) -> None:
        """Sync the partial files."""
        for writer in self._writers.values():
            writer.sync()
        resumable_files.sync(self.origins.file)
        if self._quarantine is not None:
            resumable_files.sync(self._quarantine)

    def publish(self, state: State) -> list[manifest.Dataset]:
        """Give the files their final names; returns the datasets, one for each key."""
        if state.is_last:
            _delete_later_parts(self._plan, state.part)
        if self.quarantine_bytes:
            self._opened_quarantine()
            self._quarantine_stack.close()
        else:
            storage.remove(self._quarantine_path)
        origins = sidecar.origins(self._plan, self.origins, state) if self._writers else None
        for prefix, writer in self._writers.items():
            dataset = self._described(prefix, writer, state)
            content = sidecar.content(self._plan, dataset, writer.extent, writer.complete(), state, origins)
            writer.publish((manifest.sidecar_path(prefix), content))
            self._published[prefix] = dataset
        return [self._published[prefix] for prefix in self._plan.dataset_prefixes(state.part)]

    def _described(self, prefix: str, writer: indexed_dataset.Writer, state: State) -> manifest.Dataset:
        plan = self._plan
        if indexed_dataset.is_mask(prefix):
            return manifest.Dataset(prefix, writer.documents, writer.tokens, plan.dtype_of(prefix))
        return manifest.Dataset(
            prefix,
            writer.documents,
            writer.tokens,
            plan.dtype,
            plan.tokenizer.vocab_size,
            plan.tokenizer.eod,
            plan.identity,
            removed=removals.subtracted(state.removed, state.removed_before) or None,
            loss_mask=True if plan.conversations is not None else None,
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)


def _delete_later_parts(plan: Plan, last: int) -> None:
    """Delete the later parts of an earlier run, and warn of such files that another tool wrote. On local filesystems only."""
    if not plan.options.has_parts or storage.is_remote(plan.prefix):
        return
    deleted: list[str] = []
    for key in plan.options.json_keys:
        extension = r"(\.loss_mask)?\.(bin|idx|json)"
        name = re.compile(re.escape(f"{plan.prefix}-part") + r"(\d{5,})" + re.escape(f"_{key}_document") + extension)
        paths = glob.iglob(f"{glob.escape(f'{plan.prefix}-part')}*{glob.escape(f'_{key}_document')}.*")
        numbers = {int(match[1]) for path in paths if (match := name.fullmatch(path))}
        for number in sorted(number for number in numbers if number > last):
            prefix = f"{plan.part_prefix(number)}_{key}_document"
            if not sidecar.is_of_part(prefix, number):
                warn(f"{prefix}: looks like a part of this run, but lt-preprocess did not write it: it stays")
                continue
            # The sidecar goes last: as long as it is there, a later run knows whose files these are.
            storage.remove(plan.quarantine_path(number))
            for stale in (prefix, indexed_dataset.mask_prefix(prefix)):
                for path in (indexed_dataset.idx_path(stale), indexed_dataset.bin_path(stale), manifest.sidecar_path(stale)):
                    storage.remove(path)
            deleted.append(prefix)
    if deleted:
        more = f" and {len(deleted) - 1} more" if len(deleted) > 1 else ""
        note(f"{deleted[0]}{more}: deleted: left by an earlier run with more parts")


def _raw(line: bytes) -> dict[str, Any]:
    """The line as text, or, when it is no UTF-8, as base64."""
    try:
        return {"raw": line.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(line).decode()}
