"""Merged tensors as files of their own: a range is computed when it is read.

A merge method works on the tensors of Hugging Face files: a threshold or an angle belongs to a query projection, which
Megatron stores in one tensor with keys and values. So a merged tensor is a row-major `View` of a file that does not exist, and
a format slices and joins it as any other tensor. `MergedFiles` computes a window of values when a reader asks for bytes in it.

Memory: a few windows, however large the tensor is and however many models are merged.
"""

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy

from lt_convert.tensors.blocks import Bits, TensorReader, flat, is_transposed
from lt_convert.tensors.casts import cast, to_float32
from lt_convert.tensors.merge_rules import Rule, Values
from lt_convert.tensors.output_files import Payload
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor, tensor_in_files

# Begins the name of a merged tensor's file: no path, because a path with a NUL cannot exist.
MERGED = "merged\0"
# Values in a window: few enough for the processor's cache, and for malloc to reuse the memory (with 1 << 17, TIES spent 5
# instead of 1 second of 10 in page faults). To read a window of a transposed tensor means to read a short range of
# every source row, so these windows are larger.
WINDOW, TRANSPOSED_WINDOW = 1 << 15, 1 << 22
# Formats interleave rows of up to three tensors, so several windows stay.
WINDOWS = 4


@dataclasses.dataclass(eq=False)
class MergedTensor:
    """The canonical tensor `name`, merged by `rule` from the values of `sources` in `dtype`.

    `sources` have equal shapes, and are cast to `dtype`; the result is cast to `result_dtype`.
    """

    name: str
    rule: Rule
    sources: tuple[Tensor, ...]
    dtype: str
    result_dtype: str
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _statistics: Any = None
    _is_prepared: bool = False

    @property
    def file(self) -> str:
        return MERGED + self.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sources[0].shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def window(self) -> int:
        has_transposed = any(chunk.view and is_transposed(chunk.view) for one in self.sources for chunk in one.chunks)
        return TRANSPOSED_WINDOW if has_transposed else WINDOW

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The tensors that are read to make it."""
        return self.sources

    def tensor(self) -> Tensor:
        return tensor_in_files(self.name, self.result_dtype, self.shape, [((0,) * len(self.shape), self.shape, self.file, 0)])

    def values(self, start: int, stop: int, reader: TensorReader) -> Bits:
        """The bits of values `start` to `stop`, in row-major order."""
        with self._lock:
            # The first thread computes the statistics, and others that need them wait.
            if not self._is_prepared:
                self._statistics = self.rule.statistics(functools.partial(self._windows, reader), self.dtype)
                self._is_prepared = True
        inputs = self._inputs(range(len(self.sources)), start, stop, reader)
        with numpy.errstate(over="ignore", invalid="ignore"):
            merged = self.rule.merged(inputs, start, self._statistics, self.dtype)
        return cast(merged.view(numpy.uint32), "float32", self.result_dtype, self.name)

    def _windows(self, reader: TensorReader, numbers: Sequence[int]) -> Iterator[tuple[int, list[Values]]]:
        for start in range(0, self.size, self.window):
            stop = min(start + self.window, self.size)
            yield start, self._inputs(numbers, start, stop, reader)

    def _inputs(self, numbers: Sequence[int], start: int, stop: int, reader: TensorReader) -> list[Values]:
        """Values `start` to `stop` of the sources with these numbers, as float32."""
        return [read_values(self.sources[number], start, stop, reader) for number in numbers]


def read_values(tensor: Tensor, start: int, stop: int, reader: TensorReader) -> Values:
    """Values `start` to `stop` of a tensor in row-major order, as float32, in a new array."""
    result: Values = numpy.empty(stop - start, numpy.float32)
    position = 0
    for bits in _parts(flat(tensor), start, stop, reader):
        result[position : position + len(bits)] = to_float32(bits, tensor.dtype)
        position += len(bits)
    return result


def _parts(tensor: Tensor, start: int, stop: int, reader: TensorReader) -> Iterator[Bits]:
    row_size = math.prod(tensor.shape[1:])
    if len(tensor.shape) > 2:
        for index in range(start // row_size, -(-stop // row_size)):
            begin = index * row_size
            yield from _parts(flat(tensor.at(index)), max(start - begin, 0), min(stop - begin, row_size), reader)
        return
    first, end = start // row_size, -(-stop // row_size)
    yield reader.rows(tensor, first, end).reshape(-1)[start - first * row_size : stop - first * row_size]


class MergedFiles(Files):
    """Reads merged tensors by the names of their files; `files` reads the sources."""

    def __init__(self, files: Files, tensors: Mapping[str, MergedTensor]):
        super().__init__(files.reader)
        self._sources = TensorReader(files)
        self._tensors = tensors
        self._windows: collections.OrderedDict[tuple[str, int], memoryview] = collections.OrderedDict()

    def size_bytes(self, path: str) -> int:
        tensor = self._tensors[path]
        return tensor.size * ITEM_BYTES[tensor.result_dtype]

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        tensor = self._tensors[path]
        window_bytes = tensor.window * ITEM_BYTES[tensor.result_dtype]
        filled = 0
        while filled < len(buffer):
            number, within = divmod(offset + filled, window_bytes)
            data = self._window(tensor, number)[within : within + len(buffer) - filled]
            buffer[filled : filled + len(data)] = data
            filled += len(data)

    def _window(self, tensor: MergedTensor, number: int) -> memoryview:
        key = tensor.file, number
        if key not in self._windows:
            start = number * tensor.window
            bits = tensor.values(start, min(start + tensor.window, tensor.size), self._sources)
            self._windows[key] = numpy.ascontiguousarray(bits).data.cast("B")
            if len(self._windows) > WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(key)
        return self._windows[key]


@dataclasses.dataclass(frozen=True, slots=True)
class MergedPayload(Payload):
    """A tensor of the result that is made of merged tensors."""

    merged: Mapping[str, MergedTensor]

    @property
    def read(self) -> tuple[Tensor, ...]:
        # A merge is never quantized.
        assert isinstance(self.tensor, Tensor)
        return tuple(source for file in self.tensor.files for source in self.merged[file].read)

    def contents(self, reader: TensorReader) -> Iterator[memoryview]:
        yield from Payload.contents(self, TensorReader(MergedFiles(reader.files, self.merged)))
