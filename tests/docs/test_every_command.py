"""Every command of every page is run by a test, or stands below with the reason why none can run it.

Pages whose commands have no test elsewhere are run here as they are shown, with fewer tokens to train for.
"""

import json
import re
import shutil
from pathlib import Path

import documented_blocks
import pytest
import zstandard
from documented_blocks import Block

ROOT = documented_blocks.ROOT
SAMPLES = ROOT / "tests/monitor/samples/flight"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for folder in ("docs", "tools")
    for page in sorted((ROOT / folder).rglob("*.md"))
}
# Journals of measurements on GPUs.
PAGES.pop("tools/train/PERFORMANCE.md")
PAGES |= {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
NAMES = r"lt-[a-z]+|nox|pip|pipx|uv|srun|sbatch|kubectl|torchrun|docker|git|mkdir|curl|\*/\d+ \*|eval|env|cat|tail|python3|\."
PROGRAM = rf"(?:\w+=\S+ )*(?:{NAMES}) "
TRAIN, CONVERT, MONITOR = "tests/train/test_cli.py", "tests/convert/test_cli.py", "tests/monitor/cli/test_cli.py"
PREPROCESS, DATASETS = "tests/preprocess/cli/test_tokenize.py", "tests/preprocess/cli/test_datasets.py"
HERE = "tests/docs/test_every_command.py"
# A page, and the test file that runs its blocks and its indented lines.
RUN_BY = {
    "README.md": "tests/pipeline/test_readme.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/coming-from.md": TRAIN,
    "docs/extending.md": "tests/test_extending.py",
    "docs/faq.md": "tests/docs/test_commands_in_pages.py",
    "docs/guides/evaluation.md": "tests/pipeline/test_evaluation.py",
    "docs/guides/datasets.md": DATASETS,
    "tools/preprocess/README.md": PREPROCESS,
    "tools/train/README.md": TRAIN,
    "tools/convert/README.md": CONVERT,
    "tools/monitor/README.md": MONITOR,
    **{f"docs/seeds/{path.name}": "tests/pipeline/test_seeds.py" for path in (ROOT / "docs/seeds").glob("*.md")},
    **{f"docs/guides/{name}.md": CONVERT for name in ("conversion", "merging")},
    **{f"docs/guides/{name}.md": PREPROCESS for name in ("data", "tokenizers", "resume")},
    **{f"docs/guides/{name}.md": MONITOR for name in ("monitoring", "logs", "alerts", "metrics", "causes")},
    **{
        f"docs/guides/{name}.md": TRAIN
        for name in ("training", "models", "parallelism", "precision", "launching", "slurm", "kubernetes", "preflight")
    },
    **{f"docs/guides/{name}.md": TRAIN for name in ("checkpoints", "reports", "speed")},
    **{f"docs/guides/{name}.md": HERE for name in ("blame", "curation", "finetuning", "hangs", "streaming")},
}
CANNOT_RUN = {
    r"(?:^|\s)(?:srun|sbatch|kubectl|#SBATCH)\b": "needs a scheduler; tests/cluster starts the same jobs in a Slurm of two nodes",
    r"^(?:pip|pipx|uv|git|docker) |pip install": "downloads; tests/install resolves and installs what it names",
    r"^nox ": "a session of this repository",
    r"^\*/\d+ \*": "a line of a crontab; tests/cluster runs one in a real cron",
    r"transformers serve|vllm serve": "needs packages that the tests do not have",
    r"llama3\.1-8b --bf16|llama3-8b --num-layers 8|llama3\.2-1b --bf16": "needs a GPU",
    r"^(?:python3 -m venv|\. \w+/bin/activate)": "a line before an installation",
    r"^(?:eval|env) ": "tests/shared/console/test_shell_completion.py evaluates the same in every shell",
}


def commands_of(page: str) -> list[str]:
    """The shell blocks of a page, and its indented lines that begin with a program."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return [*blocks, *re.findall(rf"^ {{4}}({PROGRAM}.*)$", prose, re.MULTILINE)]


def cannot_run(command: str) -> bool:
    return any(re.search(pattern, command, re.MULTILINE) for pattern in CANNOT_RUN)


@pytest.mark.parametrize("page", PAGES)
def test_each_command_is_run_or_its_reason_is_known(page: str) -> None:
    runnable = [command for command in commands_of(PAGES[page]) if not cannot_run(command)]
    assert not runnable or page in RUN_BY, runnable
    if page in RUN_BY:
        assert Path(page).stem in (ROOT / RUN_BY[page]).read_text() or "docs/seeds" in page


def test_each_reason_is_needed() -> None:
    commands = [command for page in PAGES.values() for command in commands_of(page)]
    assert len(commands) > 200
    for pattern in CANNOT_RUN:
        assert any(re.search(pattern, command, re.MULTILINE) for command in commands), pattern


@pytest.mark.parametrize("page", PAGES)
def test_no_command_stands_in_running_text(page: str) -> None:
    """A site joins such lines, and turns two hyphens into a dash."""
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?:lt-[a-z]+|nox|srun|sbatch|pip|torchrun) .*(?: --?\w|\\$)", prose, re.MULTILINE) == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the pages name."""
    directory = tmp_path_factory.mktemp("pages")
    demo = ROOT / "tests/demo"
    with (demo / "corpus.jsonl.zst").open("rb") as compressed:
        text = zstandard.ZstdDecompressor().stream_reader(compressed).read()
    lines = text.splitlines(keepends=True)[:240]
    for folder in ("crawl", "crawl-2026", "data", "dumps"):
        (directory / folder).mkdir()
    for name, part in (("crawl/1", lines[:120]), ("crawl/2", lines[60:160]), ("crawl-2026/1", lines[100:200])):
        (directory / f"{name}.jsonl.zst").write_bytes(zstandard.compress(b"".join(part)))
    for name in ("corpus", "web", "code", "books"):
        (directory / f"{name}.jsonl").write_bytes(b"".join(lines))
    (directory / "corpus.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines)))
    (directory / "evals.jsonl").write_text(json.dumps({"text": json.loads(lines[3])["text"]}) + "\n")
    for name in ("gpt2", "llama3"):
        (directory / name).symlink_to(demo / "tokenizer")
    shutil.copy(SAMPLES / "pyspy_native_rank_3.txt", directory / "pyspy_rank_3.txt")
    tools = documented_blocks.run(
        Block(
            "sh",
            "lt-preprocess code.jsonl --tokenizer gpt2/ --append-eod --stream -o data/code > data/code.list\n"
            "lt-preprocess books.jsonl --tokenizer gpt2/ --append-eod -o data/books\n"
            "lt-preprocess dedup corpus.jsonl --method minhash -o data/2025\n"
            "lt-train --model tiny --seq-length 64 --train-iters 4 --log-sample-loss --save run1 data/books_text_document\n",
        ),
        directory,
        quick=True,
    )
    assert tools.returncode == 0, tools.stderr
    for path in (SAMPLES / "nccl_late").iterdir():
        for folder in ("run1", "dumps", "."):
            shutil.copy(path, directory / folder / path.name)
    return directory


# 1: something is stuck, or a step has a spike.
CODES = {"hangs": {1}, "blame": {0, 1}}
RUN_HERE = [
    (Path(page).stem, command)
    for page, test in RUN_BY.items()
    if test == HERE
    for command in commands_of(PAGES[page])
    if not cannot_run(command)
]


@pytest.mark.parametrize(("page", "command"), RUN_HERE)
def test_the_command_runs(page: str, command: str, place: Path) -> None:
    """Except that /tmp is another directory, that fewer tokens are trained, and that all tasks of an array run."""
    script = re.sub("(--train-tokens) [0-9]+", r"\1 1024", command.replace("/tmp/", f"{place}/"))
    if "--shard auto/16" in script:
        script = f"for SLURM_ARRAY_TASK_ID in {{0..15}}; do export SLURM_ARRAY_TASK_ID; {script}; done"
    # A copy of a process lacks the pipes of the shell.
    done = documented_blocks.run(Block("sh", script), place, quick="<(" not in script)
    assert done.returncode in CODES.get(page, {0}), done.stderr
    assert "Traceback" not in done.stderr
