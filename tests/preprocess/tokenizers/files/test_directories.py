"""A directory gives the ids that AutoTokenizer of transformers gives, whichever of its files say what, or is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

from lt_preprocess.tokenizers.split_patterns import LLAMA3, QWEN2
from lt_preprocess.tokenizers.text_tokenizer import load_tokenizer
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files

BENGALI = "\u09b9\u09df"
PIECES = [
    "a ",
    "  ",
    "b",
    "\n",
    "word ",
    " caf\u00e9 ",
    "cafe\u0301",
    BENGALI,
    " \u2460",
    "<mask>",
    "<|endoftext|>",
    "<s>",
    "x <tool> y",
    "<tool><|user|>",
]
TEXTS = ["", "x", " lead", "two  spaces ", *("".join(PIECES[index::step]) for step in (2, 3, 5) for index in range(step))]


def token(content: str, **flags: bool) -> dict[str, Any]:
    return dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False) | flags | {"content": content}


def decoder(first: int, *tokens: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(first + number): each for number, each in enumerate(tokens)}}


@pytest.fixture(scope="module")
def pair(demo_tokenizer: Path) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(demo_tokenizer / name, place)

    return write


@pytest.fixture(scope="module")
def converted(demo_tokenizer: Path) -> dict[str, Any]:
    made = ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    content: dict[str, Any] = json.loads(made._tokenizer.to_str())
    return content


def train_sentencepiece(prefix: Path, **settings: Any) -> None:
    """A model with Llama's rules, `prefix`.model."""
    sentencepiece.SentencePieceTrainer.train(
        model_prefix=str(prefix),
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **settings,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    lines = (f"some words number {number} and others of kind {number * 7 % 13} caf\u00e9" for number in range(2000))
    (place / "text").write_text("\n".join(lines))
    train_sentencepiece(place / "tokenizer", input=str(place / "text"), vocab_size=330)
    return place / "tokenizer.model"


def check_against_transformers(place: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(place))._tokenizer
    reference.no_truncation()
    for mode in ("parse", "text"):
        found = load_tokenizer(place, "parse" if mode == "parse" else "text")
        reference.encode_special_tokens = mode == "text"
        assert found.vocab_size == max(reference.get_vocab(with_added_tokens=True).values()) + 1
        expected = [encoding.ids for encoding in reference.encode_batch(TEXTS, add_special_tokens=False)]
        assert [ids.tolist() for ids in found.encode_batch(TEXTS)] == expected


GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
TOOL, USER = token("<tool>", normalized=True), token("<|user|>", special=True)
GPT2_FILES: dict[str, dict[str, Any]] = {
    "decoder": {"tokenizer_config": GPT2 | decoder(2048, TOOL, USER)},
    "stripping": {"tokenizer_config": GPT2 | decoder(2048, token("<tool>", lstrip=True), token("<|user|>", rstrip=True))},
    "single word": {"tokenizer_config": GPT2 | decoder(2048, token("word", single_word=True, normalized=True))},
    "older files": {
        "tokenizer_config": GPT2,
        "added_tokens": {"<tool>": 2048, "<|user|>": 2049},
        "special_tokens_map": {"eos_token": "<|user|>", "pad_token": "[PAD]"},
    },
    "the decoder comes first": {
        "tokenizer_config": GPT2 | decoder(2048, TOOL) | {"eos_token": "<tool>"},
        "added_tokens": {"<|user|>": 2048},
        "special_tokens_map": {"eos_token": "<|user|>"},
    },
    "a space before texts": {"tokenizer_config": GPT2 | {"add_prefix_space": True} | decoder(2048, TOOL)},
    "a token of the vocabulary": {"tokenizer_config": GPT2 | decoder(2047, token("<|endoftext|>", special=True), token("word"))},
    "a name alone": {
        "tokenizer_config": GPT2 | {"pad_token": "<pad>", "eos_token": {"__type": "AddedToken"} | token("</s>", lstrip=True)}
    },
}


@pytest.mark.parametrize("name", GPT2_FILES)
def test_files_beside_a_gpt2_pair(tmp_path: Path, pair: Callable[[Path], None], name: str) -> None:
    pair(tmp_path)
    for file, content in GPT2_FILES[name].items():
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    check_against_transformers(tmp_path)


FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
NFC = {"type": "NFC"}
CONVERTED: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "added beside": ({}, [TOOL | {"id": 2048}], FAST | decoder(2048, TOOL, USER)),
    "a name beside": ({}, [], FAST | {"pad_token": "<tool>"}),
    "normal form": ({"normalizer": NFC}, [token(BENGALI, normalized=True) | {"id": 2048}], FAST),
    "composed": ({"normalizer": NFC}, [token("cafe\u0301", normalized=True, lstrip=True) | {"id": 2048}], FAST),
    "composed by two": ({"normalizer": {"type": "NFKC"}}, [token("cafe\u0301", normalized=True) | {"id": 2048}], FAST),
    "lower case": ({"normalizer": {"type": "Lowercase"}}, [token("WORD", normalized=True) | {"id": 2048}], FAST),
    "a space before texts": ({}, [], GPT2 | {"add_prefix_space": True}),
    "no space before texts": ({"prefix": True}, [], GPT2 | {"add_prefix_space": False}),
    "a token of the model's own": ({}, [], FAST | {"image_token": "<|user|>", "boi_token": token("<tool>")}),
    "own tokens in an object": ({}, [], FAST | {"extra_special_tokens": {"image_token": "<tool>"}, "pad_token": "<|user|>"}),
    "own tokens as they were saved": ({}, [], FAST | {"model_specific_special_tokens": {"image_token": "<tool>"}}),
    "an older list beside the newer": (
        {},
        [],
        FAST | {"extra_special_tokens": ["<|user|>"], "additional_special_tokens": ["<tool>"]},
    ),
    "an older list alone": ({}, [], FAST | {"additional_special_tokens": ["<|user|>", "<tool>"]}),
    "other flags": ({}, [TOOL | {"id": 2048}], FAST | decoder(2048, token("<tool>", lstrip=True, special=True))),
    "a name that its class gives": (
        {"normalizer": NFC},
        [],
        {"tokenizer_class": "GPTNeoXTokenizer", "pad_token": None} | decoder(2048, TOOL),
    ),
    "of a class that reads the file": ({"prefix": True}, [], FAST | {"add_prefix_space": False}),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_files_beside_a_tokenizer_json(tmp_path: Path, converted: dict[str, Any], name: str) -> None:
    change, added, config = CONVERTED[name]
    content = json.loads(json.dumps(converted)) | {"normalizer": change.get("normalizer"), "added_tokens": added}
    content["pre_tokenizer"]["add_prefix_space"] = change.get("prefix", False)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    check_against_transformers(tmp_path)


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
MODELS: dict[str, dict[str, Any]] = {
    "new": LLAMA | {"legacy": False} | decoder(330, token("<|endoftext|>", special=True), USER, token("<tool>")),
    "legacy": LLAMA | {"legacy": True} | decoder(330, USER, token("<tool>")),
    "not said": LLAMA | decoder(330, USER, token("<tool>", rstrip=True)),
    "no space before texts": LLAMA | {"add_prefix_space": False} | decoder(330, USER, token("<tool>")),
    "another name of the class": LLAMA | {"tokenizer_class": "Phi3Tokenizer"} | decoder(330, USER, token("<tool>")),
    "a control symbol that is not special": LLAMA
    | {"eos_token": "<|user|>"}
    | {"added_tokens_decoder": {"2": token("</s>", rstrip=True), "330": USER}},
    "nothing but a control symbol that is not special": LLAMA
    | {"eos_token": "<s>"}
    | {"added_tokens_decoder": {"2": token("</s>", rstrip=True)}},
}


@pytest.mark.parametrize("name", MODELS)
def test_files_beside_a_sentencepiece_model(tmp_path: Path, model: Path, name: str) -> None:
    shutil.copy(model, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(MODELS[name]))
    check_against_transformers(tmp_path)


def test_a_list_that_the_control_symbols_replace(tmp_path: Path, model: Path) -> None:
    """transformers puts a SentencePiece model's control symbols in the place of the list in special_tokens_map.json."""
    shutil.copy(model, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"pad_token": "<|user|>", "additional_special_tokens": ["<tool>"]})
    )
    check_against_transformers(tmp_path)


