"""Small checkpoints for the attacks on lt-convert, and the real command line."""

import contextlib
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy
import nursery
from safetensors.numpy import save_file

from lt_convert import cli
from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_shared import console
from lt_shared.console import output
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

TINY = Architecture("tiny", "llama", 2, 16, 24, 4, 2, 50, 64)
TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"


def write_model(directory: Path, seed: int = 0, architecture: Architecture = TINY, tokenizer: bool = False) -> Path:
    """A Hugging Face directory of random float32 weights, written by the safetensors library."""
    chance = numpy.random.default_rng(seed)
    shapes = families.family_of(architecture).canonical(Model(architecture, architecture.vocab_size))
    tensors = {name: chance.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, "float32")))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    if tokenizer:
        for path in TOKENIZER.iterdir():
            (directory / path.name).write_bytes(path.read_bytes())
    return directory


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """lt-convert with these arguments, in a process of its own."""
    command = [nursery.light_python(), "-m", "lt_convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """lt-convert with these arguments in this process: its exit code and what it writes, without the start of a process."""
    words = [str(argument) for argument in arguments]
    command = cli.commands if words[0] in cli.commands.commands else cli.command

    def work() -> int:
        with command.make_context("lt-convert", [*words], auto_envvar_prefix="LT_CONVERT") as context:
            return int(command.invoke(context) or 0)

    written, errors, tool = io.StringIO(), io.StringIO(), output.tool_name()
    output.begin("lt-convert")
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(errors):
            code = console.exit_code_of(work)
    finally:
        output.begin(tool)
    return subprocess.CompletedProcess(words, code, written.getvalue(), errors.getvalue())


def content(directory: Path) -> dict[str, bytes]:
    """Every file in a directory, but what tells when and from where it was converted."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lt-convert.json"
    }
