"""One run: from a plan to published datasets, so that a later run can resume when this one is killed.

Every few seconds the outputs are synced and the journal records how far they are valid; syncing takes at most a tenth of the
time. A part that is full is closed in the journal before it is published, so that a run that was killed in between publishes the
rest.
"""

import contextlib
import dataclasses
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from lt_preprocess.compiler import jit
from lt_preprocess.curation.rules import NO_RULES
from lt_preprocess.pipeline import encoding, journal, removals
from lt_preprocess.pipeline.encoding import Encoded
from lt_preprocess.pipeline.journal import Journal
from lt_preprocess.pipeline.origin_rows import NOTHING_READ
from lt_preprocess.pipeline.output import OutputPart
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.pipeline.state import State
from lt_preprocess.readers import inputs, json_batch, json_line
from lt_preprocess.readers.batch import BadLine
from lt_preprocess.readers.byte_ranges import BYTE_ORDER_MARK
from lt_preprocess.readers.slices import Slice
from lt_preprocess.tokenizers import self_check
from lt_preprocess.tokenizers.base import Encoder
from lt_shared.console import BadData, NoInput, Progress, counted, note, warn
from lt_shared.contracts import manifest
from lt_shared.data.indexed_dataset import Extent
from lt_shared.files import storage

if TYPE_CHECKING:
    from lt_preprocess.curation.curator import Curator

JOURNAL_INTERVAL_SECONDS = 5.0
MAX_SYNC_SHARE = 0.1
REPORTED_LINES = 5
# One JSON object ends and the next begins on a line.
_MORE_OBJECTS = re.compile(rb"\}\s*\{\s*\"")
_MOST_SEARCHED = 1 << 20


Report = Callable[[Sequence[manifest.Dataset]], None]


def build(plan: Plan, workers: int, anew: bool = False, report: Report | None = None) -> list[manifest.Dataset]:
    """Tokenize the inputs of `plan` and publish the datasets part by part. Resumes an interrupted run unless `anew`.

    `report` is called with the datasets of a part as soon as they are durable, and at once with the parts of an earlier run.

    Raises: BadData for a line without a document unless the options say otherwise, NoInput when no document is left,
    CannotCreate, TryAgain and IoFailure when the output cannot be written. Nothing new is visible then but finished parts.
    """
    with journal.opened(plan, anew) as log:
        try:
            with _Run(plan, log, report or (lambda datasets: None)) as run:
                datasets = run.finish(workers)
        except BaseException:
            if log.state is not None and log.state.is_worth_keeping:
                note("the same command resumes from what is done" + ("" if log.is_resumable else ": the finished parts"))
            else:
                log.delete()
            raise
        log.delete()
    return datasets


