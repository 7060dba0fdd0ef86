"""What blame has found as lines for a terminal."""

from collections.abc import Iterator, Sequence

from lt_monitor.blame.rollback import Rollback
from lt_monitor.blame.suspects import Blame, BlamedSample, DocumentPart
from lt_monitor.events.escaping import printable
from lt_shared.console import counted

EXCERPT_CHARACTERS = 120
NAMED_RANGES = 10


def lines(blames: Sequence[Blame], rollback: Rollback, origin_of_losses: str, skip_list: str | None) -> Iterator[str]:
    """`origin_of_losses` says how the losses of samples are known; `skip_list` is the file that was written."""
    for blame in blames:
        yield headline(blame, origin_of_losses)
        shown = [sample for sample in blame.samples if sample.documents is not None]
        for sample in shown:
            yield from _sample_lines(sample)
        if hidden := len(blame.samples) - len(shown):
            yield f"  and {counted(hidden, 'more sample')}: --top shows more of them"
        yield ""
    yield from _rollback_lines(rollback, skip_list)


def headline(one: Blame, origin_of_losses: str) -> str:
    numbers = [sample.sample for sample in one.samples]
    numbered = f"{one.steps}: {counted(len(numbers), 'sample')}, numbers {min(numbers):,} to {max(numbers):,}; "
    if one.loss_limit is None or one.median_loss is None:
        return numbered + "which of them raised the loss is not known: lt-train writes losses of samples with --log-sample-loss"
    suspects = counted(len(one.suspects), "sample")
    more = f"; {one.shaken:,} more in steps whose other samples are up, too: --score tells them apart" if one.shaken else ""
    side = "below" if one.steps.is_dip else "above"
    return numbered + f"{suspects} {side} a loss of {one.loss_limit:.4g} (median {one.median_loss:.4g}), {origin_of_losses}{more}"


def _sample_lines(sample: BlamedSample) -> Iterator[str]:
    loss = "" if sample.loss is None else f"loss {sample.loss:.4f}  "
    mark = "*" if sample.is_suspect and sample.loss is not None else " "
    yield f"{mark} {loss}sample {sample.sample:,}  step {sample.step:,}  {printable(sample.dataset)}"
    for part in sample.documents or ():
        yield f"      {source_and_tokens(part)}"
        if part.text is not None:
            yield f"        {printable(part.text.strip(), EXCERPT_CHARACTERS)}"
        elif part.problem:
            yield f"        ({printable(part.problem)})"


def source_and_tokens(part: DocumentPart) -> str:
    """The source of a part of a document, and which tokens."""
    tokens = f"tokens {part.first_token:,} to {part.first_token + part.tokens - 1:,} of {part.document_tokens:,}"
    if part.path is None:
        return f"document {part.document:,}: {tokens}"
    line = "" if part.line is None else f", {part.unit} {part.line}"
    offset = "" if part.offset is None else f", byte {part.offset}"
    return f"{printable(part.path)}{line}{offset}: document {part.document:,}, {tokens}"


def _rollback_lines(rollback: Rollback, skip_list: str | None) -> Iterator[str]:
    if not rollback.samples:
        yield "no sample stands out: nothing to leave out"
        return
    named = [str(first) if first == last else f"{first}-{last}" for first, last in rollback.samples[:NAMED_RANGES]]
    more = len(rollback.samples) - len(named)
    count = sum(last - first + 1 for first, last in rollback.samples)
    yield f"to leave out: {counted(count, 'sample')}: {', '.join(named)}" + (f" and {more:,} more ranges" if more else "")
    if skip_list is None:
        yield "--skip-list FILE writes them down for lt-train"
    since = f"at {printable(rollback.checkpoint)}" if rollback.checkpoint else "from the beginning: no checkpoint is older"
    yield f"to begin {since}, leave them out and go on:"
    yield f"  {printable(rollback.command, 10_000)}" if rollback.command else "  (the command that started the run is not known)"
