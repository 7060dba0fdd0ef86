"""Shards that WebDataset, warcio, mosaicml-streaming and litdata wrote hold the texts that went into them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.readers import inputs
from lt_preprocess.readers.chunks import BEGINNING
from lt_preprocess.readers.slices import WHOLE
from lt_shared.console import BadData, NoInput

SAMPLES = Path(__file__).parent / "samples"
# As in samples/write.py.
TEXTS = ["one", "", 'a "quoted", word', "zwei\nZeilen", "ünïcode 漢字", "NA", "sieben " * 9]


def texts_of(path: Path, keys: tuple[str, ...] = ("text",)) -> list[str]:
    texts: list[str] = []
    for chunk in inputs.chunks(inputs.expand_patterns([str(path)]), WHOLE, BEGINNING, lambda size: None, keys):
        batch = chunk.batch(keys)
        assert not batch.bad_lines
        column = batch.columns[0]
        of_chunk = iter(column.texts.to_list())
        texts += ["".join(next(of_chunk).decode() for _ in range(count)) for count in column.texts_per_document.tolist()]
    return texts


@pytest.mark.parametrize(
    "name",
    [
        *("webdataset/shard.tar.gz", "warcio/a.warc.wet.gz", "streaming/plain", "streaming/zstd"),
        *("litdata/rows", "litdata/texts", "litdata/mixed", "litdata/zstd", "litdata/zstd_sample", "litdata/zstd_chunk"),
    ],
)
def test_the_texts_of_a_sample(name: str) -> None:
    assert texts_of(SAMPLES / name) == TEXTS


def test_other_columns() -> None:
    assert texts_of(SAMPLES / "streaming" / "plain", ("meta", "text")) == [f"m{number}" for number in range(len(TEXTS))]


def test_a_path_into_a_column_of_objects() -> None:
    assert texts_of(SAMPLES / "streaming" / "objects", ("meta.text",)) == TEXTS


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("streaming/plain", "body", "no column 'body'; there are meta, n, text"),
        ("streaming/plain", "n", "column 'n' is of type int, expected str or json"),
        ("streaming/uint16", "tokens", "column 'tokens' is of type ndarray:uint16, expected str or json"),
        ("litdata/mixed", "body", "no value 'body'; there are 'text', 'n'"),
        ("litdata/mixed", "n", "the items hold no_header_numpy:3, expected str"),
        ("litdata/int32", "text", "the items hold no_header_tensor:16, expected str"),
        ("litdata/rows", "body", "no value 'body'; there are 'text', 'n'"),
    ],
)
def test_what_holds_no_text_is_named(name: str, key: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        texts_of(SAMPLES / name, (key,))


@pytest.mark.parametrize(
    ("name", "shard"),
    [("streaming/plain", "shard.00001.mds"), ("litdata/mixed", "chunk-0-1.bin"), ("litdata/rows", "chunk-0-1.bin")],
)
def test_a_damaged_shard_is_named(tmp_path: Path, name: str, shard: str) -> None:
    shutil.copytree(SAMPLES / name, tmp_path / "a")
    path = tmp_path / "a" / shard
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(BadData, match=rf"{shard}: \d+ bytes, index.json says \d+"):
        texts_of(tmp_path / "a")
    for damaged in (content[:-3], content[: len(content) // 2], content + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match=shard) as error:
            texts_of(path)
        assert error.value.hint
    path.unlink()
    with pytest.raises(NoInput, match=f"{shard}: no such file, but index.json lists it"):
        texts_of(tmp_path / "a")


@pytest.mark.parametrize("index", [{"chunks": [], "config": {"data_format": ["str"]}}, {"shards": [], "version": 2}])
def test_an_index_without_shards(tmp_path: Path, index: dict[str, Any]) -> None:
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadData, match=r"index.json: lists no files"):
        inputs.expand_patterns([str(tmp_path)])


def test_merged_shards_have_the_order_of_the_index(tmp_path: Path) -> None:
    """mosaicml-streaming's merge_index writes an index over directories, whose names sort otherwise from the eleventh on."""
    shards = []
    for number in range(11):
        shutil.copytree(SAMPLES / "streaming" / "plain", tmp_path / str(number))
        of_directory = json.loads((tmp_path / str(number) / "index.json").read_text())["shards"]
        for shard in of_directory if number in (2, 10) else of_directory[:1]:
            shard["raw_data"]["basename"] = f"{number}/{shard['raw_data']['basename']}"
            shards.append(shard)
    (tmp_path / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    paths = inputs.expand_patterns([str(tmp_path)])
    assert paths == [f"{tmp_path}/{shard['raw_data']['basename']}" for shard in shards]
    assert texts_of(tmp_path)[-len(TEXTS) :] == TEXTS
