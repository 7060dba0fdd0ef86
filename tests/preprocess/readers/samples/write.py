"""Write the samples beside this file with the libraries that own their formats; no test runs this.

pip install datasets==5.2.0 webdataset==1.0.2 warcio==1.8.1 datatrove==0.10.1 mosaicml-streaming==0.13.0 litdata==0.2.76
python write.py datasets webdataset warcio datatrove streaming litdata
"""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEXTS = ["one", "", 'a "quoted", word', "zwei\nZeilen", "ünïcode 漢字", "NA", "sieben " * 9]
TOKENS = [[5, 6, 7, 0], [0], [65535, 1, 2, 3, 4, 0], [9, 9, 0]]


def directory(name: str) -> Path:
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def write_datasets() -> None:
    import datasets  # type: ignore[import-not-found]

    rows = datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "text": TEXTS})
    shuffled = rows.shuffle(seed=3)
    shuffled.save_to_disk(directory("datasets") / "train", num_shards=3)
    (HERE / "datasets" / "texts.json").write_text(json.dumps(list(shuffled["text"])))


def write_webdataset() -> None:
    import webdataset  # type: ignore[import-not-found]

    with webdataset.TarWriter(str(directory("webdataset") / "shard.tar.gz")) as writer:
        for number, text in enumerate(TEXTS):
            fields = {"json": {"text": text, "n": number}} if number % 2 else {"txt": text, "cls": number, "json": {"n": number}}
            writer.write({"__key__": f"a/{number:04d}", **fields})


def write_warcio() -> None:
    from warcio.warcwriter import WARCWriter  # type: ignore[import-not-found]

    with (directory("warcio") / "a.warc.wet.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        writer.write_record(writer.create_warcinfo_record("a.warc.wet.gz", {"software": "warcio"}))
        for number, text in enumerate(TEXTS):
            content = io.BytesIO(text.encode())
            writer.write_record(
                writer.create_warc_record(f"http://a/{number}", "conversion", payload=content, warc_content_type="text/plain")
            )


def write_datatrove() -> None:
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile  # type: ignore[import-not-found]

    path = directory("datatrove")
    file = TokenizedFile(str(path), "00000.ds", save_index=True, token_size=2)
    for tokens in TOKENS:
        file.write(tokens, None)
    file.write_final_metadata()
    file.close()


def write_streaming() -> None:
    import numpy as np
    from streaming import MDSWriter  # type: ignore[import-not-found]

    path = directory("streaming")
    columns = {"text": "str", "n": "int", "meta": "json"}
    for name, options in {"plain": {}, "zstd": {"compression": "zstd"}}.items():
        with MDSWriter(out=str(path / name), columns=columns, size_limit=350, **options) as writer:
            for number, text in enumerate(TEXTS):
                writer.write({"text": text, "n": number, "meta": [f"m{number}"]})
    with MDSWriter(out=str(path / "objects"), columns={"meta": "json"}) as writer:
        for text in TEXTS:
            writer.write({"meta": {"text": text}})
    encodings = (("ndarray", "ndarray", np.uint16), ("uint16", "ndarray:uint16", np.uint16), ("bytes", "bytes", np.int64))
    for name, encoding, dtype in encodings:
        with MDSWriter(out=str(path / name), columns={"tokens": encoding}) as writer:
            for tokens in TOKENS:
                array = np.array(tokens, dtype)
                writer.write({"tokens": array.tobytes() if encoding == "bytes" else array})


def write_litdata() -> None:
    import numpy as np
    import torch
    from litdata.streaming.item_loader import TokensLoader  # type: ignore[import-not-found]
    from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found]

    path = directory("litdata")

    def write(name: str, items: list[Any], **options: Any) -> None:
        (path / name).mkdir()
        writer = BinaryWriter(str(path / name), chunk_size=4, **options)
        for number, item in enumerate(items):
            writer[number] = item
        writer.done()
        writer.merge()

    write("rows", [{"text": text, "n": number} for number, text in enumerate(TEXTS)])
    write("texts", TEXTS)
    write("mixed", [{"text": text, "n": np.arange(2)} for text in TEXTS])
    write("zstd", [{"text": text, "n": np.arange(2)} for text in TEXTS], compression="zstd")
    write("zstd_sample", [{"text": text, "n": np.arange(2)} for text in TEXTS], compression="zstd", compression_level="sample")
    write("zstd_chunk", [{"text": text, "n": np.arange(2)} for text in TEXTS], compression="zstd", compression_level="chunk")
    write("int32", [torch.tensor(tokens, dtype=torch.int32) for tokens in TOKENS], item_loader=TokensLoader())
    write("numpy", [np.array(tokens, np.uint16) for tokens in TOKENS], item_loader=TokensLoader())
    write("dictionary", [{"tokens": np.array(tokens, np.uint16)} for tokens in TOKENS])


if __name__ == "__main__":
    for library in sys.argv[1:]:
        globals()[f"write_{library}"]()
