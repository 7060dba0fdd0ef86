"""tiktoken files: known models, other models described by what lies beside them, and everything else refused."""

import base64
import inspect
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading, split_patterns
from lt_preprocess.tokenizers.files import known_ranks, tiktoken_ranks
from lt_preprocess.tokenizers.python_bpe import UncompiledEncoder
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files

FEW = 6000


def read(path: Path) -> Vocabulary:
    return tiktoken_ranks.read(tokenizer_files.find(path))


@pytest.fixture(scope="module")
def few_ranks(llama3_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of Llama 3's ranks, for tests that need no model of a known size: all of them take seconds to read."""
    path = tmp_path_factory.mktemp("few") / "tokenizer.model"
    path.write_bytes(b"".join(llama3_model.read_bytes().splitlines(keepends=True)[:FEW]))
    return path


def test_llama3(llama3_model: Path) -> None:
    """The merges are all splits of tokens into two."""
    vocabulary = read(llama3_model)
    assert vocabulary.merges.shape == (280_147, 4)
    assert (vocabulary.vocab_size, vocabulary.eod) == (128256, 128001)
    ids = {token.content: token.id for token in vocabulary.added_tokens if token.is_special}
    assert len(ids) == 256
    assert (ids["<|begin_of_text|>"], ids["<|eot_id|>"], ids["<|reserved_special_token_247|>"]) == (128000, 128009, 128255)


def test_llama4(llama4_model: Path) -> None:
    vocabulary = read(llama4_model)
    assert (vocabulary.vocab_size, vocabulary.eod, vocabulary.regex) == (202048, 200001, split_patterns.O200K)
    ids = {token.content: token.id for token in vocabulary.added_tokens}
    assert len(ids) == 2048
    # The numbers that Meta's own code states in comments and in its list of stop tokens.
    places = ("<|header_start|>", "<|eot|>", "<|image_start|>", "<|patch|>", "<|reasoning_reserved_special_token_0|>")
    assert [ids[place] for place in places] == [200005, 200008, 200080, 200092, 201134]


def test_qwen(qwen_model: Path) -> None:
    vocabulary = read(qwen_model)
    assert (vocabulary.vocab_size, vocabulary.eod, vocabulary.is_nfc) == (151851, 151643, True)
    assert vocabulary.regex == split_patterns.QWEN2
    assert [token.content for token in vocabulary.added_tokens[:4]] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|extra_0|>",
    ]


