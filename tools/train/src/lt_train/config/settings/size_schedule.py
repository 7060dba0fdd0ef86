"""Megatron-LM's step-wise schedule of the global batch size: `0:384 200B:768 400B:1152`.

The first number of an entry counts the trained tokens from which steps have the second number of samples. Megatron-LM divides the
tokens by the sequence length, and rounds down to samples. The size of a step is chosen when the step begins.
"""

import itertools
import math
from typing import Any

from lt_shared.console import BadConfig, UsageError
from lt_shared.data.sample_order.batch_sizes import ScheduledSize

OPTION = "--step-batch-size-schedule"
EXAMPLE = f"{OPTION} '0:384 200B:768 400B:1152'"
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
# A run has few sizes, and the training loop looks the size up at each step.
MOST_ENTRIES = 100
LARGEST_SIZE = 2**31 - 1
MOST_TOKENS = 2**62


def resolve_size_schedule(options: dict[str, Any], seq_length: int) -> tuple[ScheduledSize, ...]:
    """Resolve the schedule for samples of `seq_length` tokens; empty without the option.

    Raises UsageError beside another option of the batch size, BadConfig for a malformed schedule.
    """
    text = options["step_batch_size_schedule"]
    if text is None:
        return ()
    for name in ("global_batch_size", "rampup_batch_size"):
        if options[name]:
            raise UsageError(
                f"{OPTION} and --{name.replace('_', '-')}", "the schedule sets every batch size: drop the other option"
            )
    words = text.replace(",", " ").split()
    if not 0 < len(words) <= MOST_ENTRIES:
        raise BadConfig(f"{OPTION} has {len(words)} entries", f"give 1 to {MOST_ENTRIES}: {EXAMPLE}")
    entries = sorted((_entry(word, seq_length) for word in words), key=lambda entry: entry.begin)
    if entries[0].begin:
        raise BadConfig(
            f"{OPTION} begins after {entries[0].begin:,} samples of {seq_length} tokens", f"begin with 0 tokens: {EXAMPLE}"
        )
    for first, second in itertools.pairwise(entries):
        if first.begin == second.begin:
            raise BadConfig(
                f"{OPTION} counts tokens: batch sizes {first.size} and {second.size} begin at the same sample, {first.begin:,}",
                f"a sample has {seq_length} tokens: begin each size at least {seq_length} tokens after the size before it",
            )
    return tuple(entries)


def _entry(word: str, seq_length: int) -> ScheduledSize:
    tokens, _, size = word.partition(":")
    entry = ScheduledSize(_whole(tokens, word, MOST_TOKENS) // seq_length, _whole(size, word, LARGEST_SIZE))
    if entry.size < 1:
        raise BadConfig(f"{OPTION}: {word:.80} has no samples in a step", EXAMPLE)
    return entry


def _whole(text: str, word: str, largest: int) -> int:
    """Parse a number with an optional suffix as Megatron-LM does: in floating point, rounded down."""
    digits, factor = (text[:-1], SUFFIXES[text[-1].upper()]) if text[-1:].upper() in SUFFIXES else (text, 1)
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    if not 0 <= value <= largest:
        raise BadConfig(f"{OPTION}: {word[:80]!r} is not TOKENS:SIZE", EXAMPLE)
    return int(value)
