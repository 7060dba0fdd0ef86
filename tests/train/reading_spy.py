"""lt-train as one rank that writes down every token it reads: `python reading_spy.py FILE ARGUMENTS`, as torchrun starts it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lt_train import cli
from lt_train.data.loader import Loader

file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
original = Loader.batches


def batches(*arguments: Any) -> Iterator[Any]:
    """Each micro batch when the step asks for it: int64 [samples, sequence_length + 1] at the end of the file."""
    for batch in original(*arguments):
        tokens = torch.cat((batch["tokens"], batch["labels"][:, -1:]), 1)
        with file.open("ab") as written:
            written.write(tokens.numpy().tobytes())
        yield batch


Loader.batches = batches  # type: ignore[method-assign]
cli.main()
