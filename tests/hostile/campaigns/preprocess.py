"""A fault campaign on the commands of lt-preprocess that write datasets.

    python tests/hostile/campaigns/preprocess.py                # every situation once, and 200 kills at random: an hour
    python tests/hostile/campaigns/preprocess.py --runs 50      # a sample of that size
    python tests/hostile/campaigns/preprocess.py --command pack --kind 'SIGKILL at random'
    python tests/hostile/campaigns/preprocess.py --seed 7

Each run disturbs a command in a directory of its own: SIGKILL at a random moment or in a system call (every rename, unlink,
fsync and write that the command makes), EIO, ENOSPC or EDQUOT from a system call, a second process of the same command,
another input after a kill, a kill while it writes to S3 (moto's server). Half of them find an older dataset under the same
name. What must hold:

- the disturbed command ends with 0 and all of the result, or with one line of an error; what has an index is whole, old or new;
- the command, given again, ends with 0; every file is byte for byte that of an undisturbed run, and nothing hidden is left.

Prints a line for each kind with the number of runs, and exits with 1 when something did not hold. Needs strace and, for the
injection of faults, root or a kernel that lets a process trace its children.
"""

import argparse
import collections
import dataclasses
import functools
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_campaign import ERRORS, Broken, in_turn

TOKENIZER = Path(__file__).parents[2] / "demo/tokenizer"
CALLS = ("rename", "unlink", "fsync", "write", "copy_file_range")
# Of the writes, only those to these files count: the program writes to standard error, too.
WRITTEN = [
    f".{name}"
    for part in ("out", "out-part00000", "out-part00001")
    for name in (
        *(
            f"{part}_text_document.{ending}"
            for ending in ("bin.partial", "lengths.partial", "idx.partial", "json.partial", "journal")
        ),
        f"{part}_quarantine.jsonl.partial",
    )
]
# A line in the journal after every 2 kB. That nothing is compiled to see a fault leaves the time for the fault.
PROGRAM = """
from lt_preprocess.pipeline import run
from lt_preprocess.readers import byte_ranges, chunks
chunks.CHUNK_BYTES = byte_ranges.LocalFile.chunk_bytes = 2000
run.JOURNAL_INTERVAL_SECONDS, run.MAX_SYNC_SHARE = 0, 1e9
from lt_preprocess.cli import main
main()
"""
RANDOM_KILLS = 200


@dataclasses.dataclass(frozen=True)
class Command:
    """`arguments` are those of the program, with {out}, {source} and {data} for places."""

    name: str
    arguments: str

    def words(self, place: Path, source: Path, data: Path) -> list[str]:
        words = self.arguments.format(out=place / "out", source=source, data=data, tokenizer=TOKENIZER).split()
        return [sys.executable, "-c", PROGRAM, *words]


TOKENIZE = "{source} --tokenizer {tokenizer} --append-eod --on-error quarantine --workers 1 -o {out}"
COMMANDS = (
    Command("tokenize", TOKENIZE),
    Command("tokenize-two-keys", f"{TOKENIZE} --json-keys text --json-keys title"),
    Command("tokenize-in-parts", f"{TOKENIZE} --max-shard-size 4000"),
    Command("merge", "merge {data}_text_document {data}_title_document -o {out}_text_document"),
    Command("shuffle", "shuffle {data}_text_document -o {out}_text_document"),
    Command("pack", "pack {data}_text_document --seq-length 64 -o {out}_text_document"),
    Command("split", "split {data}_text_document --ratios 1,1 --names text_document,title_document -o {out}"),
)