class _Run:
    """The parts of a run, one open at a time. A context manager."""

    def __init__(self, plan: Plan, log: Journal, report: Report):
        self._plan = plan
        self._log = log
        self._report = report
        self._stack = contextlib.ExitStack()
        self._next_sync_seconds = time.monotonic() + JOURNAL_INTERVAL_SECONDS

    def __enter__(self) -> Self:
        if self._log.state is None:
            self._state = State(extents=tuple(Extent() for _ in self._plan.output_prefixes(0)))
            self._log.write(self._state)
        else:
            self._state = self._log.state
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def finish(self, workers: int) -> list[manifest.Dataset]:
        """Finish the run and return all datasets, including parts that an interrupted run published."""
        done_parts = [self._plan.dataset_prefixes(part) for part in range(self._state.part)]
        self._made = [manifest.describe(prefix) for prefixes in done_parts for prefix in prefixes]
        self._report(self._made)
        self._note_where_it_resumes()
        self._open_part()
        if self._state.is_closed:
            self._publish_part()
        if not self._state.is_last:
            self._tokenize(workers)
            self._report_bad_lines()
            self._report_empty_fields()
            self._check_that_there_is_text()
            self._close_part(is_last=True)
        documents_made = sum(dataset.documents or 0 for dataset in self._made) // len(self._plan.options.json_keys)
        tokens_made = sum(dataset.tokens or 0 for dataset in self._made)
        counts = f"{counted(documents_made, 'document')}, {counted(tokens_made, 'token')}"
        note(f"{counts}, {self._state.text_bytes / 1e6:,.1f} MB of text")
        if self._state.removed:
            note(f"removed documents: {removals.in_words(self._state.removed)}")
        return self._made

    def _note_where_it_resumes(self) -> None:
        position = self._state.position
        if self._plan.fingerprint is None:
            note("standard input and pipes cannot be read again: an interrupted run starts from the beginning")
        elif self._state.is_worth_keeping:
            name = inputs.display_name(self._plan.paths[min(position.input, len(self._plan.paths) - 1)])
            documents_done = counted(self._state.extents[0].documents, "document")
            note(f"resuming at byte {position.offset:,} of {name}, part {self._state.part} has {documents_done}")

    def _tokenize(self, workers: int) -> None:
        plan = self._plan
        curator = _curator(plan)
        encoders = _prepared_encoders(plan, workers)
        if curator is not None:
            jit.apart(curator.prepare)
        part = plan.options.shard or Slice()
        with Progress("tokenizing", inputs.total_bytes(plan.paths, part, plan.options.sample_by), "B") as progress:
            chunks = inputs.chunks(
                plan.paths, part, self._state.position, progress.advance, plan.recipe.json_keys, plan.options.sample_by
            )
            results = encoding.encode(chunks, encoders, plan.recipe, curator)
            with contextlib.closing(results):
                for encoded in results:
                    if not self._take_within_limits(encoded):
                        break

    def _take_within_limits(self, encoded: Encoded) -> bool:
        """Take a chunk, or its first documents; returns whether the limits allow more."""
        options = self._plan.options
        if options.limit_documents is None and options.limit_tokens is None:
            self._take(encoded)
            return True
        documents = None if options.limit_documents is None else options.limit_documents - self._state.input_documents
        tokens = None if options.limit_tokens is None else options.limit_tokens - self._state.tokens
        limited = encoded.within(documents, tokens)
        self._take(limited)
        return limited is encoded

    def _take(self, encoded: Encoded) -> None:
        """Write the documents of a chunk into as many parts as needed, without documents that an earlier run wrote."""
        if encoded.bad_lines and self._plan.options.on_error == "fail":
            line = encoded.bad_lines[0]
            raise BadData(str(line), f"{_remedy(line)}--on-error skip or quarantine leaves such lines out and reports them")
        if self._plan.options.on_error == "skip" and len(self._plan.paths) > 1:
            _check_kind(encoded)
        is_same_input = encoded.end.input == self._state.position.input
        lines = (self._state.lines if is_same_input else NOTHING_READ).at(encoded)
        written = min(self._state.taken, encoded.documents)
        left_to_skip = self._state.taken - written
        columns = [column.since(written) for column in encoded.outputs] if written else encoded.outputs
        # An earlier run counted the lines before the document that follows those that it wrote.
        counted_line = encoded.line_of(self._state.taken)
        while (fitting := self._part.fitting(columns)) < encoded.documents - written:
            self._part.append([column.before(fitting) for column in columns], encoded, lines, written)
            columns = [column.since(fitting) for column in columns]
            written += fitting
            if fitting:
                self._state = dataclasses.replace(self._state.with_input(encoded.end.input), taken=written)
                self._count_excluded(encoded, counted_line, encoded.line_of(written))
                counted_line = encoded.line_of(written)
            self._close_part(is_last=False)
        self._part.append(columns, encoded, lines, written)
        self._count_excluded(encoded, counted_line, None)
        self._state = dataclasses.replace(
            self._state.with_input(encoded.end.input),
            position=encoded.end,
            lines=lines.after(encoded),
            taken=left_to_skip,
            text_bytes=self._state.text_bytes + encoded.text_bytes,
            input_documents=self._state.input_documents + encoded.input_documents,
            tokens=self._state.tokens + encoded.tokens,
            empty_fields=_added(self._state.empty_fields, encoded),
        )
        if self._log.is_resumable and time.monotonic() >= self._next_sync_seconds:
            self._sync()

    def _count_excluded(self, encoded: Encoded, first_line: int, last_line: int | None) -> None:
        """Count the bad lines and the removed documents on some lines of a chunk in the open part, and quarantine them."""
        bad_lines, removed = encoded.excluded(first_line, last_line)
        if not bad_lines and not removed.documents:
            return
        if self._plan.options.on_error == "quarantine":
            self._part.quarantine(bad_lines)
        if removed.documents:
            part_counts = removals.subtracted(self._state.removed, self._state.removed_before)
            self._part.quarantine(removed.examples(removals.remaining_examples(part_counts, removed.counts)))
        self._state = dataclasses.replace(
            self._state,
            bad_lines=self._state.bad_lines + len(bad_lines),
            removed=removals.added(self._state.removed, removed.counts),
            reported=(*self._state.reported, *_named(bad_lines))[:REPORTED_LINES],
        )

    def _sync(self) -> None:
        start_seconds = time.monotonic()
        self._part.sync()
        self._state = dataclasses.replace(
            self._state,
            extents=self._part.extents,
            quarantine_bytes=self._part.quarantine_bytes,
            quarantine_crc32=self._part.quarantine_crc32,
            origin_bytes=self._part.origins.size_bytes,
            origin_crc32=self._part.origins.crc32,
        )
        self._log.write(self._state)
        now = time.monotonic()
        pause_seconds = max(JOURNAL_INTERVAL_SECONDS, (now - start_seconds) / MAX_SYNC_SHARE)
        self._next_sync_seconds = now + pause_seconds

    def _open_part(self) -> None:
        self._part = self._stack.enter_context(OutputPart(self._plan, self._state, self._log.is_resumable))

    def _close_part(self, is_last: bool) -> None:
        self._state = dataclasses.replace(self._state, is_closed=True, is_last=is_last)
        if self._log.is_resumable:
            self._sync()
        else:
            self._state = dataclasses.replace(self._state, extents=self._part.extents)
        self._publish_part()

    def _publish_part(self) -> None:
        """Publish the closed part and begin the next one unless it was the last."""
        published = self._part.publish(self._state)
        self._made += published
        self._stack.close()
        self._report(published)
        if not self._state.is_last:
            self._state = self._state.next_part()
            self._log.write(self._state)
            self._open_part()

    def _report_bad_lines(self) -> None:
        """Tell the user which lines were left out."""
        if self._state.bad_lines:
            for line in self._state.reported:
                note(f"left out: {line}")
            count = self._state.bad_lines
            warn(f"{counted(count, 'line')} left out; {len(self._state.reported)} named above")

    def _report_empty_fields(self) -> None:
        """Tell the user how many documents do not fill an optional field of the template."""
        for field, count in zip(self._plan.optional_fields, self._state.empty_fields, strict=False):
            if count:
                note(f"{{{field}?}}: empty, null or missing in {count:,} of {counted(self._state.input_documents, 'document')}")

    def _check_that_there_is_text(self) -> None:
        """A shard may be empty: what counts there is that all shards are complete."""
        if self._state.part == 0 and self._plan.options.shard is None and not any(extent.tokens for extent in self._part.extents):
            names, count = _names(self._plan.paths), self._part.extents[0].documents
            if count == 0 and self._state.removed:
                raise NoInput(f"{names}: every document was removed: {removals.in_words(self._state.removed)}", "relax the rules")
            if count == 0 and self._plan.options.limit_tokens is not None:
                raise NoInput(f"{names}: no document within --limit-tokens {self._plan.options.limit_tokens}", "raise the limit")
            if count == 0 and self._state.bad_lines:
                raise NoInput(
                    f"{names}: no documents, every line was left out, the first because: {self._state.reported[0]}",
                    "--json-keys or --template names the keys that have the text",
                )
            if count == 0:
                raise NoInput(f"{names}: no documents", "did the command that made the input fail?")
            keys = " or ".join(self._plan.options.json_keys)
            raise NoInput(f"{names}: {counted(count, 'document')}, all without text", f"is it right that the text is in {keys}?")


