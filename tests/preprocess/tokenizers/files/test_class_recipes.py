"""A tokenizer.json as its class of transformers writes it is read; one with a rule that the class replaces is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from lt_preprocess.tokenizers.files import class_recipes
from lt_preprocess.tokenizers.text_tokenizer import load_tokenizer
from lt_shared.console import BadData

LETTERS = ["\u2581", *"abcdefgxyzA1\u00e9\n", '"', "''", "ab", "\u2581a", "\u2581b", "\u2581\u2581", "##b", "##x"]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<mask>", "<cls>", "<sep>", "<eos>", "<bos>"]
TEXTS = [
    "",
    " ",
    "ab a",
    "  a   b\n\nab ",
    "A caf\u00e9 Cafe\u0301",
    "``x''",
    "a<mask>b <s> a",
    "\u4e2d\u6587a, b.",
    "a\tb\r\nc ",
    "\ufb01\u2460",
]
WITH_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def save(name: str, place: Path, **settings: Any) -> Any:
    """Write the tokenizer of class `name` with a small vocabulary as the class itself writes it."""
    tokenizer_class = getattr(transformers, name)
    order = ["<pad>", "</s>", "<unk>", *SPECIALS[4:], "<s>"] if name == "T5Tokenizer" else SPECIALS
    order = (
        ["<pad>", "<unk>", *(token for token in order if token not in ("<pad>", "<unk>"))] if name == "AlbertTokenizer" else order
    )
    order = ["<unk>", *(token for token in order if token != "<unk>")] if name == "XLNetTokenizer" else order
    entries = [*order, *LETTERS, *(WITH_BYTES if name == "GemmaTokenizer" else [])]
    if tokenizer_class.model is None or tokenizer_class.model.__name__ == "Unigram":
        settings["vocab"] = [(entry, 0.0 if entry in SPECIALS else -float(index)) for index, entry in enumerate(entries)]
    else:
        settings["vocab"] = {entry: index for index, entry in enumerate(entries)}
    if tokenizer_class.model is not None and tokenizer_class.model.__name__ == "BPE":
        settings["merges"] = [("\u2581", "a"), ("\u2581", "b"), ("a", "b"), ("\u2581", "\u2581")]
    tokenizer_class(**settings).save_pretrained(str(place))
    return transformers.AutoTokenizer.from_pretrained(str(place))


SETTINGS = {
    "BertTokenizer": [{"do_lower_case": False, "strip_accents": True}, {"tokenize_chinese_chars": False}],
    "AlbertTokenizer": [{"keep_accents": True, "do_lower_case": False}, {"add_prefix_space": False}],
    "DebertaV2Tokenizer": [{"do_lower_case": True, "split_by_punct": True}, {"add_prefix_space": False}],
    "XLNetTokenizer": [{"do_lower_case": True}],
    "XLMRobertaTokenizer": [{"add_prefix_space": False}],
}


@pytest.mark.parametrize("name", sorted(class_recipes.NAMES))
def test_a_class(tmp_path: Path, name: str) -> None:
    for number, settings in enumerate([{}, *SETTINGS.get(name, [])]):
        place = tmp_path / str(number)
        reference = save(name, place, **settings)
        assert type(reference).__name__ == name
        loaded = load_tokenizer(place, "parse")
        expected = [reference.encode(text, add_special_tokens=False) for text in TEXTS]
        assert [ids.tolist() for ids in loaded.encode_batch(TEXTS)] == expected


@pytest.mark.parametrize("name", sorted(class_recipes.NAMES))
@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"byte_fallback": None, "continuing_subword_prefix": "@@"}},
    ],
)
def test_a_rule_that_a_class_replaces(tmp_path: Path, name: str, rules: dict[str, Any]) -> None:
    save(name, tmp_path)
    path = tmp_path / "tokenizer.json"
    stored = json.loads(path.read_text())
    if "model" in rules:
        rules = {"model": stored["model"] | rules["model"]}
    path.write_text(json.dumps(stored | rules))
    with pytest.raises(BadData, match=f"{name} of transformers 5 replaces") as refused:
        load_tokenizer(tmp_path, "parse")
    assert "TokenizersBackend" in str(refused.value.hint)
