"""Where the time of one worker goes, and JSON lines to ids on one thread: `python stages.py WHO MODEL TOKENIZERS FILE DIRECTORY`.

WHO is lt-preprocess, whose stages run here one after the other as a worker and the writing thread run them, or gigatoken, whose
`encode_files` does the first two in one call. The result is one JSON line with the CPU seconds of each stage.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import models

Result = TypeVar("Result")


class Clock:
    """Sums the CPU seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, stage: str, work: Callable[[], Result]) -> Result:
        start = time.process_time()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start
        return result


def lt_preprocess(model: models.Model, file: Path, directory: Path) -> dict[str, float]:
    import numpy as np

    from lt_preprocess.documents import assembly
    from lt_preprocess.readers import inputs
    from lt_preprocess.readers.chunks import Chunk, Position
    from lt_preprocess.readers.slices import Slice
    from lt_preprocess.tokenizers import loading
    from lt_shared.data import indexed_dataset
    from lt_shared.tokenizers import tokenizer_files

    loaded = loading.load(tokenizer_files.find(model.native))
    encoder = loaded.new_encoder()
    dtype = np.dtype(indexed_dataset.dtype_for(loaded.vocab_size))

    def work(chunk: Chunk, clock: Clock) -> assembly.Documents:
        columns = clock.timed("parse", lambda: chunk.batch(("text",))).columns
        ids, lengths = clock.timed("encode", lambda: encoder.encode(columns[0].texts))
        return clock.timed("assemble", lambda: assembly.assemble(ids, lengths, columns[0].texts_per_document, None, dtype))

    def chunks(path: Path) -> "list[Chunk]":
        return list(inputs.chunks([str(path)], Slice(), Position(), lambda size: None, ("text",)))

    few_words = directory / "few_words.jsonl"
    few_words.write_text('{"text": "warm up"}\n')
    for chunk in chunks(few_words):
        work(chunk, Clock())
    clock = Clock()
    with indexed_dataset.Writer(str(directory / "stages"), dtype) as writer:
        for chunk in clock.timed("read", lambda: chunks(file)):
            made = work(chunk, clock)
            clock.timed("write", lambda made=made: writer.append(*made))
        clock.timed("write", writer.publish)
    return clock.seconds


def gigatoken(model: models.Model, file: Path, directory: Path) -> dict[str, float]:
    import gigatoken as library

    tokenizer = library.Tokenizer(model.tokenizer_json)
    tokenizer.encode_batch([b"warm up"], parallel=False)
    clock = Clock()
    clock.timed("encode", lambda: tokenizer.encode_files(library.JsonlFileSource([file]), parallel=False))
    return clock.seconds


def main() -> None:
    who, model, tokenizers, file, directory = sys.argv[1:]
    measure = {"lt-preprocess": lt_preprocess, "gigatoken": gigatoken}[who]
    print(json.dumps(measure(models.models(Path(tokenizers))[model], Path(file), Path(directory))))


if __name__ == "__main__":
    main()
