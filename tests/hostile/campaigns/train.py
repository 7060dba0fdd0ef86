"""A fault campaign on lt-train: whatever happens to it, does the same command end where an undisturbed run ends?

    python tests/hostile/campaigns/train.py                # 120 runs
    python tests/hostile/campaigns/train.py --runs 20 --seed 7

Each run disturbs a training run of eight steps, which saves after every second one, in a directory of its own: SIGKILL of the
launcher, of a rank or of a rank's writer at a random moment; SIGKILL in, or EIO, ENOSPC or EDQUOT from, one of the system calls
that it makes on its checkpoints (rename, unlink, sync, mkdir); a filesystem that is too small; a second process of the same
command; another dataset under the same name when the command is given again. What must hold:

- the disturbed command ends with 0, or with one line of an error and the exit code for it, or by the signal;
- the newest complete checkpoint is never older than the newest that the command has announced;
- the command, given again until it ends, ends with 0, the loss of every step is that of an undisturbed run, bit for bit, as are
  the weights and the optimizer's state, the checksums are right and nothing hidden is left;
- it refuses to go on with another dataset, and trains on it alone where no checkpoint was complete.

Prints a line for each kind with the number of runs, and exits with 1 when something did not hold. Needs strace and root, which
mounts the small filesystem.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

import nursery
from fault_campaign import ERRORS, Broken, ended, in_turn, tensor_checksums

from lt_shared.contracts import checkpoint_layout

STAGING = Path(__file__).with_name("staging")
DEMO = Path(__file__).parents[2] / "demo"
STEPS = 8
SMALL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "32", "--ffn-hidden-size", "64", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", str(STEPS), "--lr", "1e-3", "--save-interval", "2"),
    *("--keep-last", "2", "--log-interval", "1", "--eval-iters", "1", "--device", "cpu"),
)
RENAMES = ("rename", "renameat2")
CALLS = (*RENAMES, "unlink", "unlinkat", "rmdir", "mkdir", "fsync", "fdatasync")
# A rank has ended, could not write, another run has the lock, no room for a checkpoint from the beginning.
ORDERLY = (0, 69, 73, 74, 75, 78)
SMALL_DISK_BYTES = 600_000
ATTEMPTS = 4


@dataclasses.dataclass(frozen=True)
class Command:
    name: str
    options: tuple[str, ...]
    is_remote: bool = False
    is_local: bool = False
    is_staged: bool = False


COMMANDS = (
    Command("one rank", ("--ranks", "1")),
    Command("two ranks, asynchronous", ("--ranks", "2", "--async-save", "--use-distributed-optimizer")),
    # fsspec treats local:// as it treats s3://.
    Command("to a store", ("--ranks", "1", "--async-save"), is_remote=True),
    Command("local copies", ("--ranks", "2", "--use-distributed-optimizer", "--save-local-interval", "1"), is_local=True),
    # As on a GPU: most of such a run's time are copies to host memory, so that is where most kills are.
    Command(
        "staged", ("--ranks", "2", "--use-distributed-optimizer", "--save-local-interval", "1"), is_local=True, is_staged=True
    ),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """A directory for one run: `save` has its checkpoints, `data` its dataset."""

    directory: Path
    command: Command

    @property
    def save(self) -> Path:
        return self.directory / "save"

    @property
    def disk(self) -> Path:
        """The node's own."""
        return self.directory / "disk"

    @property
    def data(self) -> Path:
        return self.directory / "data_text_document"

    def start(self, prefix: tuple[str, ...] = (), python: str = sys.executable) -> subprocess.Popen[str]:
        (self.directory / "tmp").mkdir(exist_ok=True)
        save = f"local://{self.save}" if self.command.is_remote else str(self.save)
        local = ("--save-local", str(self.disk)) if self.command.is_local else ()
        words = [python, "-m", "lt_train", *SMALL, *self.command.options, *local, "--save", save, str(self.data)]
        variables = {"TMPDIR": str(self.directory / "tmp"), "OMP_NUM_THREADS": "1"}
        if self.command.is_staged:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STAGING), os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [*prefix, *words], env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def finish(self, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return ended(self.start(prefix))

    def finish_copied(self) -> subprocess.CompletedProcess[str]:
        """The same in copies of a process that has imported torch, for a command that nothing disturbs."""
        return ended(self.start(python=nursery.python()))


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """What a command makes of the first dataset, how long it takes, and its system calls on checkpoints, each with its number
    among those of its process."""

    result: dict[str, object]
    seconds: float
    calls: tuple[tuple[str, int], ...]


Disturbance = Callable[[Place], list[subprocess.CompletedProcess[str]]]


class Campaign:
    """Two datasets of the same documents in another order, and what each command makes of them undisturbed."""

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.choose = random.Random(seed)
        self.places = 0
        self.happened: collections.Counter[str] = collections.Counter()
        self.interrupted = 0
        self.texts = [json.dumps({"text": f"document {number} says {number * 7919 % 1000} " * 8}) for number in range(120)]

    @functools.cache  # noqa: B019
    def dataset(self, name: str) -> list[Path]:
        source = self.directory / f"{name}.jsonl"
        source.write_text("\n".join(self.texts if name == "first" else self.texts[::-1]) + "\n")
        words = ["lt_preprocess", str(source), "--tokenizer", str(DEMO / "tokenizer"), "-o", str(self.directory / name)]
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
        return list(self.directory.glob(f"{name}_text_document.*"))

    def prepare(self, command: Command, data: str = "first") -> Place:
        self.places += 1
        place = Place(self.directory / f"place{self.places}", command)
        place.directory.mkdir()
        self.put_data(place, data)
        return place

    def put_data(self, place: Place, name: str) -> None:
        for path in self.dataset(name):
            target = place.data.with_name(path.name.replace(f"{name}_", "data_"))
            shutil.copyfile(path, target.with_suffix(".new"))
            target.with_suffix(".new").rename(target)

    @functools.cache  # noqa: B019
    def undisturbed(self, command: Command) -> Undisturbed:
        place, trace, begin = self.prepare(command), self.directory / "trace", time.monotonic()
        outcome = place.finish(("strace", "-f", "--seccomp-bpf", "-qq", "-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}"))
        seconds = time.monotonic() - begin
        if outcome.returncode:
            raise Broken(f"the undisturbed command ends with {outcome.returncode}: {outcome.stderr}")
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        calls = set()
        for process, call, rest in re.findall(r"^(\d+) +(\w+)\((.*)$", trace.read_text(errors="replace"), re.M):
            counts[process, call] += 1
            if str(place.save) in rest or str(place.disk) in rest:
                calls.add((call, counts[process, call]))
        return Undisturbed(result(place), seconds, tuple(sorted(calls)))

    @functools.cache  # noqa: B019
    def expected(self, command: Command, data: str) -> dict[str, object]:
        if data == "first":
            return self.undisturbed(command).result
        place = self.prepare(command, data)
        outcome = place.finish_copied()
        if outcome.returncode:
            raise Broken(f"the undisturbed command ends with {outcome.returncode}: {outcome.stderr}")
        return result(place)

    def disturbances(self, command: Command) -> Iterator[tuple[str, Disturbance]]:
        for call, number in self.undisturbed(command).calls:
            yield f"SIGKILL in {call}", functools.partial(self.inject, f"{call}:signal=KILL:when={number}")
            error = ERRORS[number % len(ERRORS)]
            yield f"{error} from {call}", functools.partial(self.inject, f"{call}:error={error}:when={number}")
        for _ in range(10):
            yield "SIGKILL of the launcher", functools.partial(self.kill, "launcher", signal.SIGKILL)
            yield "SIGKILL of a process", functools.partial(self.kill, "any", signal.SIGKILL)
            yield "SIGTERM of the launcher", functools.partial(self.kill, "launcher", signal.SIGTERM)
        for _ in range(3):
            yield "a disk too small", self.small_disk
            yield "two at once", self.two

    def inject(self, what: str, place: Place) -> list[subprocess.CompletedProcess[str]]:
        call = what.partition(":")[0]
        injection = ("-e", f"trace={call}", "-e", f"inject={what}")
        # With it strace 6.1 sends no signal.
        quick = ("--seccomp-bpf",) if ":error=" in what else ()
        return [place.finish(("strace", "-f", *quick, "-qq", "-o", "/dev/null", *injection))]

    def kill(self, whom: str, number: signal.Signals, place: Place) -> list[subprocess.CompletedProcess[str]]:
        process = place.start()
        time.sleep(self.choose.uniform(0.3, 1.0) * self.undisturbed(place.command).seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid if whom == "launcher" else self.choose.choice(session(process.pid)), number)
        return [ended(process)]

    def small_disk(self, place: Place) -> list[subprocess.CompletedProcess[str]]:
        """Enough for a checkpoint and a part of the next."""
        place.save.mkdir()
        size = self.choose.randint(SMALL_DISK_BYTES // 4, SMALL_DISK_BYTES)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "campaign", str(place.save)], check=True)
        try:
            done = place.finish()
            copy = place.save.with_name("kept")
            shutil.copytree(place.save, copy, symlinks=True)
        finally:
            subprocess.run(["umount", str(place.save)], check=True)
        place.save.rmdir()
        copy.rename(place.save)
        return [done]

    def two(self, place: Place) -> list[subprocess.CompletedProcess[str]]:
        return [ended(process) for process in [place.start() for _ in range(2)]]

    def run(self, kind: str, command: Command, disturb: Disturbance) -> None:
        place = self.prepare(command)
        kind = f"{command.name}: {kind}"
        results = disturb(place)
        self.happened[kind] += 1
        for outcome in results:
            if outcome.returncode >= 0 and outcome.returncode not in (*ORDERLY, 137, 143):
                raise Broken(f"{kind}: ended with {outcome.returncode}: {outcome.stderr[-3000:]}")
            if outcome.returncode in ORDERLY[1:] and not re.search(r"error: |ended by", outcome.stderr):
                raise Broken(f"{kind}: no reason: {outcome.stderr[-3000:]}")
        self.interrupted += all(outcome.returncode for outcome in results)
        self.check_announced(place, results, kind)
        is_done = any(outcome.returncode == 0 for outcome in results)
        data = "second" if not is_done and self.choose.random() < 0.25 else "first"
        self.put_data(place, data)
        if data == "second":
            kind += ", then other data"
            if complete(place) or any(place.disk.glob("lt-*/iter_*")):
                again = place.finish_copied()
                if again.returncode != 65 or "is another dataset" not in again.stderr:
                    raise Broken(f"{kind}: it went on with {again.returncode}: {again.stderr[-3000:]}")
                data = "first"
                self.put_data(place, data)
        again = self.again(place, kind)
        expected, actual = dict(self.expected(command, data)), result(place)
        # What a failing disk has kept beyond --keep-last goes with the next checkpoint.
        if not set(expected.pop("checkpoints")) <= set(actual.pop("checkpoints")):  # type: ignore[call-overload]
            raise Broken(f"{kind}: again, checkpoints are missing")
        for name in expected:
            if expected[name] != actual[name]:
                raise Broken(f"{kind}: again, another {name}: {difference(expected[name], actual[name])}: {again.stderr[-1500:]}")
        # Local copies go with the run's end, and are not looked for again: a disk that does not delete them keeps them.
        copies = () if re.search("from (unlink|rmdir)", kind) else place.disk.glob("*")
        left = sorted(path.name for path in (*place.save.glob(".iter_*"), *copies))
        if left:
            raise Broken(f"{kind}: left behind: {left}")
        shutil.rmtree(place.directory)

    def check_announced(self, place: Place, results: list[subprocess.CompletedProcess[str]], kind: str) -> None:
        announced = [
            int(number)
            for outcome in results
            for number in re.findall(r'"kind":"checkpoint".*?"iteration":(\d+)', outcome.stdout)
        ]
        newest = max(complete(place), default=0)
        if newest < max(announced, default=0):
            raise Broken(f"{kind}: checkpoint {max(announced)} was announced, {newest} is the newest")

    def again(self, place: Place, kind: str) -> subprocess.CompletedProcess[str]:
        """A job that is killed leaves processes that hold the lock for a moment."""
        for _ in range(ATTEMPTS):
            outcome = place.finish_copied()
            if outcome.returncode != 75:
                break
            time.sleep(1)
        if outcome.returncode:
            raise Broken(f"{kind}: again, it ends with {outcome.returncode}: {outcome.stderr[-3000:]}")
        return outcome


def difference(wanted: object, found: object) -> str:
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return f"{found}, expected {wanted}"
    differing = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    return ", ".join(f"{name} is {found.get(name)}, expected {wanted.get(name)}" for name in differing[:5])


def session(leader: int) -> list[int]:
    """The processes of a session."""
    problems = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                problems.append(int(path.parent.name))
    return problems or [leader]


def complete(place: Place) -> list[int]:
    directories = place.save.glob("iter_*") if place.save.is_dir() else ()
    return sorted(
        int(path.name[5:]) for path in directories if (path / "run.json").is_file() and checkpoint_layout.damage(path) is None
    )


def result(place: Place) -> dict[str, object]:
    """What a run has come to: exact losses by step, and the checksums of the last checkpoint's shards, which must be right."""
    losses = {}
    for line in (place.save / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] in ("step", "eval"):
            losses[record["kind"], record.get("step", record.get("iteration"))] = record["loss"]
    directory = checkpoint_layout.iteration_directory(place.save, STEPS)
    return {"losses": losses, "checkpoints": complete(place), "state": tensor_checksums(directory)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=[command.name for command in COMMANDS], help="only this one")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed")
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder:
        campaign = Campaign(Path(folder), options.seed)
        cases = [
            ((kind, command), (kind, command, disturb))
            for command in COMMANDS
            if options.command in (None, command.name)
            for kind, disturb in campaign.disturbances(command)
        ]
        for kind, command, disturb in in_turn(cases, campaign.choose)[: options.runs]:
            if kind == "a disk too small" and (command.is_remote or os.geteuid() != 0):
                continue
            try:
                campaign.run(kind, command, disturb)
            except Broken as error:
                broken.append(str(error))
                print(error, flush=True)
    for kind, count in sorted(campaign.happened.items()):
        print(f"{count:6d}  {kind}")
    print(f"{sum(campaign.happened.values())} runs, {campaign.interrupted} interrupted, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
