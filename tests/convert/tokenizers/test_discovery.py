"""Which tokenizer belongs to a checkpoint, and that a record cannot point elsewhere."""

import json
from pathlib import Path

import pytest

from lt_convert.tensors.source_files import Files
from lt_convert.tokenizers import discovery
from lt_shared.console import BadData
from lt_shared.contracts.manifest import Tokenizer
from lt_shared.tokenizers import tokenizer_files

GPT2 = Path(__file__).parents[2] / "demo" / "tokenizer"


def test_beside_a_model(tmp_path: Path) -> None:
    with Files() as files:
        assert discovery.beside_model(str(tmp_path), files) is None
        tokenizer_files.find(GPT2).copy_to(tmp_path)
        found = discovery.beside_model(str(tmp_path), files)
    assert found is not None
    assert found.sha256() == tokenizer_files.find(GPT2).sha256()


@pytest.mark.parametrize("name", ["../secret/vocab.json", "/etc/passwd", "..", 7, ["a"]])
def test_record_names_only_what_lies_beside_it(tmp_path: Path, name: object) -> None:
    (tmp_path / "lt-convert.json").write_text(json.dumps({"tokenizer_file": name}))
    with Files() as files, pytest.raises(BadData, match=r"lt-convert\.json: malformed"):
        discovery.beside_model(str(tmp_path), files)


def test_of_a_run(tmp_path: Path) -> None:
    original = tokenizer_files.find(GPT2)
    saved = Tokenizer("gpt2", original.sha256(), str(GPT2))
    assert discovery.of_run(str(tmp_path), None, Files()) is None
    elsewhere = discovery.of_run(str(tmp_path), saved, Files())
    assert elsewhere is not None
    assert elsewhere.directory == GPT2
    original.copy_to(tmp_path / "tokenizer")
    beside = discovery.of_run(str(tmp_path), saved, Files())
    assert beside is not None
    assert beside.directory == tmp_path / "tokenizer"
    with pytest.raises(BadData, match="not the tokenizer gpt2 that the checkpoint was trained with"):
        discovery.of_run(str(tmp_path), Tokenizer("gpt2", "0" * 64, None), Files())
