"""Hostile `tokenizer.json` files: refused, or read as the library reads them; never a hang, a crash or all of the memory."""

import json
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import pytest
import tokenizers

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL

TEXTS = ["a" * 90 + "!", "hello <1> b [UNK] \u00e9"]
SYMBOLS = {symbol: number for number, symbol in enumerate(BYTE_OF_SYMBOL)}

Content = dict[str, Any]


def sound() -> Content:
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": SYMBOLS | {"aa": 256, "zz": 257}, "merges": ["a a", "z z"]},
    }


def added(number: int, content: str, **fields: bool) -> Content:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **plain, "special": False} | fields


def splitting(regex: str) -> Content:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, spell]}}


def replacing(pattern: Content, content: str, times: int = 1) -> Content:
    steps = [{"type": "Replace", "pattern": pattern, "content": content}] * times
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def vocabulary(**ids: int) -> Content:
    return {"model": {"type": "BPE", "vocab": SYMBOLS | ids, "merges": []}}


HOSTILE: dict[str, Content] = {
    "largest id": vocabulary(zz=2**31 - 1),
    "id beyond int32": vocabulary(a=2**31),
    "id of 32 bits": vocabulary(a=2**32 - 1),
    "id beyond 64 bits": vocabulary(a=2**64),
    "negative id": vocabulary(a=-1),
    "id that is no number": vocabulary(a="1"),  # type: ignore[arg-type]
    "id of 32 bits, library": {"model": {"type": "WordLevel", "vocab": {"a": 2**32 - 2, "[UNK]": 0}, "unk_token": "[UNK]"}},
    "empty vocabulary": {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    "no unknown token": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}, "pre_tokenizer": None},
    "unknown token is missing": {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 2**60,
            "vocab": {"a": 0},
        }
    },
    "regex that backtracks for ever": splitting("(a+)+$"),
    "alternation that backtracks for ever": splitting("(a|aa)+$"),
    "many repetitions": splitting("(?:a{1,1000}){1,1000}{1,1000}"),
    "no regex": splitting("(((("),
    "normalizer that backtracks for ever": replacing({"Regex": "(a+)+$"}, "b"),
    "normalizer that multiplies": replacing({"String": "a"}, "a" * 10, times=12),
    "normalizer with a long prefix": {"normalizer": {"type": "Prepend", "prepend": "a" * 1_000_000}},
    "damaged normalizer": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////fwAAAAAAAAAA"}},
    "words of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "added tokens": {"added_tokens": [added(258 + number, f"<{number}>") for number in range(30_000)]},
    "special added tokens": {"added_tokens": [added(258 + number, f"<{number}>", special=True) for number in range(30_000)]},
    "long added token": {"added_tokens": [added(258, "x" * 1_000_000)]},
    "empty added token": {"added_tokens": [added(258, "")]},
    "added token far away": {"added_tokens": [added(2**32 - 1, "<1>")]},
    "added token further away": {"added_tokens": [added(10**30, "<1>")]},
}

# Reads the file and encodes; exits with 0 or, for what is refused, 65. Most of the memory is for the program itself.
ENCODE = """
import resource, sys
from lt_shared import console
from lt_shared.tokenizers import tokenizer_files
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
from lt_preprocess.tokenizers import loading
from lt_preprocess.texts import Texts
try:
    encoder = loading.load(tokenizer_files.find(sys.argv[1])).new_encoder()
    ids, _ = encoder.encode(Texts.from_list([text.encode() for text in sys.argv[2:]]))
except console.BadData as error:
    print(error)
    sys.exit(65)
print(ids.tolist())
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_or_read_as_the_library_reads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(sound() | HOSTILE[name]))
    command = [nursery.light_python(), "-c", ENCODE, path, *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    if done.returncode == 65:
        assert str(path) in done.stdout
        return
    assert done.returncode == 0, done.stderr[-2000:]
    library = tokenizers.Tokenizer.from_str(path.read_text())
    library.encode_special_tokens = True
    assert json.loads(done.stdout) == [number for text in TEXTS for number in library.encode(text).ids]


@pytest.mark.parametrize("nesting", [200, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting(tmp_path: Path, nesting: int, opening: str) -> None:
    path = tmp_path / "tokenizer.json"
    nested = opening * nesting + "0" + ("]" if opening == "[" else "}") * nesting
    path.write_text(json.dumps(sound()).replace('"normalizer": null', f'"normalizer": {nested}'))
    with pytest.raises(BadData, match=r"tokenizer\.json: not"):
        loading.load(tokenizer_files.find(path))


@pytest.mark.parametrize(
    ("place", "twice"),
    [
        ('"normalizer":', '"normalizer": {"type": "Lowercase"}, "normalizer":'),
        ('"vocab": {', '"vocab": {"a": 99, '),
        ('"model":', '"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "model":'),
        ('"merges":', '"merges": [], "merges":'),
    ],
)
def test_a_name_twice_is_refused(tmp_path: Path, place: str, twice: str) -> None:
    """The library takes the last vocabulary, and of some fields the first or none."""
    path = tmp_path / "tokenizer.json"
    content = json.dumps(sound())
    assert place in content
    path.write_text(content.replace(place, twice, 1))
    with pytest.raises(BadData, match="twice"):
        loading.load(tokenizer_files.find(path))


def test_a_configuration_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(sound() | {"added_tokens": [added(258, "<eos>", special=True)]}))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>", "eos_token": "aa"}')
    with pytest.raises(BadData, match=r"tokenizer_config\.json: .*'eos_token' twice"):
        loading.load(tokenizer_files.find(path))


TEKKEN_CONFIG = {"pattern": "a", "default_vocab_size": 257, "default_num_special_tokens": 1}
TEKKEN: dict[str, Callable[[], str]] = {
    "nested": lambda: "[" * 100_000,
    "infinite rank": lambda: json.dumps({"config": TEKKEN_CONFIG, "vocab": [{"token_bytes": "YQ==", "rank": 1}]}).replace(
        '"rank": 1', '"rank": 1e999'
    ),
    "no objects": lambda: json.dumps({"config": TEKKEN_CONFIG, "vocab": [1, 2], "special_tokens": 5}),
    "special tokens without end": lambda: json.dumps(
        {"config": TEKKEN_CONFIG | {"default_vocab_size": 10**12, "default_num_special_tokens": 10**12}, "vocab": []}
    ),
    "negative": lambda: json.dumps({"config": TEKKEN_CONFIG | {"default_num_special_tokens": -5}, "vocab": []}),
}


@pytest.mark.parametrize("name", TEKKEN)
def test_hostile_tekken_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tekken.json"
    path.write_text(TEKKEN[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadData, match=r"tekken\.json"):
        loading.load(tokenizer_files.find(path)).new_encoder().encode(Texts.from_list([b"a"]))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20
