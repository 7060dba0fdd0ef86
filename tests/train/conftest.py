"""One small dataset of real text for all tests of lt-train."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import triton_interpreter
import zstandard
from layouts import train_all
from running import RUNS
from tokenizers import ByteLevelBPETokenizer

from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.data import indexed_dataset
from lt_shared.tokenizers import tokenizer_files

DEMO = Path(__file__).parent.parent / "demo"
DOCUMENTS = 400
EOD = 2047


@pytest.fixture(scope="session", autouse=True)
def fast_interpreter() -> None:
    triton_interpreter.hasten()


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., Dataset]:
    tokenizer = ByteLevelBPETokenizer.from_file(str(DEMO / "tokenizer/vocab.json"), str(DEMO / "tokenizer/merges.txt"))
    files = tokenizer_files.find(DEMO / "tokenizer")

    def write(prefix: Path, first: int = 0, documents: int = DOCUMENTS, sha256: str | None = None) -> Dataset:
        with (DEMO / "corpus.jsonl.zst").open("rb") as compressed:
            lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(compressed), encoding="utf-8").readlines()
        identity = Tokenizer(files.name, sha256 or files.sha256(), str(DEMO / "tokenizer"))
        with indexed_dataset.Writer(str(prefix), np.uint16) as writer:
            for line in lines[first : first + documents]:
                writer.append_document(np.array([*tokenizer.encode(json.loads(line)["text"]).ids, EOD]))
            dataset = Dataset(str(prefix), writer.documents, writer.tokens, "uint16", EOD + 1, EOD, identity)
            sidecar = json.dumps({"v": 1, "dataset": manifest.record_of(dataset)}).encode()
            writer.publish((manifest.sidecar_path(str(prefix)), sidecar))
        return dataset

    return write


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Dataset]) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "demo_text_document")


@pytest.fixture(scope="session")
def manifest_text(dataset: Dataset) -> str:
    end = {"v": manifest.VERSION, "kind": "end", "count": 1}
    return f"{json.dumps(manifest.record_of(dataset))}\n{json.dumps(end)}\n"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """Uninterrupted runs of RUNS, each in its directory."""
    place = tmp_path_factory.mktemp("finished")
    outcomes = train_all({name: (*options, dataset.prefix) for name, options in RUNS.items()}, place, ranks=2, saving=True)
    errors = {name: outcome.error for name, outcome in outcomes.items() if outcome.error}
    assert not errors, errors
    return place
