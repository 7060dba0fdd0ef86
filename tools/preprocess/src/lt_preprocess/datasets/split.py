"""Split a dataset by documents, for training, validation and testing.

The part of a document follows from a hash (BLAKE2b, 64 bits) of its tokens alone: equal documents land in the same part, so
that no validation document is also trained on, and a document stays in its part when others are added or the order changes. The
sizes of the parts therefore match the ratios only on average. The counts of removed documents stay with the source.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance, source_datasets
from lt_preprocess.datasets.block_reader import Shape
from lt_preprocess.datasets.masked_documents import MaskedReader, MaskedWriter, token_ids
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import BadData, Progress, UsageError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.document_origins import origins
from lt_shared.data.document_origins.origins import TakenRanges

NAMES = ("train", "valid", "test")
TOKENS_AT_ONCE = 16 << 20
HASH_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """A split that has been checked. `results` have no counts: they are known when the documents have been hashed."""

    source: Dataset
    shape: Shape
    ratios: list[Fraction]
    seed: int
    results: list[Dataset]
    options: dict[str, Any]
    derivations: list[Derivation]

    @property
    def files(self) -> list[dict[str, Any]] | None:
        """The text files that the source was tokenized from, None when they are not known."""
        return provenance.shared_sources([self.source])

    def finished(self) -> list[Dataset] | None:
        """Describe the parts that an earlier run of the same command completed; None if a part is missing."""
        pairs = zip(self.results, self.derivations, strict=True)
        datasets = [dataset for result, origin in pairs if (dataset := provenance.finished(result.prefix, origin))]
        return datasets if len(datasets) == len(self.results) else None

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it."""
        return {
            "v": manifest.SIDECAR_VERSION,
            "kind": "plan",
            "command": "split",
            "source": manifest.record_of(self.source),
            "results": [manifest.record_of(result) for result in self.results],
            "ratios": [float(ratio) for ratio in self.ratios],
            "seed": self.seed,
            "up_to_date": self.finished() is not None,
        }


def plan(source: str, output_prefix: str, ratios: str, names: str | None, seed: int) -> Plan:
    """Raises: UsageError for ratios or names that make no sense, otherwise as `source_datasets.single`."""
    shares = _parse_ratios(ratios)
    words = _parse_names(names, len(shares))
    dataset, shape = source_datasets.single(source)
    prefix = manifest.absolute(output_prefix)
    results = [
        dataclasses.replace(dataset, prefix=f"{prefix}_{word}", documents=None, tokens=None, weight=1.0, removed=None)
        for word in words
    ]
    for result in results:
        source_datasets.check_not_the_source(dataset.prefix, result.prefix)
    derivations = [
        Derivation.of("split", {"ratios": [str(share) for share in shares], "seed": seed, "part": number}, [dataset])
        for number in range(len(shares))
    ]
    return Plan(dataset, shape, shares, seed, results, provenance.shared_options([dataset]), derivations)


def _parse_ratios(text: str) -> list[Fraction]:
    """The shares of the whole, which add up to 1."""
    try:
        numbers = [Fraction(word.strip()) for word in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"--ratios {text}: not numbers separated by commas", "for example --ratios 98,1,1") from None
    if len(numbers) < 2 or min(numbers) <= 0:
        raise UsageError(f"--ratios {text}: expected two or more numbers above 0", "for example --ratios 98,1,1")
    return [number / sum(numbers) for number in numbers]


def _parse_names(text: str | None, count: int) -> list[str]:
    if text is None and count > len(NAMES):
        raise UsageError(f"{count} parts need --names", "for example --names train,valid,test,rest")
    words = list(NAMES[:count]) if text is None else [word.strip() for word in text.split(",")]
    if len(words) != count or len(set(words)) != count or not all(words):
        raise UsageError(f"--names {text}: expected {count} different names, one for each ratio")
    return words


def part_of(tokens: npt.NDArray[np.generic], thresholds: Sequence[int], seed: int) -> int:
    """Return the number of the part that a document with these tokens belongs to."""
    digest = hashlib.blake2b(tokens.data, digest_size=HASH_BYTES, key=seed.to_bytes(8, "big") if seed else b"").digest()
    value = int.from_bytes(digest, "big")
    return next(number for number, threshold in enumerate(thresholds) if value < threshold)


def thresholds_of(ratios: Sequence[Fraction]) -> list[int]:
    """Return the parts' upper hash bounds."""
    return [int(sum(ratios[: number + 1], Fraction(0)) * (1 << 8 * HASH_BYTES)) for number in range(len(ratios))]


def build(plan: Plan) -> list[Dataset]:
    """Write and publish all parts.

    Raises: BadData for a damaged source and when a part would be without tokens, CannotCreate and IoFailure when the output can
    not be written. No part is visible then.
    """
    thresholds = thresholds_of(plan.ratios)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(MaskedReader(plan.source))
        writers = [stack.enter_context(MaskedWriter(part, plan.shape.dtype)) for part in plan.results]
        ranges_by_part = [TakenRanges() for _ in writers]
        with Progress("splitting", reader.size_bytes, "B") as progress:
            for documents in reader.whole(TOKENS_AT_ONCE):
                bounds = documents.bounds.tolist()
                tokens = token_ids(documents.tokens)
                token_runs = (tokens[start:end] for start, end in itertools.pairwise(bounds))
                numbers = np.array([part_of(run, thresholds, plan.seed) for run in token_runs])
                for number, writer in enumerate(writers):
                    chosen = np.flatnonzero(numbers == number)
                    ranges_by_part[number].add(chosen, len(numbers))
                    some = documents.taken(chosen)
                    writer.append(some.tokens, some.sequence_lengths, some.sequences_per_document)
                progress.advance(documents.tokens.nbytes)
        for part, writer in zip(plan.results, writers, strict=True):
            if writer.tokens == 0:
                raise BadData(
                    f"{part.prefix}: no text would be left for this part of {plan.shape.documents:,} documents",
                    "give it a larger ratio, or another --seed",
                )
        datasets = []
        source = origins.of_dataset(plan.source.prefix)
        for part, writer, origin, ranges in zip(plan.results, writers, plan.derivations, ranges_by_part, strict=True):
            datasets.append(dataclasses.replace(part, documents=writer.documents, tokens=writer.tokens))
            places = source and ranges.of(source)
            writer.publish(datasets[-1], origin, plan.options, documents=places)
    return datasets