class Campaign:
    """The inputs, and what the commands make of them undisturbed."""

    def __init__(self, directory: Path, seed: int):
        self.directory = directory
        self.choose = random.Random(seed)
        self.source, self.changed = directory / "in/a.jsonl", directory / "in/changed.jsonl"
        self.data = directory / "in/data"
        self.source.parent.mkdir()
        lines = [json.dumps({"text": f"document {n}, with some text" * 5, "title": f"the title {n}"}) for n in range(150)]
        lines[7:7] = lines[70:70] = ["bad"]
        self.source.write_text("\n".join(lines) + "\n")
        self.changed.write_text("\n".join(lines[::-1]) + "\n")
        both = Command("both", COMMANDS[1].arguments.replace("{out}", "{data}"))
        self.finish(both, directory, self.source)
        self.places = 0

    def finish(self, command: Command, place: Path, source: Path) -> None:
        done = self.start(command.words(place, source, self.data))
        _, errors = done.communicate()
        if done.returncode != 0:
            raise Broken(f"the undisturbed command ends with {done.returncode}: {errors}")

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    @functools.cache  # noqa: B019
    def expected(self, command: Command, source: Path) -> dict[str, bytes]:
        place = self.directory / f"expected-{command.name}-{source.stem}"
        place.mkdir()
        self.finish(command, place, source)
        return contents(place)

    @functools.cache  # noqa: B019
    def seconds(self, command: Command) -> float:
        place = self.directory / f"timed-{command.name}"
        place.mkdir()
        begin = time.monotonic()
        self.finish(command, place, self.source)
        return time.monotonic() - begin

    @functools.cache  # noqa: B019
    def trace(self, command: Command) -> str:
        """The system calls of the undisturbed command."""
        place, trace = self.directory / f"traced-{command.name}", self.directory / "trace"
        place.mkdir()
        words = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={','.join(CALLS)}"]
        subprocess.run([*words, *command.words(place, self.source, self.data)], capture_output=True, check=True)
        return trace.read_text(errors="replace")

    def calls(self, command: Command, call: str) -> int:
        """How often it makes one of them; of the writes, those that strace is told to look at."""
        made = re.findall(rf"^\d+ +{call}\((.*)", self.trace(command), re.MULTILINE)
        return len(made) if call != "write" else sum(any(f"/{name}>" in arguments for name in WRITTEN) for arguments in made)

    def new_place(self, with_old: bool) -> Path:
        """A directory, with an older dataset where the result goes."""
        self.places += 1
        place = self.directory / f"run-{self.places}"
        place.mkdir()
        if with_old:
            for key in ("text", "title"):
                for ending in ("bin", "idx", "json"):
                    shutil.copy(f"{self.data}_title_document.{ending}", place / f"out_{key}_document.{ending}")
        return place

    def check_visible(self, command: Command, place: Path, old: dict[str, bytes]) -> None:
        """What has an index is whole: the older dataset, or the new one."""
        found, new = contents(place), self.expected(command, self.source)
        for name in found:
            if name.endswith(".idx"):
                names = [name, name.replace(".idx", ".bin")]
                if not any(all(found.get(each) == known.get(each) for each in names) for known in (old, new)):
                    raise Broken(f"{name} has an index, but is neither the older dataset nor the new one")

    def check_result(self, command: Command, place: Path, old: dict[str, bytes]) -> None:
        found = contents(place)
        for name, content in (old | self.expected(command, self.source)).items():
            if found.pop(name, None) != content:
                raise Broken(f"{name} is not that of an undisturbed run")
        if found:
            raise Broken(f"an undisturbed run does not make {', '.join(found)}")

    def check_again(self, command: Command, place: Path, old: dict[str, bytes]) -> None:
        self.finish(command, place, self.source)
        self.check_result(command, place, old)
        if hidden := [path.name for path in place.iterdir() if path.name.startswith(".")]:
            raise Broken(f"left: {', '.join(hidden)}")


def paths(call: str, place: Path) -> list[str]:
    """What strace is told to look at."""
    return [word for name in WRITTEN for word in ("-P", str(place / name))] if call == "write" else []


def contents(place: Path) -> dict[str, bytes]:
    """The visible files, without the place in what the sidecars say, and without their checksum, which is of the place, too."""
    visible = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")]
    found = {path.name: path.read_bytes().replace(str(place).encode(), b"") for path in visible}
    return {name: re.sub(rb'(?<="own_crc32": ")[0-9a-f]{8}', b"", content) for name, content in found.items()}


def kill_at_random(campaign: Campaign, command: Command, with_old: bool) -> None:
    place = campaign.new_place(with_old)
    old = contents(place)
    for _ in range(campaign.choose.randrange(1, 4)):
        process = campaign.start(command.words(place, campaign.source, campaign.data))
        time.sleep(campaign.choose.uniform(0.4, 1) * campaign.seconds(command))
        process.kill()
        process.communicate()
        campaign.check_visible(command, place, old)
    campaign.check_again(command, place, old)


def injected(campaign: Campaign, command: Command, with_old: bool, call: str, fault: str, number: int) -> None:
    place = campaign.new_place(with_old)
    old = contents(place)
    # With --seccomp-bpf, which makes it stop at these calls alone, strace 6.1 sends no signal.
    quick = ["--seccomp-bpf"] if fault.startswith("error=") else []
    inject = ["strace", "-f", *quick, "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={number}"]
    process = campaign.start([*inject, *paths(call, place), *command.words(place, campaign.source, campaign.data)])
    _, errors = process.communicate()
    if "SIGKILL" not in fault:
        lines = [line for line in errors.splitlines() if line.startswith("lt-preprocess: error: ")]
        if len(lines) != (process.returncode != 0) or "internal error" in errors or "Traceback" in errors:
            raise Broken(f"it ends with {process.returncode}: {errors}")
        if process.returncode == 0:
            campaign.check_result(command, place, old)
    campaign.check_visible(command, place, old)
    campaign.check_again(command, place, old)


