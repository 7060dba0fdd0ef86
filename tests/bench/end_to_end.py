"""The whole program: JSON lines to durable .bin and .idx, start-up included, beside Megatron-LM's two scripts.

The scripts come from a Megatron-LM checkout, or a folder like one: `tools/` with the scripts, `megatron/` that they import. They
read plain files only, so for compressed input they wait for `zstd -d`. All encode with GPT-2's tokenizer, without an end of
document, and the tokens that they write are compared.
"""

import hashlib
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import models
import processes
from processes import Usage

SLOW_SCRIPT, FAST_SCRIPT = "preprocess_data.py", "preprocess_data_fast.py"


class Outcome(NamedTuple):
    """What a run took, and a hash of the tokens that it wrote."""

    usage: Usage
    tokens_sha256: str


def scripts(checkout: Path) -> list[Path]:
    """Those of the two scripts that the checkout has."""
    return [path for name in (SLOW_SCRIPT, FAST_SCRIPT) if (path := checkout / "tools" / name).is_file()]


def megatron_version(checkout: Path) -> str | None:
    """The version of the checkout's megatron-core, None when it has none of its own."""
    path = checkout / "megatron" / "core" / "package_info.py"
    return runpy.run_path(str(path))["__version__"] if path.is_file() else None


def lt_preprocess(
    paths: list[Path], model: models.Model, workers: int, directory: Path, environment: dict[str, str] | None = None
) -> Outcome:
    """Run the program; what it writes into `directory` is deleted."""
    program = Path(sys.executable).parent / "lt-preprocess"
    _read_into_cache(paths)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        options = ["--tokenizer", model.native, "--workers", str(workers), "-o", Path(scratch) / "made"]
        usage = processes.run([program, *paths, *options], environment)
        return Outcome(usage, _sha256_of_tokens(Path(scratch)))


def megatron(script: Path, path: Path, model: models.Model, workers: int, directory: Path) -> Outcome:
    """Run one of the scripts; for compressed input the time of `zstd -d` counts as well."""
    _read_into_cache([path])
    with tempfile.TemporaryDirectory(dir=directory) as name:
        scratch = Path(name)
        usages = []
        source = path
        if path.suffix == ".zst":
            source = scratch / path.stem
            usages.append(processes.run(["zstd", "-q", "-d", path, "-o", source]))
        tokenizer = _with_special_token(model, scratch / "tokenizer")
        options = ["--input", source, "--output-prefix", scratch / "made", "--tokenizer-type", "HuggingFaceTokenizer"]
        options += ["--tokenizer-model", tokenizer]
        if script.name == SLOW_SCRIPT:
            options += ["--workers", str(workers), "--log-interval", "1000000"]
        usages.append(processes.run([sys.executable, script, *options], {"PYTHONPATH": str(script.parents[1])}))
        total = Usage(
            sum(usage.wall_seconds for usage in usages),
            sum(usage.cpu_seconds for usage in usages),
            max(usage.peak_bytes for usage in usages),
        )
        return Outcome(total, _sha256_of_tokens(scratch))


def _with_special_token(model: models.Model, directory: Path) -> Path:
    """A directory that transformers reads, with GPT-2's end of document: Megatron asks for its id."""
    directory.mkdir()
    content = json.loads(model.tokenizer_json.read_text(encoding="utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": len(content["model"]["vocab"]), "content": "<|endoftext|>", "special": True} | flags
    (directory / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": [token]}), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "model_max_length": 10**9}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def _read_into_cache(paths: list[Path]) -> None:
    """So that no run pays for a disk that another has not waited for."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _sha256_of_tokens(directory: Path) -> str:
    with next(directory.glob("made*_document.bin")).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