def _curator(plan: Plan) -> "Curator | None":
    if plan.options.rules == NO_RULES:
        return None
    # Loaded for runs with rules only: it takes 10 ms.
    from lt_preprocess.curation.curator import Curator

    return Curator(plan.options.rules, plan.duplicates)


def _prepared_encoders(plan: Plan, workers: int) -> list[Encoder]:
    jit.avoid_compiling(_is_short(plan.paths))
    encoder = plan.tokenizer.uncompiled_encoder() if _is_short(plan.paths) else None
    if encoder is not None:
        return [encoder] * workers

    def prepare() -> list[Encoder]:
        json_batch.prepare()
        plan.recipe.prepare()
        return [plan.tokenizer.new_encoder() for _ in range(workers)]

    return jit.apart(prepare)


def _is_short(paths: list[str]) -> bool:
    """Whether the inputs are files with so little text that compiling takes longer than the rest of the run."""
    if not all(path != inputs.STDIN and not storage.is_remote(path) and os.path.isfile(path) for path in paths):
        return False
    return sum(os.path.getsize(path) for path in paths) <= self_check.FEW_BYTES


def _added(counts: tuple[int, ...], encoded: Encoded) -> tuple[int, ...]:
    """The numbers of empty fields, with a chunk's numbers added."""
    if encoded.empty_fields is None:
        return counts
    chunk_counts = encoded.empty_fields.sum(axis=0).tolist()
    return tuple(sum(pair) for pair in itertools.zip_longest(counts, chunk_counts, fillvalue=0))


def _check_kind(encoded: Encoded) -> None:
    """Raise BadData if no line of an input's first chunk is JSON: the file has a different format, and skipping would drop it."""
    if encoded.documents or not encoded.bad_lines or encoded.lines.offset > len(BYTE_ORDER_MARK):
        return
    if all(line.reason.startswith(json_line.NO_OBJECT_REASONS) for line in encoded.bad_lines):
        first, count = encoded.bad_lines[0], len(encoded.bad_lines)
        lines = "its only line is not" if count == 1 else f"none of its first {count:,} lines is"
        raise BadData(
            f"{first.source}: no JSON lines: {lines} a JSON object; {first}",
            "leave the file out; --on-error quarantine goes on and keeps its lines",
        )


def _remedy(line: BadLine) -> str:
    """How to make documents of a line like this one, if that is known."""
    if line.reason.startswith("no key"):
        return "--json-keys names the key that has the text; "
    if "Extra data" in line.reason and _MORE_OBJECTS.search(line.raw[:_MOST_SEARCHED]):
        return "jq -c . FILE | lt-preprocess - ... separates several objects on a line; "
    return ""


def _named(lines: list[BadLine]) -> Iterator[str]:
    return map(str, lines[:REPORTED_LINES])


def _names(paths: list[str]) -> str:
    names = [inputs.display_name(path) for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