def lines(ranks: dict[bytes, int]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines({bytes([byte]): byte for byte in range(256)}), "256 entries; only those of Llama 3"),
        (lines({bytes([byte]): byte for byte in range(255)}), "no token for byte 0xFF"),
        (lines({b"a": 0}) + b"???? 1\n", "line 2"),
        (lines({b"a": 0}) + b"YQ==\n", "line 2"),
        (lines({bytes([byte]): byte // 2 for byte in range(256)}), "share a rank"),
        (lines({bytes([byte]): byte + 2**31 - 255 for byte in range(256)}), "rank 2147483648 is not"),
        (lines({bytes([byte]): byte for byte in range(256)}) + b"YWE= -1\n", "rank -1 is not"),
    ],
)
def test_malformed_or_unknown_tiktoken_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(BadData, match=message):
        read(path)


def test_a_truncated_llama3_file(tmp_path: Path, llama3_model: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(llama3_model.read_bytes()[:1_000_000])
    with pytest.raises(BadData, match=r"tokenizer\.model"):
        read(path)


def unknown(directory: Path, code: str, configuration: object) -> Path:
    """A tiktoken file of no known size with code and a configuration beside it."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.model").write_bytes(lines({bytes([byte]): byte for byte in range(256)} | {b"ab": 256}))
    (directory / "tokenization_mine.py").write_text(code)
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration))
    return directory


TOKENS = {"258": {"content": "<eos>", "special": True}, "300": {"content": "<tool>", "special": False}}


def test_a_model_that_its_code_and_configuration_describe(tmp_path: Path) -> None:
    code = f'PAT_STR = r"""{split_patterns.LLAMA3}"""\n'
    vocabulary = read(unknown(tmp_path, code, {"added_tokens_decoder": TOKENS}))
    assert (vocabulary.regex, vocabulary.vocab_size, vocabulary.eod, vocabulary.is_nfc) == (
        split_patterns.LLAMA3,
        301,
        258,
        False,
    )
    assert [(token.content, token.id, token.is_special) for token in vocabulary.added_tokens] == [
        ("<eos>", 258, True),
        ("<tool>", 300, False),
    ]
    code += 'text = unicodedata.normalize("NFC", text)\n'
    assert read(unknown(tmp_path, code, {"added_tokens_decoder": TOKENS, "eos_token": "<tool>"})).is_nfc
    assert read(tmp_path).eod == 300


PATTERN = f'PAT_STR = r"""{split_patterns.LLAMA3}"""\n'
USED = "encoding = tiktoken.Encoding('mine', pat_str=PAT_STR, mergeable_ranks=ranks, special_tokens={})\n"


@pytest.mark.parametrize(
    ("code", "configuration", "message"),
    [
        (r'PAT_STR = r"""\S+|\s+"""', {"added_tokens_decoder": TOKENS}, "257 entries; only those of Llama 3"),
        (PATTERN + USED.replace("=PAT_STR", "=PAT_STR + extra"), {"added_tokens_decoder": TOKENS}, "without running it"),
        (PATTERN + "PAT_STR += extra\n" + USED, {"added_tokens_decoder": TOKENS}, "without running it"),
        ("x = (", {"added_tokens_decoder": TOKENS}, "is not Python that can be read"),
        (PATTERN, {}, "lists the special tokens"),
        (PATTERN, {"added_tokens_decoder": {"x": 1}}, "added_tokens_decoder is malformed"),
        (PATTERN, {"added_tokens_decoder": {"258": {"content": "a"}}}, "added_tokens_decoder is malformed"),
    ],
)
def test_a_model_that_is_not_described_well_enough(tmp_path: Path, code: str, configuration: object, message: str) -> None:
    with pytest.raises(BadData, match=message):
        read(unknown(tmp_path, code, configuration))


@pytest.mark.parametrize("used", ["", USED])
def test_a_known_pattern_inside_a_longer_one_is_another_pattern(tmp_path: Path, used: str) -> None:
    """Llama 3's ids for a pattern that cuts numbers into digits would look right."""
    code = 'PAT_STR = r"""[\u4e00-\u9fff]+|\\d|' + split_patterns.LLAMA3 + '"""\n' + used
    with pytest.raises(BadData, match=r"257 entries; only those of Llama 3|as a part of another one"):
        read(unknown(tmp_path, code, {"added_tokens_decoder": TOKENS}))


def custom(directory: Path, ranks: Path, code: str | None = None) -> Path:
    """Another tokenizer with as many ranks as a known one: two tokens have exchanged their ranks."""
    directory.mkdir(exist_ok=True)
    first, second, *rest = ranks.read_bytes().splitlines()[-300:]
    others = ranks.read_bytes().splitlines()[:-300]
    exchanged = [b" ".join([one.split()[0], other.split()[1]]) for one, other in ((first, second), (second, first))]
    (directory / "tokenizer.model").write_bytes(b"\n".join([*others, *exchanged, *rest, b""]))
    if code is not None:
        (directory / "tokenization_mine.py").write_text(code)
        (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": LISTED}))
    return directory


LISTED = {"300000": {"content": "<|endoftext|>", "special": True}}


@pytest.mark.parametrize("known", ["llama3_model", "llama4_model", "qwen_model"])
def test_the_number_of_ranks_decides_nothing(tmp_path: Path, request: pytest.FixtureRequest, known: str) -> None:
    with pytest.raises(BadData, match=r"only those of Llama 3.* are known by their content"):
        read(custom(tmp_path, request.getfixturevalue(known)))


def test_a_description_decides_for_as_many_ranks_as_a_known_file_has(tmp_path: Path, qwen_model: Path) -> None:
    """Qwen's own normalizes text and cuts it otherwise."""
    code = f'PAT_STR = r"""{split_patterns.QWEN35}"""\n{USED}'
    vocabulary = read(custom(tmp_path, qwen_model, code))
    assert (vocabulary.regex, vocabulary.eod, vocabulary.is_nfc) == (split_patterns.QWEN35, 300000, False)


def test_the_tokenizer_json_beside_an_unknown_file_is_the_remedy(tmp_path: Path, llama3_model: Path) -> None:
    beside = custom(tmp_path, llama3_model) / "tokenizer.json"
    beside.write_text("{}")
    with pytest.raises(BadData) as error:
        read(tmp_path)
    assert error.value.hint == f"--tokenizer {beside}"


def test_the_code_beside_a_known_file_decides(tmp_path: Path, llama3_model: Path) -> None:
    """The known special tokens stay those that the configuration does not name otherwise."""
    shutil.copy(llama3_model, tmp_path / "tokenizer.model")
    (tmp_path / "tokenization_mine.py").write_text(f'PAT_STR = r"""{split_patterns.QWEN2}"""\n{USED}')
    tokens = {"128009": {"content": "<|turn|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens, "eos_token": "<|turn|>"}))
    vocabulary = read(tmp_path)
    ids = {token.content: token.id for token in vocabulary.added_tokens}
    assert (vocabulary.regex, vocabulary.eod, vocabulary.vocab_size) == (split_patterns.QWEN2, 128009, 128256)
    assert (ids["<|turn|>"], ids["<|begin_of_text|>"], "<|eot_id|>" in ids, len(ids)) == (128009, 128000, False, 256)


def test_the_end_of_a_turn_ends_no_document(tmp_path: Path, llama3_model: Path) -> None:
    shutil.copy(llama3_model, tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eot_id|>"}))
    assert read(tmp_path).eod == 128001


KIMI_CODE = """
class TikTokenTokenizer(PreTrainedTokenizer):
    pat_str = "|".join(
        [
            PIECES
        ]
    )

    def __init__(self, vocab_file, **kwargs):
        self.model = tiktoken.Encoding(
            name=Path(vocab_file).name, pat_str=self.pat_str, mergeable_ranks=ranks, special_tokens=self.special_tokens
        )
"""
GLM_CODE = """
class ChatGLM4Tokenizer(PreTrainedTokenizer):
    def __init__(self, vocab_file):
        pat_str = PIECES
        self.pat_str = re.compile(pat_str)
        self.tokenizer = tiktoken.Encoding(name="my_tokenizer", pat_str=pat_str, mergeable_ranks=ranks, special_tokens={})
"""
ALTERNATIVES = re.compile(r"(?<!['!])\|(?=\[|\\p|\\s| )")


def joined(pattern: str) -> str:
    """A pattern in pieces, as Kimi's code has it."""
    return KIMI_CODE.replace("PIECES", ", ".join(f'r"""{piece}"""' for piece in ALTERNATIVES.split(pattern)))


def doubled(pattern: str) -> str:
    """A pattern as an ordinary string in two lines, as GLM-4's code has it."""
    content = pattern.replace("\\", "\\\\")
    return GLM_CODE.replace("PIECES", f'("{content[:40]}"\n "{content[40:]}")')


@pytest.mark.parametrize(("spelling", "write"), [*zip(split_patterns.TIKTOKEN_SPELLINGS, itertools.cycle([joined, doubled]))])
def test_the_ids_of_a_pattern_in_code_are_those_of_tiktoken(
    tmp_path: Path, few_ranks: Path, write: Callable[[str], str], spelling: str
) -> None:
    tokenizer = loading.load(tokenizer_files.find(custom(tmp_path, few_ranks, write(spelling))))
    encoder = tokenizer.new_encoder()
    assert not isinstance(encoder, UncompiledEncoder)
    mine = tiktoken_ranks.read_ranks(tmp_path / "tokenizer.model")
    library = tiktoken.Encoding("mine", pat_str=spelling, mergeable_ranks=mine, special_tokens={})

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.one_of(st.text(st.sampled_from(CHARACTERS), max_size=40), st.text(max_size=20)), max_size=5))
    def check(documents: list[str]) -> None:
        ids, lengths = encoder.encode(Texts.from_list([document.encode() for document in documents]))
        found = [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]
        assert found == [library.encode_ordinary(document) for document in documents]

    check()


CHARACTERS = (
    "'stremvldSTREMVLD\u017f \t\n\r\x0b\x1c\x85\xa0\u2028\u3000\u200b12345\u0663\xb2\u216b\u3007!<|>/_\xe9e\u0301"
    "\u4e2d\u3042\u30ab\u3005\u2e80\u0e2a\u0e31\u0939\u094d\U0001f468\u200d\U0001f3fd\0\u0378\ue000\u01c5\u02b0A\ufeff"
)


def test_kimi_reserves_what_its_configuration_does_not_name(tmp_path: Path, few_ranks: Path) -> None:
    tokens = {f"{FEW}": {"content": "[BOS]", "special": True}, f"{FEW + 1}": {"content": "[EOS]", "special": True}}
    directory = custom(tmp_path, few_ranks, joined(split_patterns.KIMI))
    configuration = {"added_tokens_decoder": tokens, "eos_token": "[EOT]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration))
    vocabulary = read(directory)
    assert (vocabulary.regex, vocabulary.vocab_size, vocabulary.eod) == (split_patterns.KIMI, FEW + 256, FEW + 1)
    ids = {token.content: token.id for token in vocabulary.added_tokens}
    assert (len(ids), ids["[BOS]"], ids[f"<|reserved_token_{FEW + 255}|>"]) == (256, FEW, FEW + 255)


def test_openai_publishes_these_hashes() -> None:
    """The hashes of the files that OpenAI's library downloads stand in it."""
    published = Path(inspect.getfile(openai_public)).read_text()
    for name in ("GPT-4o", "GPT-4", "GPT-3 (p50k_base)", "GPT-3 (r50k_base)"):
        [digest] = [digest for digest, model in known_ranks.MODELS.items() if model.name == name]
        assert digest in published


@pytest.mark.parametrize("name", ["r50k_base", "p50k_base", "cl100k_base", "o200k_base", "o200k_harmony"])
def test_openai_s_own_encodings(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Pattern and special tokens are those of OpenAI's library, whose ranks are not downloaded here."""
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    published = openai_public.ENCODING_CONSTRUCTORS[name]()
    highest = {"r50k_base": 50255, "p50k_base": 50280, "cl100k_base": 100255}.get(name, 199997)
    source = inspect.getsource(openai_public)
    beside_its_url = source[source.index(f"{name.replace('harmony', 'base')}.tiktoken") :][:200]
    monkeypatch.setattr(known_ranks, "sha256", lambda _: next(known for known in known_ranks.MODELS if known in beside_its_url))
    model = known_ranks.find({}, f"{name}.tiktoken")
    assert model is not None
    meaning = split_patterns.TIKTOKEN_SPELLINGS[published["pat_str"]]
    assert split_patterns.code(meaning) == split_patterns.code(model.regex) != split_patterns.NOT_COMPILED
    found = model.special_tokens(highest + 1)
    differing = {content for content, number in published["special_tokens"].items() if found.get(content) != number}
    # One id has two names in the library.
    assert differing <= {"<|reserved_200018|>"}
    assert len(found) == len(published["special_tokens"]) - len(differing)
