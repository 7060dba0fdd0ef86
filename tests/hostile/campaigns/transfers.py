"""Reads and writes of every tool that transfer fewer bytes than asked for, are interrupted, or fail: is the result the same?

    python tests/hostile/campaigns/transfers.py --runs 500 monitor       # 500 disturbed runs of the commands of lt-monitor
    python tests/hostile/campaigns/transfers.py --runs 100               # 100 disturbed runs of each tool
    python tests/hostile/campaigns/transfers.py --runs 50 --seed 7 --command scrape

Each run gives a command a directory of its own, in which tests/hostile/faulty_calls.c disturbs the reads, writes and syncs of all
files, the standard output among them. A short transfer or an interrupted call is no error: the command must end with 0 and write
every byte that it writes undisturbed. A call that fails (EFBIG, ENOSPC, EDQUOT, EIO, once or from then on) may end the command
with one line of an error and the exit code for it. The same command, undisturbed in the same directory, must then complete the
result.

A run in which no call met with a fault does not count. Prints a line for each command with its runs and faults, and exits with 1
when something did not hold. Needs a C compiler.
"""

import argparse
import collections
import dataclasses
import errno
import gzip
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "train")]

import nursery  # noqa: E402
from convert_models import write_model  # noqa: E402
from fault_campaign import Broken, tensor_checksums  # noqa: E402

TOKENIZER = Path(__file__).parents[2] / "demo" / "tokenizer"
LIBRARY = Path(__file__).parents[1] / "faulty_calls.c"
# Warnings and critical findings of lt-monitor, an error of the disk, a lock, an input that a failing read makes unreadable.
ORDERLY = {0, 1, 3, 65, 66, 69, 73, 74, 75}
# Records of the time and of inodes.
UNLIKE = ("lt-convert.json", ".state", ".lock")
MOST_SECONDS = 300
MODEL = (
    *("--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-3", "--device", "cpu", "--ranks", "1", "--log-interval", "1", "--eval-iters", "1"),
)


@dataclasses.dataclass(frozen=True)
class Command:
    """`words` have the command's paths relative to its directory. Standard output is appended to the file `stdout` there.

    `repeats` is how often the command runs: a log grows before each repetition. `is_appended` says that what a run has written to
    standard output counts, and a repetition adds only what is missing; otherwise the repetition writes all of it again. With
    `may_repeat`, a command that fails after it has printed a line, or a part of it, may print that line again.
    """

    tool: str
    name: str
    words: str
    repeats: int = 1
    is_appended: bool = False
    may_repeat: bool = False


TOKENIZE = "--tokenizer tokenizer --append-eod --workers 1 -o out"
COMMANDS = (
    Command("preprocess", "tokenize", f"in/a.jsonl --on-error quarantine {TOKENIZE}"),
    Command("preprocess", "tokenize .gz", f"in/a.jsonl.gz {TOKENIZE}"),
    Command("preprocess", "tokenize .zst", f"in/a.jsonl.zst {TOKENIZE}"),
    Command("preprocess", "tokenize Parquet", f"in/a.parquet {TOKENIZE}"),
    Command("preprocess", "tokenize CSV", f"in/a.csv {TOKENIZE}"),
    Command("preprocess", "tokenize with cuts", f"in/a.jsonl --on-error skip --max-document-tokens 40 {TOKENIZE}"),
    Command("preprocess", "merge", "merge in/data_text_document in/data_title_document -o out_text_document"),
    Command("preprocess", "shuffle", "shuffle in/data_text_document -o out_text_document"),
    Command("preprocess", "pack", "pack in/data_text_document --seq-length 64 -o out_text_document"),
    Command("preprocess", "split", "split in/data_text_document --ratios 1,1 --names a,b -o out"),
    Command("preprocess", "cat", "cat in/data_text_document --tokenizer tokenizer"),
    Command("preprocess", "verify", "verify in/data_text_document --deep 50"),
    Command("convert", "safetensors to torch_dist", "in/hf --to megatron-dist -o out"),
    Command("convert", "safetensors to DCP", "in/hf --to torchtitan -o out"),
    Command("convert", "safetensors to legacy", "in/hf --to megatron-legacy -o out"),
    Command("convert", "torch_dist to safetensors", "in/dist --to hf -o out"),
    Command("convert", "DCP to safetensors", "in/titan --to hf -o out"),
    Command("convert", "legacy to safetensors", "in/legacy --to hf -o out"),
    Command("convert", "verify", "verify in/dist in/hf"),
    Command(
        "train", "train", " ".join((*MODEL, "--train-iters", "4", "--save-interval", "2", "--save out in/data_text_document"))
    ),
    Command(
        "train", "resume", " ".join((*MODEL, "--train-iters", "4", "--save-interval", "2", "--save run in/data_text_document"))
    ),
    Command("monitor", "scrape", "scrape --state state run.log", repeats=3, is_appended=True),
    Command("monitor", "prom", "prom -o out.prom run.log", repeats=3),
    Command("monitor", "alert", "alert --json --state alert.state run.log", repeats=3, is_appended=True, may_repeat=True),
    Command("monitor", "plot", "plot -o out.html run.log"),
    Command("monitor", "summarize", "summarize --json run.log"),
    Command("monitor", "tail-cause", "tail-cause --json run.log"),
)
LOG_LINES = 400


