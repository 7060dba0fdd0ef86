"""Compiled code reads arrays by address: an encoder keeps them, also when nobody else has the tokenizer any more."""

import subprocess
import sys
from pathlib import Path

# Freed memory is overwritten; a table of 1 MB is even given back to the system, and who reads it is killed.
SCRIPT = """
import gc, sys
import numpy as np
from lt_preprocess.tokenizers import loading
from lt_preprocess.texts import Texts
from lt_shared.tokenizers import tokenizer_files

texts = Texts.from_list(["caf\\u00e9 na\\u00efve 1234 \\u65e5\\u672c don't stop".encode() * 20])
tokenizer = loading.load(tokenizer_files.find(sys.argv[1]))
expected = tokenizer.new_encoder().encode(texts)[0].copy()
encoder = tokenizer.new_encoder()
del tokenizer
gc.collect()
others = [np.full(1 << size, 0xA5, np.uint8) for size in range(4, 22) for _ in range(8)]
assert (encoder.encode(texts)[0] == expected).all()
"""


def test_an_encoder_outlives_its_tokenizer(demo_tokenizer: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(demo_tokenizer)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
