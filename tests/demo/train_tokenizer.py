"""Train the demo tokenizer: GPT-2's byte-level BPE with 2048 entries, on corpus.jsonl.zst.

Writes GPT-2's two files, numbered as GPT-2 numbers its own: the 256 byte symbols, the merges in order, <|endoftext|>
last (2047). Text is cut by GPT-2's pattern, without a space before the first word. The trainer would put a special
token first, so it learns 2047 entries and <|endoftext|> is appended. The result does not depend on the number of
threads. Takes about a second.

    python tests/demo/train_tokenizer.py [DIRECTORY]
"""

import json
import sys
from pathlib import Path

import zstandard
from tokenizers import ByteLevelBPETokenizer

CORPUS = Path(__file__).with_name("corpus.jsonl.zst")
VOCAB_SIZE = 2048


def main(directory: Path) -> None:
    """Write vocab.json and merges.txt to the directory."""
    with zstandard.open(CORPUS, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    tokenizer.train_from_iterator(texts, vocab_size=VOCAB_SIZE - 1, show_progress=False)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(directory))
    vocab_file = directory / "vocab.json"
    vocab = json.loads(vocab_file.read_text(encoding="utf-8")) | {"<|endoftext|>": VOCAB_SIZE - 1}
    vocab_file.write_text(json.dumps(vocab) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS.with_name("tokenizer"))
