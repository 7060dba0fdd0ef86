"""Pack documents into the samples of a training run: best fit decreasing, so that few documents are cut (arXiv:2404.10830).

Documents that are joined and cut every N tokens lose their context at the cuts, although most documents would have fitted. Here
every sequence of the result is one sample of lt-train: as many whole documents as fit into `seq_length` + 1 tokens. A longer
document is cut into full samples, and only its last piece shares a sample. Documents are placed from the longest to the shortest
into the sample that they fill best. A buffer of WINDOW_TOKENS is packed at a time; documents within a sample keep their order,
and so do samples.

The unused end of a sample is not stored: lt-train pads the sample on reading and masks the padding in the loss. The bits of one
integer mark the existing free spaces, so one operation finds the smallest sufficient space.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from lt_preprocess.datasets import provenance, source_datasets
from lt_preprocess.datasets.block_reader import Documents
from lt_preprocess.datasets.masked_documents import MaskedReader, MaskedWriter, token_ids
from lt_preprocess.datasets.provenance import Derivation, OneSourcePlan
from lt_shared.console import BadConfig, BadData, Progress, counted, note
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset

WINDOW_TOKENS = 64 << 20
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Plan(OneSourcePlan):
    """A packing that has been checked. `result` has no counts yet."""

    seq_length: int


def plan(source: str, output_prefix: str, seq_length: int) -> Plan:
    """Raises as `source_datasets.single`, BadConfig for documents without an end, which packed ones need, and packed ones."""
    dataset, shape = source_datasets.single(source)
    prefix = manifest.absolute(output_prefix)
    source_datasets.check_not_the_source(dataset.prefix, prefix)
    if dataset.eod is None:
        raise BadConfig(
            f"{dataset.prefix}: which token ends a document is not known, so packed ones could not be told apart",
            "tokenize with --append-eod, and keep the .json beside the .bin",
        )
    if dataset.packed is not None:
        raise BadConfig(f"{dataset.prefix}: is packed, for sequences of {dataset.packed} tokens", "pack what it was packed from")
    result = dataclasses.replace(dataset, prefix=prefix, documents=None, tokens=None, packed=seq_length, weight=1.0)
    derivation = Derivation.of("pack", {"seq_length": seq_length}, [dataset])
    return Plan(dataset, shape, result, provenance.shared_options([dataset]), derivation, seq_length)


@dataclasses.dataclass
class Counts:
    """Counts of a packing's documents, samples and tokens. `cut` documents are longer than a sample."""

    documents: int = 0
    cut: int = 0
    empty: int = 0
    samples: int = 0
    tokens: int = 0

    def waste(self, seq_length: int) -> float:
        """The share of the samples' places that have no token."""
        return 1 - self.tokens / (self.samples * (seq_length + 1)) if self.samples else 0.0


def build(plan: Plan) -> Dataset:
    """Pack and publish the documents, and report the wasted share.

    Raises CannotCreate and IoFailure when the output cannot be written, BadData for a damaged source and for documents without
    their end; nothing is visible then.
    """
    counts = Counts()
    with MaskedWriter(plan.result, plan.shape.dtype) as writer:
        with MaskedReader(plan.source) as reader, Progress("packing", reader.size_bytes, "B") as progress:
            for documents in reader.whole(WINDOW_TOKENS):
                _check_ends(documents, plan.source)
                tokens, lengths = _packed(documents, plan.seq_length + 1, counts)
                writer.append(tokens, lengths, np.ones(len(lengths), np.int32))
                progress.advance(documents.tokens.nbytes)
        result = dataclasses.replace(plan.result, documents=writer.documents, tokens=writer.tokens)
        waste = counts.waste(plan.seq_length)
        packing = {"seq_length": plan.seq_length, **dataclasses.asdict(counts), "waste": waste}
        options = plan.options | {"packing": packing}
        writer.publish(result, plan.derivation, options)
    note(
        f"{counted(counts.documents, 'document')} in {counted(counts.samples, 'sample')} of {plan.seq_length} + 1 tokens,"
        f" {counts.cut:,} of them cut; {waste:.3%} of the places are empty"
    )
    return result


def _check_ends(documents: Documents, source: Dataset) -> None:
    bounds = documents.bounds
    ends = bounds[1:][bounds[1:] > bounds[:-1]] - 1
    if bool((token_ids(documents.tokens[ends]) != source.eod).any()):
        raise BadData(
            f"{source.prefix}: not all of its documents end with token {source.eod}, so packed ones could not be told apart",
            "tokenize with --append-eod",
        )


def _packed(documents: Documents, capacity: int, counts: Counts) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """The tokens of a window in samples of at most `capacity`, and the samples' lengths."""
    bounds = documents.bounds
    sizes = np.diff(bounds)
    whole, rests = sizes // capacity, sizes % capacity
    sample_of_rest, samples = best_fit_decreasing(rests, capacity)
    # The pieces of a document follow one another: its full samples, then its rest.
    full = np.repeat(np.arange(len(sizes)), whole)
    within = np.arange(len(full)) - np.repeat(np.cumsum(whole) - whole, whole)
    with_remainder = np.flatnonzero(rests)
    document = np.concatenate([full, with_remainder])
    begins = np.concatenate([bounds[full] + within * capacity, bounds[with_remainder] + whole[with_remainder] * capacity])
    lengths = np.concatenate([np.full(len(full), capacity), rests[with_remainder]])
    sample = np.concatenate([samples + np.arange(len(full)), sample_of_rest[with_remainder]])
    # A sample stands where the first document in it stood.
    first = np.full(samples + len(full), len(sizes))
    np.minimum.at(first, sample, document)
    order = np.lexsort((begins, sample, first[sample]))
    view = np.ascontiguousarray(documents.tokens).view(np.uint8).data
    width = documents.tokens.itemsize
    starts, ends = begins[order] * width, (begins + lengths)[order] * width
    tokens = b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    in_order = sample[order]
    heads = np.flatnonzero(np.diff(in_order, prepend=-1))
    packed = np.add.reduceat(lengths[order], heads) if len(heads) else np.zeros(0, np.int64)
    counts.documents += len(sizes)
    counts.cut += int((sizes > capacity).sum())
    counts.empty += int((sizes == 0).sum())
    counts.samples += len(packed)
    counts.tokens += int(sizes.sum())
    return np.frombuffer(tokens, documents.tokens.dtype), packed.astype(np.int32)


def best_fit_decreasing(sizes: Integers, capacity: int) -> tuple[Integers, int]:
    """For each size below `capacity` the number of its bin, -1 for 0, and how many bins there are.

    From the largest to the smallest, the first of equals first: each goes to the bin with the least space that suffices.
    """
    order = np.argsort(-sizes, kind="stable")
    order = order[: int((sizes > 0).sum())]
    bins = np.full(len(sizes), -1, np.int64)
    with_space: dict[int, list[int]] = {}
    spaces, count = 0, 0
    placed: list[int] = []
    for size in sizes[order].tolist():
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            candidates = with_space[space]
            number = candidates.pop()
            if not candidates:
                spaces &= ~(1 << space)
        else:
            space, number = capacity, count
            count += 1
        remaining = space - size
        if remaining:
            with_space.setdefault(remaining, []).append(number)
            spaces |= 1 << remaining
        placed.append(number)
    bins[order] = placed
    return bins, count
