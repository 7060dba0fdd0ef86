"""lt-preprocess, gigatoken and tokenizers in turns, in one process, on one thread: `python turns.py TOKENIZER TEXTS`.

    python tests/bench/corpus.py /tmp/corpus
    python tests/bench/turns.py tokenizer.json /tmp/corpus/mixed.jsonl --megabytes 20 --rounds 4
    pip install --no-deps --target /tmp/newest --pre tokenizers
    PYTHONPATH=/tmp/newest python tests/bench/turns.py tokenizer.json /tmp/corpus/mixed.jsonl --beside tokenizers

Whatever else the machine does falls on all, and CPU seconds are counted: so the ratio holds on a busy machine, too. The first
round is cold; of the others the fastest counts. TEXTS are JSON lines. gigatoken and tokenizers read no tiktoken file: `--json`
names a tokenizer.json of the same ids (models.py makes Llama 4's). The numbers of tokens must be equal.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import corpus
import peers
from peers import MIB

Encode = Callable[[], int]


def lt_preprocess(tokenizer: Path, documents: list[bytes]) -> tuple[str, Encode]:
    """What encodes all documents and returns the number of tokens, after its name."""
    from lt_preprocess.texts import Texts
    from lt_preprocess.tokenizers import loading
    from lt_shared.tokenizers import tokenizer_files

    encoder = loading.load(tokenizer_files.find(tokenizer)).new_encoder()
    texts = [Texts.from_list(batch) for _, batch in peers.batches(documents, MIB)]
    return "lt-preprocess", lambda: sum(len(encoder.encode(batch)[0]) for batch in texts)


def gigatoken(tokenizer: Path, documents: list[bytes]) -> tuple[str, Encode]:
    import gigatoken

    theirs = gigatoken.Tokenizer(tokenizer)
    lists = [batch for _, batch in peers.batches(documents, 2 * MIB)]
    return "gigatoken", lambda: sum(len(theirs.encode_batch(batch, parallel=False).layout.content) for batch in lists)


def tokenizers(tokenizer: Path, documents: list[bytes]) -> tuple[str, Encode]:
    """The version that is installed; special tokens are text, as for lt-preprocess."""
    import tokenizers

    path = tokenizer if tokenizer.is_file() else tokenizer / "tokenizer.json"
    theirs = tokenizers.Tokenizer.from_file(str(path))
    lists = [[text.decode() for text in batch] for _, batch in peers.batches(documents, MIB)]
    options = {"add_special_tokens": False}
    if hasattr(theirs, "encode_batch_fast"):
        theirs.encode_special_tokens = True
        encode_batch = theirs.encode_batch_fast
    else:
        options["encode_special_tokens"] = True
        encode_batch = theirs.encode_batch
    return f"tokenizers {tokenizers.__version__}", lambda: sum(sum(map(len, encode_batch(texts, **options))) for texts in lists)


PEERS = {"gigatoken": gigatoken, "tokenizers": tokenizers}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the libraries that read no other file")
    parser.add_argument("--beside", nargs="+", choices=PEERS, default=["gigatoken"], metavar="LIBRARY", help=" ".join(PEERS))
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=4, help="after the cold one")
    chosen = parser.parse_args()
    os.environ |= peers.environment(1)
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "texts"
        corpus.write_texts(chosen.texts, store)
        documents = list(corpus.load_texts(store, chosen.megabytes))
    size_mb = sum(map(len, documents)) / corpus.MB
    seconds: dict[str, list[float]] = {}
    tokens = {}
    contenders = dict(
        [
            lt_preprocess(chosen.tokenizer, documents),
            *(PEERS[name](chosen.json or chosen.tokenizer, documents) for name in chosen.beside),
        ]
    )
    gc.collect()
    gc.disable()
    for _ in range(1 + chosen.rounds):
        for name, encode in contenders.items():
            start = time.process_time()
            tokens[name] = encode()
            seconds.setdefault(name, []).append(time.process_time() - start)
    for name, (cold, *warm) in seconds.items():
        print(f"{name}: {size_mb / min(warm):.0f} MB per CPU second warm, {size_mb / cold:.0f} cold; {tokens[name]:,} tokens")
    return 0 if len(set(tokens.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
