"""Where the tokens of a sample are."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order.parts import Source, part_of
from lt_shared.data.sample_order.samples import Samples, StoredSequences


def load(prefixes: list[str], samples: int, sequence_length: int, place: Path) -> Samples:
    opened = [StoredSequences(prefix) for prefix in prefixes]
    sources = [Source("", sequences, range(len(sequences.lengths)), 1.0 + number) for number, sequences in enumerate(opened)]
    part = part_of(sources, samples, sequence_length, 3)
    found = {}
    for number, index in enumerate(part.indices):
        found[index] = place / str(number)
        found[index].mkdir()
        index.make(found[index])
    return part.load(found)


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any), sequence_length=st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_spans_have_the_tokens_of_the_sample(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], sequence_length: int
) -> None:
    """Each span's tokens, read from the dataset by megatron-core's own reader, joined."""
    place = tmp_path_factory.mktemp("data")
    prefixes = [str(place / name) for name in "ab"]
    for prefix in prefixes:
        synthetic.write(Path(prefix), lengths)
    samples = load(prefixes, 12, sequence_length, place)
    datasets = [IndexedDataset(prefix) for prefix in prefixes]
    for number in range(len(samples)):
        spans = samples.spans(number)
        parts = [datasets[span.dataset].get(span.sequence, span.start, span.length) for span in spans]
        assert np.concatenate(parts).tolist() == samples[number].tolist()
        assert {span.dataset for span in spans} == {samples.dataset(number)}


def test_a_blend_of_hundreds_of_datasets_needs_few_open_files(tmp_path: Path) -> None:
    """Indices hold no descriptors, and each `.bin` is opened again where the limit asks for it."""
    script = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from lt_shared.data.sample_order.samples import StoredSequences
import numpy as np
datasets = [StoredSequences(prefix) for prefix in sys.argv[1:]]
for _ in range(2):
    print(sum(int(dataset.read(np.array([0]), 0, 3)[1]) for dataset in datasets))
print(len(os.listdir("/proc/self/fd")) < 80)
"""
    prefixes = []
    for number in range(150):
        prefixes.append(str(tmp_path / f"d{number}"))
        with indexed_dataset.Writer(prefixes[-1], np.uint16) as writer:
            writer.append_document(np.array([1, number, 3], np.uint16))
            writer.publish()
    done = subprocess.run([sys.executable, "-c", script, *prefixes], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(sum(range(150)))] * 2 + ["True"], done.stderr
