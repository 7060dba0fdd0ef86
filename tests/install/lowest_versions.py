"""Install the lowest versions that the distributions' metadata allow, and run the tools with them: `nox -s lowest`.

Requirements of requirements are the newest that fit: what those allow is theirs to keep.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import resolution
import uv

EXTRAS = {
    "shared": "s3",
    "tools/convert": "logits",
    "tools/monitor": "pandas",
    "tools/preprocess": "parquet,lz4,hf,language",
    "tools/train": "tensorboard,wandb",
}
LOWEST = ("--resolution", "lowest-direct")


def projects() -> list[str]:
    return [f"{path}[{EXTRAS[path]}]" if path in EXTRAS else path for path in resolution.DISTRIBUTIONS]


def versions() -> list[str]:
    """All that is installed, as `name==version`, but for the distributions themselves."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "lowest.txt"
        resolution.compile_requirements(projects(), python, output, *LOWEST)
        return re.findall(r"^[\w.-]+==\S+", output.read_text(), re.MULTILINE)


def install_beside_torch(target: Path) -> None:
    """Into a directory for PYTHONPATH, without torch and what only torch with CUDA needs."""
    chosen = [line for line in versions() if not resolution.Package(line.partition("==")[0], "", 0).is_cuda]
    pip = (uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--python", sys.executable)
    subprocess.run([*pip, "--no-deps", "--target", str(target), *chosen], check=True)


def pipeline(start: str) -> str:
    """A script that tokenizes, trains on two ranks, converts, goes on with one, scrapes, draws. `start` begins each command."""
    demo = resolution.ROOT / "tests/demo"
    preprocess, train, convert, monitor = (f"{start}lt_{tool}" for tool in ("preprocess", "train", "convert", "monitor"))
    options = "--seq-length 64 --log-interval 2 --eval-iters 1"
    return f"""
set -euo pipefail
{preprocess} {demo}/corpus.jsonl.zst --tokenizer {demo}/tokenizer --append-eod -o data \\
  | {train} --model tiny --device cpu --ranks 2 {options} --train-iters 4 --save run --tensorboard-dir curves - \\
  | {convert} --to hf -o model -
{train} --model tiny --device cpu {options} --train-iters 6 --save run data_text_document
{preprocess} verify data_text_document
{monitor} scrape run/train.log
{monitor} summarize run/train.log
{monitor} plot run/train.log -o loss.png
"""


def main() -> int:
    """In this process's own environment, which has nothing but them."""
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(["bash", "-c", pipeline(f"{sys.executable} -m ")], cwd=directory).returncode


if __name__ == "__main__":
    sys.exit(main())
