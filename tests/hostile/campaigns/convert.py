"""A fault campaign on lt-convert: whatever happens to it, is there the old result, the new one, or one that resumes?

    python tests/hostile/campaigns/convert.py                # every system call of every command once, and 200 kills at random
    python tests/hostile/campaigns/convert.py --runs 50      # a sample of that size
    python tests/hostile/campaigns/convert.py --seed 7

Each run disturbs a conversion in a directory of its own: SIGKILL at a random moment or in a system call (every rename, unlink,
sync and write that it makes), EIO, ENOSPC or EDQUOT from a system call, a second process of the same command. After half of the
kills the source is another one when the command is given again. Half of the commands replace an older result with --force. What
must hold:

- the disturbed command ends with 0 and all of the result, or with one line of an error and the exit code for it;
- DST is the old result, the new one, or not there; in that case the old one is whole beside it, under its hidden name;
- the command, given again, ends with 0; every file is byte for byte that of an undisturbed run, its checksums are right, and
  nothing hidden is left.

Prints a line for each kind with the number of runs, and exits with 1 when something did not hold. Needs strace and, for the
injection of faults, root or a kernel that lets a process trace its children.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

import nursery
from convert_models import content, write_model
from fault_campaign import ERRORS, Broken, ended, in_turn

from lt_convert.commands import checksum_verification, conversion
from lt_convert.engine.journal import JOURNAL

FILES = ("pwrite64", "ftruncate", "fsync", "fdatasync", "rename", "unlinkat", "unlink", "mkdirat")
# Of the writes, only those to these files count: the program writes to standard error, too.
WRITTEN = (JOURNAL, "lt-convert.json", "config.json", ".metadata", "release/run.json", "release/checksums.json",
           "latest_checkpointed_iteration.txt")  # fmt: skip
CALLS = (*FILES, "write")
FAILING = ("pwrite64", "ftruncate", "fsync", "fdatasync", "rename", "write")
# A line in the journal after every tensor, which are a few kB here.
PROGRAM = """
from lt_convert.engine import journal
journal.SYNC_SECONDS = 0.0
from lt_convert.cli import main
main()
"""
RANDOM_KILLS = 200


@dataclasses.dataclass(frozen=True)
class Command:
    source: str
    to: str
    replaces: bool

    def __str__(self) -> str:
        return f"{self.source} to {self.to}{', replacing' if self.replaces else ''}"


COMMANDS = tuple(
    Command(source, to, replaces)
    for source, to in (("hf", "megatron-dist"), ("torchtitan", "hf"), ("megatron-dist", "torchtitan"), ("hf", "megatron-legacy"))
    for replaces in (False, True)
)
Disturbance = Callable[["Place"], list[subprocess.CompletedProcess[str]]]


@dataclasses.dataclass(frozen=True)
class Place:
    """A directory for one run: `out` is the destination, `source` what is converted, a copy of its own."""

    directory: Path
    command: Command

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def source(self) -> Path:
        return self.directory / "in" / "source"

    def words(self, python: str) -> list[str]:
        force = ["--force"] if self.command.replaces else []
        arguments = [self.source, "--to", self.command.to, "-o", self.out, *force]
        return [python, "-c", PROGRAM, *map(str, arguments)]

    def start(self, prefix: tuple[str, ...] = (), python: str = sys.executable) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [*prefix, *self.words(python)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def finish(self, *prefix: str) -> subprocess.CompletedProcess[str]:
        """Behind strace, a new interpreter; undisturbed, a copy of one that has imported everything."""
        return ended(self.start(prefix) if prefix else self.start(python=nursery.light_python()))


class Campaign:
    """Sources in every format, each with a second one of the same sizes, and what is made of them undisturbed."""

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.choose = random.Random(seed)
        self.places = 0
        self.happened: collections.Counter[str] = collections.Counter()
        self.resumed = 0
        for number in (0, 1):
            model = write_model(directory / f"sources{number}" / "hf", seed=number, tokenizer=True)
            for to in ("torchtitan", "megatron-dist"):
                conversion.convert(conversion.Request(str(model), to, str(model.with_name(to))))

    def prepare(self, command: Command) -> Place:
        self.places += 1
        place = Place(self.directory / f"place{self.places}", command)
        shutil.copytree(self.directory / "sources0" / command.source, place.source)
        if command.replaces:
            shutil.copytree(self.old(), place.out)
        return place

    @functools.cache  # noqa: B019
    def old(self) -> Path:
        return write_model(self.directory / "old", seed=9)

    @functools.cache  # noqa: B019
    def expected(self, command: Command, number: int) -> dict[str, bytes]:
        place = self.prepare(command)
        self.change_source(place, number)
        done = place.finish()
        if done.returncode:
            raise Broken(f"the undisturbed command ends with {done.returncode}: {done.stderr}")
        return without_places(content(place.out))

    def change_source(self, place: Place, number: int) -> None:
        shutil.rmtree(place.source)
        shutil.copytree(self.directory / f"sources{number}" / place.command.source, place.source)

    @functools.cache  # noqa: B019
    def calls(self, command: Command) -> dict[str, int]:
        """How often the undisturbed command makes each system call; for threads, the most that one of them makes."""
        place, trace = self.prepare(command), self.directory / "trace"
        begin = time.monotonic()
        place.finish("strace", "-f", "-o", str(trace), "-e", f"trace={','.join(CALLS)}")
        self.seconds = time.monotonic() - begin
        found: collections.Counter[tuple[str, str]] = collections.Counter(re.findall(r"^(\d+) +(\w+)\(", trace.read_text(), re.M))
        most = {call: max((count for (_, name), count in found.items() if name == call), default=0) for call in CALLS}
        return most | {"write": 12}

    def disturbances(self, command: Command) -> Iterator[tuple[str, Disturbance]]:
        for call in CALLS:
            for number in range(1, self.calls(command)[call] + 1):
                yield f"SIGKILL in {call}", functools.partial(self.inject, f"{call}:signal=KILL:when={number}")
                if call in FAILING:
                    error = ERRORS[number % len(ERRORS)]
                    yield f"{error} from {call}", functools.partial(self.inject, f"{call}:error={error}:when={number}")
        # All that follow fail, too, as on a disk that is full.
        for call in FAILING:
            for error in ERRORS:
                yield f"{error} from {call} on", functools.partial(self.inject, f"{call}:error={error}:when=2+")
        yield "two at once", self.two

    def inject(self, what: str, place: Place) -> list[subprocess.CompletedProcess[str]]:
        call = what.partition(":")[0]
        paths = [f"{place.directory}/.out.partial/{name}" for name in WRITTEN] if call == "write" else []
        only = [word for path in paths for word in ("-P", path)]
        return [place.finish("strace", "-f", "-qq", "-o", "/dev/null", *only, "-e", f"trace={call}", "-e", f"inject={what}")]

    def kill(self, place: Place) -> list[subprocess.CompletedProcess[str]]:
        process = place.start()
        time.sleep(self.choose.uniform(0.1, 1.2 * self.undisturbed_seconds))
        process.kill()
        return [ended(process)]

    @functools.cached_property
    def undisturbed_seconds(self) -> float:
        place, begin = self.prepare(COMMANDS[0]), time.monotonic()
        ended(place.start())
        return time.monotonic() - begin

    def two(self, place: Place) -> list[subprocess.CompletedProcess[str]]:
        return [ended(process) for process in [place.start() for _ in range(2)]]

    def run(self, kind: str, command: Command, disturb: Disturbance) -> None:
        place = self.prepare(command)
        results = disturb(place)
        self.happened[kind] += 1
        for done in results:
            if done.returncode not in (0, 73, 74, 75, -9, 137):
                raise Broken(f"{kind}: {command}: ended with {done.returncode}: {done.stderr}")
            if done.returncode in (73, 74, 75) and "error: " not in done.stderr:
                raise Broken(f"{kind}: {command}: no reason: {done.stderr}")
        wanted = self.expected(command, 0)
        self.check_state(place, wanted, any(done.returncode == 0 for done in results), kind)
        # In every other run.
        changed = self.happened.total() % 2 == 0 and not (place.out / "lt-convert.json").exists()
        if changed:
            self.change_source(place, 1)
            wanted = self.expected(command, 1)
            kind = f"{kind}, then another source"
        again = place.finish()
        if again.returncode:
            raise Broken(f"{kind}: {command}: again, it ends with {again.returncode}: {again.stderr}")
        self.resumed += "resumes after" in again.stderr
        if without_places(content(place.out)) != wanted:
            raise Broken(f"{kind}: {command}: again, the result is another one")
        with contextlib.redirect_stderr(io.StringIO()):
            problems = checksum_verification.verify(str(place.out))["problems"]
        left = sorted({path.name for path in place.directory.iterdir()} - {"in", "out"})
        if problems or left or (place.out / JOURNAL).exists():
            raise Broken(f"{kind}: {command}: {problems}, left behind: {left}")
        shutil.rmtree(place.directory)

    def check_state(self, place: Place, wanted: dict[str, bytes], is_done: bool, kind: str) -> None:
        """What is visible is whole: the old result, the new one, or nothing."""
        found = without_places(content(place.out)) if place.out.is_dir() else None
        old = without_places(content(self.old()))
        replaced = place.directory / ".out.replaced"
        if found is None and place.command.replaces and not (replaced.is_dir() and content(replaced) == old):
            raise Broken(f"{kind}: {place.command}: neither the old result nor the new one is there")
        allowed = [wanted] if is_done else [wanted, *([old] if place.command.replaces else [])]
        if found not in ([*allowed] if is_done else [*allowed, None]):
            raise Broken(f"{kind}: {place.command}: what is there is neither the old result nor the new one")


def without_places(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files without the directory's own name, which is in records, and without a journal, which no reader looks at."""
    files.pop(JOURNAL, None)
    for name in [name for name in files if name.rpartition("/")[2] in ("run.json", "checksums.json")]:
        text = re.sub(r"/[^\"]*/place\d+/", "/", files[name].decode())
        if name.endswith("checksums.json"):
            record = json.loads(text)
            # That of a run has the checksum of run.json, and spaces that make up for it.
            record["crc32"].pop("run.json", None)
            text = json.dumps(record)
        files[name] = text.encode()
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="so many, of as many kinds; up to forty, of fewer commands")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed")
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        campaign = Campaign(Path(folder), options.seed)
        # To count the calls of a command takes as long as a run.
        commands = campaign.choose.sample(COMMANDS, min(len(COMMANDS), max(2, (options.runs or RANDOM_KILLS) // 5)))
        cases = [(kind, command, disturb) for command in commands for kind, disturb in campaign.disturbances(command)]
        cases += [
            ("SIGKILL at random", command, campaign.kill) for command in commands for _ in range(RANDOM_KILLS // len(COMMANDS))
        ]
        if options.runs is not None:
            cases = in_turn([(case[0], case) for case in cases], campaign.choose)[: options.runs]
        for kind, command, disturb in cases:
            try:
                campaign.run(kind, command, disturb)
            except Broken as error:
                broken.append(str(error))
                print(error, flush=True)
    for kind, count in sorted(campaign.happened.items()):
        print(f"{count:6d}  {kind}")
    print(f"{sum(campaign.happened.values())} runs, {campaign.resumed} resumed, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