LLAMA_JSON: dict[str, dict[str, Any]] = {
    "as saved": {},
    "no space before texts": {"add_prefix_space": False},
    "legacy": {"legacy": True},
    "new": {"legacy": False},
    "a space before texts": {"add_prefix_space": True} | decoder(330, USER, token("<tool>", rstrip=True)),
}


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("name", LLAMA_JSON)
def test_a_llama_class_beside_a_tokenizer_json(tmp_path: Path, model: Path, name: str, is_legacy: bool) -> None:
    from transformers import AutoTokenizer

    source, place = tmp_path / "source", tmp_path / "saved"
    source.mkdir()
    shutil.copy(model, source)
    (source / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"legacy": is_legacy}))
    AutoTokenizer.from_pretrained(str(source)).save_pretrained(str(place))
    config = place / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | LLAMA_JSON[name]))
    check_against_transformers(place)
    # As transformers 4 writes it: a space before every text, or before none.
    for spelling in ([PREPEND, MARK_SPACES], [MARK_SPACES]):
        set_rules(place, {"normalizer": {"type": "Sequence", "normalizers": spelling}, "pre_tokenizer": None})
        check_against_transformers(place)


PREPEND = {"type": "Prepend", "prepend": "\u2581"}
MARK_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def set_rules(place: Path, rules: dict[str, Any]) -> None:
    path = place / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))


