"""Made-up tokens instead of a dataset, for trials and measurements."""

import numpy as np

from lt_shared.data.sample_order.samples import Tokens


class MockSequences:
    """Megatron's mock data: 100,000 sequences that count from 1 to their random length and end with a document's end."""

    COUNT = 100_000
    LONGEST = 4096

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.lengths = np.random.default_rng(0).integers(1, self.LONGEST, size=self.COUNT, dtype=np.int32)

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        sequences = [self._sequence(number, length) for number, length in zip(numbers, self.lengths.take(numbers), strict=True)]
        for sequence in sequences:
            sequence[-1] = self.vocab_size - 1
        sequences[-1] = sequences[-1][:end]
        sequences[0] = sequences[0][start:]
        return np.concatenate(sequences)

    def _sequence(self, number: int, length: int) -> Tokens:
        return (np.arange(length) + 1) % self.vocab_size


class RandomSequences(MockSequences):
    """Mock data with random tokens, all equally likely, for measurements.

    A model learns to count in ten steps. Gradients near zero switch fewer bits, and a GPU at its power limit then runs faster
    than in real training.
    """

    def _sequence(self, number: int, length: int) -> Tokens:
        return np.random.default_rng(number).integers(self.vocab_size, size=length)