def two_at_once(campaign: Campaign, command: Command, with_old: bool) -> None:
    place = campaign.new_place(with_old)
    old = contents(place)
    processes = [campaign.start(command.words(place, campaign.source, campaign.data)) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = sorted(process.returncode for process in processes)
    if codes not in ([0, 0], [0, 75]):
        raise Broken(f"they end with {codes}: {errors}")
    campaign.check_visible(command, place, old)
    campaign.check_again(command, place, old)


def another_input_after_a_kill(campaign: Campaign, command: Command, with_old: bool) -> None:
    """The same name, of the same size: nothing of the first input may be in the result."""
    place = campaign.new_place(with_old)
    source = campaign.directory / f"in/{place.name}.jsonl"
    shutil.copy(campaign.source, source)
    process = campaign.start(command.words(place, source, campaign.data))
    time.sleep(campaign.choose.uniform(0.6, 1) * campaign.seconds(command))
    process.kill()
    process.communicate()
    shutil.copy(campaign.changed, source)
    done = campaign.start(command.words(place, source, campaign.data))
    _, errors = done.communicate()
    if done.returncode != 0:
        raise Broken(f"it ends with {done.returncode}: {errors}")
    found, expected = contents(place), campaign.expected(command, campaign.changed)
    for name in expected:
        if name.endswith((".bin", ".idx")) and found[name] != expected[name]:
            raise Broken(f"{name} is not what the second input gives")


def kill_while_writing_to_s3(campaign: Campaign, command: Command, with_old: bool) -> None:
    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    try:
        store = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
        bucket = f"campaign-{campaign.places}"
        campaign.places += 1
        store.mkdir(bucket)
        words = command.words(Path("/"), campaign.source, campaign.data)
        words = [word.replace("//out", f"s3://{bucket}/out") if word == "//out" else word for word in words]
        words = [f"s3://{bucket}/out" if word == "/out" else word for word in words]
        for _ in range(3):
            process = campaign.start(words)
            time.sleep(campaign.choose.uniform(0.5, 1.5) * campaign.seconds(command))
            process.kill()
            process.communicate()
        done = campaign.start(words)
        _, errors = done.communicate()
        if done.returncode != 0:
            raise Broken(f"it ends with {done.returncode}: {errors}")
        expected = campaign.expected(command, campaign.source)
        found = {name.rpartition("/")[2]: store.cat_file(name) for name in store.find(bucket)}
        if found.keys() != expected.keys():
            raise Broken(f"the bucket has {sorted(found)}")
        for name, content in expected.items():
            if name.endswith((".bin", ".idx")) and found[name] != content:
                raise Broken(f"{name} is not that of an undisturbed run")
    finally:
        server.stop()


Situation = tuple[str, Command, Callable[[Campaign, Command, bool], None]]


def situations(campaign: Campaign, commands: Sequence[Command]) -> Iterator[Situation]:
    """Every system call of the commands, each with a kill and with one of the errors, and all that has no moments."""
    for command in commands:
        yield "two at once", command, two_at_once
        for call in CALLS:
            for number in range(1, campaign.calls(command, call) + 1):
                kill = functools.partial(injected, call=call, fault="signal=SIGKILL", number=number)
                yield f"SIGKILL in {call}", command, kill
                error = ERRORS[number % len(ERRORS)]
                fail = functools.partial(injected, call=call, fault=f"error={error}", number=number)
                yield f"{error} from {call}", command, fail
    for command in [command for command in COMMANDS[:3] if command in commands]:
        for _ in range(10):
            yield "another input after a kill", command, another_input_after_a_kill
    for _ in range(5 if COMMANDS[2] in commands else 0):
        yield "SIGKILL, S3", COMMANDS[2], kill_while_writing_to_s3
    for number in range(RANDOM_KILLS):
        yield "SIGKILL at random", commands[number % len(commands)], kill_at_random


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, metavar="N", help="a sample of so many situations (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sample and of the random moments")
    parser.add_argument("--kind", default="", metavar="TEXT", help="only what is called so, such as 'SIGKILL at random'")
    parser.add_argument("--command", choices=[command.name for command in COMMANDS], help="only this one")
    chosen = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        campaign = Campaign(Path(directory), chosen.seed)
        commands = [command for command in COMMANDS if chosen.command in (None, command.name)]
        every = [situation for situation in situations(campaign, commands) if chosen.kind in situation[0]]
        if chosen.runs is not None:
            every = in_turn([(situation[:2], situation) for situation in every], campaign.choose)[: chosen.runs]
        for number, (kind, command, disturb) in enumerate(every):
            try:
                disturb(campaign, command, number % 2 == 1)
            except Broken as reason:
                broken.append(f"{kind}, {command.name}, run {number}: {reason}")
                print(f"BROKEN {broken[-1]}", file=sys.stderr, flush=True)
            counts[kind] += 1
            shutil.rmtree(campaign.directory / f"run-{campaign.places}", ignore_errors=True)
    for kind, count in sorted(counts.items()):
        print(f"{count:6} {kind}")
    print(f"{counts.total():6} runs, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