@pytest.fixture
def unlisted(tmp_path: Path, model: Path) -> Path:
    """A tokenizer.json of SentencePiece's kind that lists no added token."""
    from transformers import AutoTokenizer

    source, place = tmp_path / "source", tmp_path / "unlisted"
    source.mkdir()
    shutil.copy(model, source)
    (source / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"legacy": False}))
    AutoTokenizer.from_pretrained(str(source)).save_pretrained(str(place))
    set_rules(place, {"added_tokens": []})
    return place


def test_a_token_of_the_vocabulary_that_no_list_has(unlisted: Path) -> None:
    """It is cut out of texts, as other added tokens."""
    config = {"tokenizer_class": "TokenizersBackend", "eos_token": "</s>"} | decoder(1, token("<s>", special=True))
    (unlisted / "tokenizer_config.json").write_text(json.dumps(config))
    check_against_transformers(unlisted)
    assert load_tokenizer(unlisted, "parse").encode("a<s>")[-1] == 1
    plain = load_tokenizer(unlisted).sha256
    (unlisted / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend", "eos_token": "</s>"}))
    assert load_tokenizer(unlisted).sha256 != plain


@pytest.mark.parametrize("config", [{}, {"mask_token": None}, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}])
def test_tokens_that_a_class_names(unlisted: Path, config: dict[str, Any]) -> None:
    """GemmaTokenizer names a `<mask>`, and others that this vocabulary lacks, unless the configuration names other tokens."""
    set_rules(unlisted, {"normalizer": MARK_SPACES, "pre_tokenizer": None})
    (unlisted / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GemmaTokenizer"} | config))
    check_against_transformers(unlisted)


def test_a_copy_has_the_class_that_a_model_decides(unlisted: Path, tmp_path: Path) -> None:
    """AutoTokenizer does not take the LlamaTokenizer of a Phi-3 model, and keeps the file's rule about spaces."""
    (unlisted / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"legacy": False}))
    set_rules(unlisted, {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, MARK_SPACES]}, "pre_tokenizer": None})
    named = load_tokenizer(unlisted)
    named_ids = named.encode("  a").tolist()
    (unlisted / "config.json").write_text(json.dumps({"model_type": "phi3", "vocab_size": 330}))
    check_against_transformers(unlisted)
    decided = load_tokenizer(unlisted)
    assert decided.encode("  a").tolist() != named_ids
    tokenizer_files.find(unlisted).copy_to(tmp_path / "copy")
    assert json.loads((tmp_path / "copy/config.json").read_text()) == {"model_type": "phi3"}
    copied = load_tokenizer(tmp_path / "copy")
    assert (copied.sha256, copied.encode("  a").tolist()) == (decided.sha256, decided.encode("  a").tolist())
    assert decided.sha256 != named.sha256


