"""What a step reports, where it can be calculated by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from running import SMALL, losses, train

from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset

VOCABULARY = 2048
EOD = VOCABULARY - 1


@pytest.fixture
def short_documents(tmp_path: Path) -> Dataset:
    """Documents of three tokens and an end: every fourth position is masked by --eod-mask-loss."""
    prefix = str(tmp_path / "short")
    dataset = Dataset(prefix, 900, 3600, "uint16", VOCABULARY, EOD)
    with indexed_dataset.Writer(prefix, np.uint16) as writer:
        for document in range(900):
            writer.append_document(np.array([document % 1000, document % 777, document % 555, EOD]))
        sidecar = json.dumps({"v": 1, "dataset": manifest.record_of(dataset)}).encode()
        writer.publish((manifest.sidecar_path(prefix), sidecar))
    return dataset


@pytest.mark.parametrize("mask", [("--eod-mask-loss",), ()])
def test_the_mean_loss_is_over_the_tokens_that_count(mask: tuple[str, ...], short_documents: Dataset, tmp_path: Path) -> None:
    """A model whose weights are all but zero gives every token the same probability: each loss is the vocabulary's logarithm."""
    run = tmp_path / "run"
    options = ("--init-method-std", "1e-7", "--lr", "1e-9", "--train-iters", "2", "--ranks", "2", "--save", str(run))
    done = train(*SMALL, *options, *mask, short_documents.prefix)
    assert done.code == 0, done.err
    found = losses(run)
    assert {kind for kind, _ in found} == {"step", "eval"}
    assert list(found.values()) == pytest.approx([math.log(VOCABULARY)] * len(found), abs=1e-5)
