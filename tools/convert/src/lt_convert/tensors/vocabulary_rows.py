"""Embeddings of several models in one vocabulary: each row is a token's, taken from the row that a model has for this token.

A model that lacks a token takes another model's row, zeros, or an average of models; `padding` rows at the end have the mean of
the other rows. Rows are gathered while the merged tensor is written, so the tensors are not in memory.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence

import numpy
from numpy.typing import NDArray

from lt_convert.tensors.blocks import TensorReader, flat
from lt_convert.tensors.merge_rules import Values, rounded
from lt_convert.tensors.merged import MergedTensor, read_values
from lt_convert.tensors.tensor import Tensor

# Values in a window. Neighbouring tokens mostly have neighbouring rows, so a larger window needs fewer reads.
ALIGNED_WINDOW = 1 << 18
# Instead of the number of a model: a row of zeros, and an average over the rows in `averages`.
ZEROS, AVERAGE = -1, -2
# Rows of an embedding that are read at once for the mean.
MEAN_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a model in the new vocabulary, without padding: row i is model `models[i]`'s row `rows[i]`.

    `averages` has the (model, row) pairs of every AVERAGE row. Arrays have the shape [tokens]. `tensors` maps the number of a
    model to its embedding.
    """

    models: NDArray[numpy.int16]
    rows: NDArray[numpy.int64]
    averages: Mapping[int, Sequence[tuple[int, int]]]

    def gathered(self, first: int, end: int, tensors: Mapping[int, Tensor], dtype: str, reader: TensorReader) -> Values:
        """Rows `first` to `end` of the model's embedding in the new vocabulary, float32 values of `dtype`."""
        width = next(iter(tensors.values())).shape[1]
        models, rows = self.models[first:end], self.rows[first:end]
        result: Values = numpy.zeros((end - first, width), numpy.float32)
        # A run of a model's neighbouring rows is one read.
        breaks = numpy.flatnonzero((numpy.diff(models) != 0) | (numpy.diff(rows) != 1)) + 1
        starts = [0, *breaks.tolist()] if end > first else []
        for start, stop in zip(starts, [*starts[1:], end - first], strict=True):
            model, row = int(models[start]), int(rows[start])
            if model >= 0:
                values = read_values(tensors[model], row * width, (row + stop - start) * width, reader)
                result[start:stop] = values.reshape(-1, width)
        for position in numpy.flatnonzero(models == AVERAGE).tolist():
            pairs = self.averages[first + position]
            total = result[position]
            for model, row in pairs:
                total = rounded(total + read_values(tensors[model], row * width, (row + 1) * width, reader), dtype)
            result[position] = rounded(total / numpy.float32(len(pairs)), dtype)
        return result


@dataclasses.dataclass(eq=False, kw_only=True)
class AlignedTensor(MergedTensor):
    """An embedding or output layer, merged from the `sources` [vocabulary, hidden] with `rows` for each source.

    `order` has the sources' numbers in `rows`.
    """

    rows: tuple[Rows, ...]
    order: tuple[int, ...]
    padding: int = 0
    _means: dict[int, Values] = dataclasses.field(default_factory=dict)
    _means_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows[0].rows) + self.padding, *self.sources[0].shape[1:]

    @property
    def window(self) -> int:
        return max(super().window, ALIGNED_WINDOW)

    def _inputs(self, numbers: Sequence[int], start: int, stop: int, reader: TensorReader) -> list[Values]:
        width = self.shape[1]
        first, end = start // width, -(-stop // width)
        tokens = len(self.rows[0].rows)
        tensors = {number: flat(tensor) for number, tensor in zip(self.order, self.sources, strict=True)}
        inputs = []
        for index in numbers:
            values = self.rows[index].gathered(min(first, tokens), min(end, tokens), tensors, self.dtype, reader)
            if end > tokens:
                padding = numpy.tile(self._mean(index, tensors, reader), (end - max(first, tokens), 1))
                values = numpy.concatenate([values, padding])
            inputs.append(values.reshape(-1)[start - first * width :][: stop - start].copy())
        return inputs

    def _mean(self, index: int, tensors: Mapping[int, Tensor], reader: TensorReader) -> Values:
        """Compute the mean over the rows of model `index`. Sums are float64; torch's order of float32 sums is not defined."""
        with self._means_lock:
            if index not in self._means:
                rows, total = self.rows[index], numpy.zeros(self.shape[1])
                tokens = len(rows.rows)
                for first in range(0, tokens, MEAN_ROWS):
                    total += rows.gathered(first, min(first + MEAN_ROWS, tokens), tensors, self.dtype, reader).sum(
                        axis=0, dtype=numpy.float64
                    )
                self._means[index] = rounded((total / tokens).astype(numpy.float32), self.dtype)
            return self._means[index]