def test_the_end_of_a_text_is_special_in_a_text(tmp_path: Path, converted: dict[str, Any]) -> None:
    """Also where tokenizer.json lists it as an ordinary token: no document contains its own end."""
    listed = token("<|endoftext|>") | {"id": 2047}
    (tmp_path / "tokenizer.json").write_text(json.dumps(converted | {"added_tokens": [listed]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(FAST | {"eos_token": "<|endoftext|>"}))
    for mode, has_end in (("text", False), ("parse", True)):
        tokenizer = load_tokenizer(tmp_path, "parse" if mode == "parse" else "text")
        assert tokenizer.eod == 2047
        assert (2047 in tokenizer.encode("a<|endoftext|>b").tolist()) is has_end


def test_the_end_of_a_document(tmp_path: Path, model: Path, pair: Callable[[Path], None]) -> None:
    shutil.copy(model, tmp_path)
    config = tmp_path / "tokenizer_config.json"
    assert load_tokenizer(tmp_path).eod == 2
    config.write_text(json.dumps(LLAMA | {"eos_token": "<s>"}))
    assert load_tokenizer(tmp_path).eod == 1
    config.write_text(json.dumps(LLAMA | {"eos_token": "<|end_of_text|>"} | decoder(330, token("<|end_of_text|>", special=True))))
    assert load_tokenizer(tmp_path).eod == 330
    (tmp_path / "tokenizer.model").unlink()
    pair(tmp_path)
    config.write_text(json.dumps(GPT2 | {"eos_token": "</s>"} | decoder(2048, token("</s>", special=True))))
    assert load_tokenizer(tmp_path).eod == 2048


@pytest.mark.parametrize("kind", ["user-defined", "unknown", "normal", "byte"])
def test_an_end_of_document_that_is_no_control_symbol(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    lines = (f"some words number {number} and others of kind {number * 7 % 13}" for number in range(2000))
    train_sentencepiece(tmp_path / "tokenizer", sentence_iterator=lines, vocab_size=320, user_defined_symbols=["<eod>"])
    eos_token = {"user-defined": "<eod>", "unknown": "<unk>", "normal": "\u2581wor", "byte": "<0x0A>"}[kind]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"eos_token": eos_token}))
    expected = AutoTokenizer.from_pretrained(str(tmp_path))
    assert expected.eos_token_id != 2
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.eod, tokenizer.vocab_size) == (expected.eos_token_id, len(expected))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"tokenizer_class": "XLMRobertaTokenizerFast"},
            "the ids of XLMRobertaTokenizer are not those of its SentencePiece model",
        ),
        ({"tokenizer_class": "NllbTokenizer"}, "the ids of NllbTokenizer"),
        ({"tokenizer_class": "T5Tokenizer"}, "the ids of T5Tokenizer"),
        ({"tokenizer_class": "GPTSw3Tokenizer"}, "the ids of GPTSw3Tokenizer"),
        ({"tokenizer_class": "CodeLlamaTokenizerFast"}, "the ids of CodeLlamaTokenizer"),
        ({"tokenizer_class": "CohereTokenizerFast"}, "the ids of CohereTokenizer"),
        ({"tokenizer_class": "BloomTokenizerFast"}, "the ids of BloomTokenizer"),
        ({"tokenizer_class": "ByT5Tokenizer"}, "the ids of ByT5Tokenizer"),
        ({"tokenizer_class": "GemmaTokenizer"}, "GemmaTokenizer puts no space before texts, and the model does"),
        (decoder(330, token("<tool>")), "whose class no tokenizer_config.json names"),
        ({"tokenizer_class": "MyTokenizer"} | decoder(330, token("<tool>")), r"added tokens \(<tool>\) beside tokenizer.model"),
        (LLAMA | decoder(331, token("<tool>")), "added token <tool> has id 331, which transformers would make 330"),
        (LLAMA | decoder(5, token("<tool>")), "added token <tool> has id 5"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder is malformed"),
        ({"added_tokens_decoder": {"5": {}}}, "added token 5 has no text"),
    ],
)
def test_what_is_refused(tmp_path: Path, model: Path, config: dict[str, Any], message: str) -> None:
    shutil.copy(model, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(BadData, match=message):
        load_tokenizer(tmp_path)


def test_a_llama_class_over_a_unigram_model(tmp_path: Path, model: Path) -> None:
    """transformers merges the pieces of any model as BPE: other ids than sentencepiece's, which a directory of no class has."""
    from transformers import AutoTokenizer

    sentencepiece.SentencePieceTrainer.train(
        input=str(model.with_name("text")),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=330,
        model_type="unigram",
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    text = "caf\u00e9 number 7 of other words"
    ids = load_tokenizer(tmp_path).encode(text).tolist()
    assert ids == sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model")).encode(text)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    assert AutoTokenizer.from_pretrained(str(tmp_path)).encode(text, add_special_tokens=False) != ids
    for name in ("LlamaTokenizer", "Phi3Tokenizer"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"tokenizer_class": name}))
        with pytest.raises(BadData, match="LlamaTokenizer merges its pieces as BPE") as refused:
            load_tokenizer(tmp_path)
    assert "save_pretrained" in str(refused.value.hint)


