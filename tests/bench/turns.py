"""lt-preprocess and gigatoken in turns, in one process, on one thread: `python turns.py TOKENIZER TEXTS [--for-gigatoken FILE]`.

    python tests/bench/corpus.py /tmp/corpus
    python tests/bench/turns.py tokenizer.json /tmp/corpus/mixed.jsonl --megabytes 20 --rounds 4

Whatever else the machine does falls on both, and CPU seconds are counted: so the ratio holds on a busy machine, too. The first
round is cold; of the others the fastest counts. TEXTS are JSON lines. gigatoken reads no tiktoken file of a model that it does
not know: `--for-gigatoken` names a tokenizer.json of the same ids (models.py makes Llama 4's). The numbers of tokens must be
equal.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import corpus
import peers
from peers import MIB


def encoders(tokenizer: Path, for_gigatoken: Path, documents: list[bytes]) -> dict[str, Callable[[], int]]:
    """What encodes all documents and returns the number of tokens, by name."""
    import gigatoken

    from lt_preprocess.texts import Texts
    from lt_preprocess.tokenizers import loading
    from lt_shared.tokenizers import tokenizer_files

    ours = loading.load(tokenizer_files.find(tokenizer)).new_encoder()
    theirs = gigatoken.Tokenizer(for_gigatoken)
    texts = [Texts.from_list(batch) for _, batch in peers.batches(documents, MIB)]
    lists = [batch for _, batch in peers.batches(documents, 2 * MIB)]
    return {
        "lt-preprocess": lambda: sum(len(ours.encode(batch)[0]) for batch in texts),
        "gigatoken": lambda: sum(len(theirs.encode_batch(batch, parallel=False).layout.content) for batch in lists),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--for-gigatoken", type=Path, metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=4, help="after the cold one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "texts"
        corpus.write_texts(chosen.texts, store)
        documents = list(corpus.load_texts(store, chosen.megabytes))
    size_mb = sum(map(len, documents)) / corpus.MB
    seconds: dict[str, list[float]] = {}
    tokens = {}
    contenders = encoders(chosen.tokenizer, chosen.for_gigatoken or chosen.tokenizer, documents)
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