class Campaign:
    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.random = random.Random(seed)
        self.library = folder / "faulty_calls.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("there is no C compiler")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", self.library, LIBRARY, "-ldl"], check=True)
        # Of the nurseries, and so of their copies.
        os.environ["LD_PRELOAD"] = str(self.library)
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        self.runs: collections.Counter[str] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.results: dict[Command, dict[str, object]] = {}

    def write_inputs(self, tools: set[str]) -> None:
        place = self.inputs / "in"
        place.mkdir()
        (self.inputs / "tokenizer").symlink_to(TOKENIZER)
        lines = [json.dumps({"text": f"document {n}, with some text " * 9, "title": f"the title {n % 40}"}) for n in range(300)]
        (place / "a.jsonl").write_text("\n".join([*lines[:100], "bad", *lines[100:], *lines[50:90]]) + "\n")
        whole = "\n".join(lines).encode()
        (place / "a.jsonl.gz").write_bytes(gzip.compress(whole))
        if tools & {"preprocess", "train"}:
            import pyarrow
            import pyarrow.parquet
            import zstandard

            (place / "a.jsonl.zst").write_bytes(zstandard.compress(whole))
            (place / "a.csv").write_text(
                "text,title\n" + "".join(f'"document {n}, with ""some"" text",title {n}\n' for n in range(300))
            )
            table = pyarrow.Table.from_pylist([json.loads(line) for line in lines])
            pyarrow.parquet.write_table(table, place / "a.parquet", row_group_size=50)
            keys = ["--json-keys", "text", "--json-keys", "title", "--append-eod", "--tokenizer", "tokenizer", "-o", "in/data"]
            self.prepare("preprocess", "in/a.jsonl.gz", *keys)
        if "convert" in tools:
            write_model(place / "hf")
            for name, kind in (("dist", "megatron-dist"), ("titan", "torchtitan"), ("legacy", "megatron-legacy")):
                self.prepare("convert", "in/hf", "--to", kind, "-o", f"in/{name}")
        if "train" in tools:
            begin = [
                *MODEL,
                "--train-iters",
                "4",
                "--save-interval",
                "2",
                "--exit-interval",
                "2",
                "--save",
                "run",
                "in/data_text_document",
            ]
            self.prepare("train", *begin, code=75)
        log = [json.dumps({"v": 1, "kind": "step", "step": n, "loss": 2.5, "skipped_steps": 1}) for n in range(1, LOG_LINES + 1)]
        log[LOG_LINES // 2] = json.dumps(
            {"v": 1, "kind": "fault", "fault": "other", "cause": "root", "severity": "critical", "message": "it broke"}
        )
        (place / "run.log").write_text("\n".join(log) + "\n")
        (place / "run.log.gz").write_bytes(gzip.compress((place / "run.log").read_bytes()))

    def prepare(self, tool: str, *words: str, code: int = 0) -> None:
        done = self.start(self.inputs, tool, list(words), {})
        if done.returncode != code:
            raise SystemExit(f"lt-{tool} {' '.join(words)}: {done.returncode}: {done.stderr}")

    def start(self, place: Path, tool: str, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the tool as a copy of a nursery of this campaign, which has loaded the library.

        A nursery that the campaign shares with other tests has not loaded it: disturbed commands are then processes of their own.
        """
        imported = nursery.TRAINING if tool == "train" else nursery.TOOLS
        if variables and nursery.LISTENER + imported in os.environ:
            program = [str(Path(sysconfig.get_path("scripts")) / f"lt-{tool}")]
        else:
            program = [nursery.python() if tool == "train" else nursery.light_python(), "-m", f"lt_{tool}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)} | variables
        with (place / "stdout").open("ab") as output:
            return subprocess.run(
                [*program, *words], cwd=place, env=environment, text=True, timeout=MOST_SECONDS,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
            )  # fmt: skip

    def new_place(self) -> Path:
        """Create the directory anew, always at the same path, because records have paths and checksums of records."""
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.inputs, place, symlinks=True)
        (place / "stdout").unlink(missing_ok=True)
        return place

    def run(self, command: Command) -> bool:
        """Disturb the command, and compare its result, or the result of its repetition, with the undisturbed result.

        Returns whether a call met with a fault.
        """
        if command not in self.results:
            undisturbed = self.new_place()
            self.repeat(command, undisturbed, {}, is_orderly=lambda code: code in (0, 1, 3))
            self.results[command] = result(command, undisturbed)
        place, counts = self.new_place(), self.folder / "counts"
        kind, variables = self.disturbance()
        counts.unlink(missing_ok=True)
        variables |= {
            "FAULTY_DIRECTORY": str(place), "FAULTY_SEED": str(self.random.randrange(1 << 30)),
            "FAULTY_COUNTS": str(counts), "PYTHONUNBUFFERED": self.random.choice(["", "1"]),
        }  # fmt: skip
        legal = "FAULTY_ERROR" not in variables
        what = f"{command.tool} {command.name}: {kind}"
        name = f"{command.tool}: {command.name}"
        try:
            has_failed = self.repeat(command, place, variables, lambda code: code in ((0, 1, 3) if legal else ORDERLY), what)
        finally:
            faults = struct.unpack("qq", counts.read_bytes())[1] if counts.exists() else 0
            self.runs[name] += faults > 0
            self.faults[name] += faults
        self.failed[name] += has_failed
        if has_failed:
            if not command.is_appended:
                (place / "stdout").unlink()
            # The log has all its lines by now.
            self.repeat(dataclasses.replace(command, repeats=1), place, {}, lambda code: code in (0, 1, 3), f"{what}, again")
        differences = compare(result(command, place), self.results[command])
        if differences:
            raise Broken(f"{what} {variables}: {differences}")
        return faults > 0

    def disturbance(self) -> tuple[str, dict[str, str]]:
        """Draw a kind of fault, and the variables that cause it."""
        kind = self.random.choice(["short reads", "short writes", "short", "interrupted", "failing", "failing", "failing"])
        if kind != "failing":
            shorts = {"short reads": "r", "short writes": "w"}.get(kind, "rw")
            return kind, {"FAULTY_SHORT": shorts, "FAULTY_INTERRUPTS": "100" if kind == "interrupted" else "0"}
        call, name = self.random.choice(
            [("w", "EFBIG"), ("w", "ENOSPC"), ("w", "EDQUOT"), ("w", "EIO"), ("r", "EIO"), ("s", "EIO")]
        )
        first = self.random.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
        last = self.random.choice([first, 1_000_000_000])
        shorts = self.random.choice(["", "rw"])
        once = "once" if last == first else "from then on"
        variables = {
            "FAULTY_ERROR": str(getattr(errno, name)),
            "FAULTY_CALL": call,
            "FAULTY_FIRST": str(first),
            "FAULTY_LAST": str(last),
        }
        return f"{name} from {call} {first} {once}", variables | ({"FAULTY_SHORT": shorts} if shorts else {})

    def repeat(
        self, command: Command, place: Path, variables: dict[str, str], is_orderly: Callable[[int], bool], what: str = ""
    ) -> bool:
        """Run the command as often as it is repeated, while its log grows. Return whether a repetition failed."""
        lines = (self.inputs / "in" / "run.log").read_bytes().splitlines(keepends=True)
        has_failed = False
        for turn in range(1, command.repeats + 1):
            (place / "run.log").write_bytes(b"".join(lines[: len(lines) * turn // command.repeats]))
            done = self.start(place, command.tool, command.words.split(), variables)
            if not is_orderly(done.returncode) or "Traceback" in done.stderr or "internal error" in done.stderr:
                raise Broken(f"{what} {variables}: ended with {done.returncode}: {done.stderr[-2000:]}")
            has_failed |= done.returncode not in (0, 1, 3)
        return has_failed


def result(command: Command, place: Path) -> dict[str, object]:
    """Everything that the command has written and that is the same in each undisturbed run."""
    if command.tool == "train":
        save = place / command.words.split("--save ")[1].split()[0]
        losses = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
        by_step = {record["step"]: record["loss"] for record in losses if record.get("kind") == "step"}
        return {"losses": by_step, "tensors": tensor_checksums(save / "iter_0000004")}
    lines = without_times((place / "stdout").read_bytes()).splitlines()
    if command.may_repeat:
        lines = [line for line in dict.fromkeys(lines) if is_json(line)]
    written: dict[str, object] = {"stdout": lines}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_file() and name.startswith(("out", ".")) and not name.endswith(UNLIKE):
            written[name] = without_times(path.read_bytes())
    return written


def is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def without_times(content: bytes) -> bytes:
    """Return the content without times and durations, and without a checksum of the source's inode and time."""
    text = re.sub(rb"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", b"", content)
    text = re.sub(rb"(?<=unchanged for )[^)]*", b"", text)
    text = re.sub(rb'(?<="own_crc32": ")[0-9a-f]{8}|(?<="plan": ")[0-9a-f]*', b"", text)
    return re.sub(rb"(?<=_seconds)(\{.*\})? [0-9.e+]+", b"", text)


def compare(found: dict[str, object], wanted: dict[str, object]) -> str:
    names = [name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)]
    return ", ".join(
        f"{name} {'is missing' if name not in found else 'differs' if name in wanted else 'is left'}" for name in names
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tools = list(dict.fromkeys(command.tool for command in COMMANDS))
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of: {', '.join(tools)}; by default all")
    parser.add_argument("--runs", type=int, default=100, help="disturbed runs of each tool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", help="only commands that have this in their name")
    options = parser.parse_args()
    chosen = set(options.tools) or set(tools)
    broken = 0
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        campaign = Campaign(Path(folder).resolve(), options.seed)
        campaign.write_inputs(chosen)
        for tool in (tool for tool in tools if tool in chosen):
            commands = [command for command in COMMANDS if command.tool == tool and (options.command or "") in command.name]
            disturbed = tries = 0
            while commands and disturbed < options.runs and tries < 5 * options.runs + len(commands):
                try:
                    disturbed += campaign.run(commands[disturbed % len(commands)])
                except Broken as error:
                    broken += 1
                    disturbed += 1
                    print(error, flush=True)
                tries += 1
    for name, runs in campaign.runs.items():
        print(f"{runs:6d} runs  {campaign.faults[name]:9,d} faults  {campaign.failed[name]:5d} failed and were repeated  {name}")
    print(f"{campaign.runs.total()} runs, {campaign.faults.total():,} faults, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