@pytest.mark.parametrize("model_type", ["xlm-roberta", "camembert", "mbart", "m2m_100", "t5", "cohere", "bloom"])
def test_a_shifted_model_by_its_config(tmp_path: Path, model: Path, model_type: str) -> None:
    shutil.copy(model, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(BadData, match=f"the ids of {model_type} are not those"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_json_wins_over_the_model_that_it_was_made_from(
    tmp_path: Path, model: Path, converted: dict[str, Any]
) -> None:
    shutil.copy(model, tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(converted))
    assert load_tokenizer(tmp_path).vocab_size == 2048
    assert load_tokenizer(tmp_path / "tokenizer.model").vocab_size == 330


def test_added_tokens_after_a_vocabulary_with_gaps(tmp_path: Path, pair: Callable[[Path], None]) -> None:
    """The library gives the first added token the size of the vocabulary as its id, not the highest id + 1."""
    pair(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    ids["<|endoftext|>"] = 5000
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(GPT2 | decoder(2048, TOOL, USER)))
    check_against_transformers(tmp_path)


def split(pattern: str) -> dict[str, Any]:
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


MISTRAL = {"model_type": "mistral", "transformers_version": "4.57.1"}


@pytest.mark.parametrize(
    ("content", "config", "model_config", "message"),
    [
        (split(LLAMA3), GPT2, None, "GPT2Tokenizer of transformers 5 cuts"),
        (split(LLAMA3), {}, {"model_type": "qwen3"}, "Qwen2Tokenizer of transformers 5 cuts"),
        ({}, {"tokenizer_class": "Qwen2TokenizerFast"}, None, "Qwen2Tokenizer of transformers 5 cuts"),
        (split(LLAMA3), {"fix_mistral_regex": True}, MISTRAL, "fix_mistral_regex"),
        # The class of a model's type, or none, leaves the file as it is.
        (split(QWEN2) | {"normalizer": NFC}, {"tokenizer_class": "Qwen2Tokenizer"}, None, None),
        (split(LLAMA3), GPT2, {"model_type": "llama"}, "GPT2Tokenizer of transformers 5 cuts"),
        (split(LLAMA3), GPT2, {"model_type": "phi3"}, None),
        ({"normalizer": NFC}, GPT2, None, "GPT2Tokenizer of transformers 5 normalizes"),
        (split(QWEN2), {"tokenizer_class": "Qwen2Tokenizer"}, None, "Qwen2Tokenizer of transformers 5 normalizes"),
        ({}, {"tokenizer_class": "GPTNeoXTokenizer", "pad_token": None}, None, "GPTNeoXTokenizer of transformers 5 normalizes"),
        ({"normalizer": NFC}, {"tokenizer_class": "GPTNeoXTokenizer", "pad_token": None}, None, None),
        ({"normalizer": NFC}, {"tokenizer_class": "GPTNeoXTokenizer"}, None, r"its own tokens <\|padding\|> to"),
        (
            {},
            {},
            {"model_type": "bart"},
            "RobertaTokenizer of transformers 5 adds its own tokens <s>, </s>, <unk>, <pad>, <mask>",
        ),
        (split(LLAMA3), {"tokenizer_class": "LlamaTokenizerFast"}, None, None),
    ],
)
def test_a_class_that_cuts_texts_otherwise(
    tmp_path: Path,
    converted: dict[str, Any],
    content: dict[str, Any],
    config: dict[str, Any],
    model_config: dict[str, Any] | None,
    message: str | None,
) -> None:
    listed = {"added_tokens": [token("<|endoftext|>", special=True) | {"id": 2047}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(converted | listed | content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if model_config:
        (tmp_path / "config.json").write_text(json.dumps(model_config))
    if message is None:
        check_against_transformers(tmp_path)
        return
    with pytest.raises(BadData, match=message) as refused:
        load_tokenizer(tmp_path)
    assert "save_pretrained('NEW')" in str(refused.value.hint)


@pytest.mark.parametrize("joined", [False, True])
def test_a_class_that_takes_digits_together(tmp_path: Path, joined: bool) -> None:
    """SmolLM2: GPT2Tokenizer of transformers 5 does not cut digits apart, which matters where a token spans the cut."""
    digits = pre_tokenizers.Digits(individual_digits=not joined)
    steps = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = steps
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>", "<|im_0|>"], initial_alphabet=alphabet)
    trained.train_from_iterator(["some words 1234 and 12 more of 2024\u00b2"] * 9, trainer)
    content = json.loads(trained.to_str())
    content["model"]["vocab"]["\u0120\u00e2"] = len(content["model"]["vocab"])
    content["model"]["merges"].insert(0, ["\u0120", "\u00e2"])
    content["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"} | ends))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    if joined:
        with pytest.raises(BadData, match="GPT2Tokenizer of transformers 5 cuts"):
            load_tokenizer(tmp_path)
    else:
        check_against_transformers(tmp_path)
        # A space and the first byte of a dash are a token, and a digit can begin with this byte.
        together = load_tokenizer(tmp_path)
        digit = together.encode("x \u2460").tolist()
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"} | ends))
        apart = load_tokenizer(tmp_path)
        assert digit != apart.encode("x \u2460").tolist()
        assert together.sha256 != apart.sha256


@pytest.mark.parametrize(
    "name",
    [
        *("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer", "DebertaTokenizer"),
        *("CohereTokenizer", "FNetTokenizer", "ConvBertTokenizer", "BlenderbotTokenizer", "CLIPTokenizer", "NougatTokenizer"),
        *("LukeTokenizer", "Tipsv2Tokenizer", "ByT5Tokenizer", "Qwen3_5Tokenizer", "GPTNeoXTokenizer"),
    ],
)
def test_a_class_with_tokens_or_rules_of_its_own(tmp_path: Path, converted: dict[str, Any], name: str) -> None:
    """The class gives other ids, or a longer vocabulary, than the file beside it, which is refused."""
    from transformers import AutoTokenizer

    listed = {"added_tokens": [token("<|endoftext|>", special=True) | {"id": 2047}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(converted | listed))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    text = "Cafe\u0301  12"
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = reference.encode(text, add_special_tokens=False)
    assert (len(reference), ids) != (2048, own.encode(text).ids)
    with pytest.raises(BadData, match=f"{name} of transformers 5") as refused:
        load_tokenizer(tmp_path)
    assert "TokenizersBackend" in str(refused.value.hint)


@pytest.mark.parametrize(("tokens", "added"), [(65498, 1), (65499, 1), (65498, 2), (65500, 0)])
def test_the_integers_of_a_vocabulary_at_megatrons_border(
    tmp_path: Path, converted: dict[str, Any], tokens: int, added: int
) -> None:
    """Added tokens count: Megatron takes the dtype by the length of the tokenizer."""
    from megatron.core.datasets.indexed_dataset import DType

    stored = converted["model"]["vocab"]
    vocabulary = stored | {f"\u0120\u0120x{number}": number for number in range(len(stored), tokens)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(converted | {"model": converted["model"] | {"vocab": vocabulary}}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(decoder(tokens, *(token(f"<{number}>") for number in range(added))))
    )
    assert load_tokenizer(tmp_path).dtype == DType.optimal_dtype(tokens + added)
