"""A campaign of kills on `lt-convert --shard`: do the parts, given again, end with the bytes of one process?

    python tests/hostile/campaigns/convert_parts.py                 # 200 trials
    python tests/hostile/campaigns/convert_parts.py --runs 20 --seed 7

In each trial two or three parts run at once, in processes of their own. Each of them is killed with SIGKILL: at a random moment,
or in one of the calls that change a file (every write, sync, rename and deletion). After up to three such rounds all parts are
given again. What must hold:

- while parts are missing, DST is the old result or not there;
- given again, every part ends with 0, exactly one of them publishes, and the others say which parts have not finished;
- every file, with `lt-convert.json`, is byte for byte that of one process, and nothing hidden is left.
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from convert_models import write_model
from fault_campaign import Broken

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.engine import journal, output_writer
from lt_shared.console import output
from lt_shared.console.shard_option import Slice

DIRECTIONS = (("hf", "megatron-dist"), ("megatron-dist", "hf"), ("torchtitan", "megatron-legacy"))
CALLS = ("pwrite", "ftruncate", "fsync", "fdatasync", "rename", "mkdir", "unlink", "rmdir")
# Most parts make fewer calls than this.
MOST_CALLS = 70
SECONDS = 0.25


class Trials:
    def __init__(self, directory: Path, seed: int):
        self.directory, self.choose = directory, random.Random(seed)
        self.counts: Counter[str] = Counter()
        source = write_model(directory / "hf", tokenizer=True)
        self.old = write_model(directory / "old", seed=9)
        for to in ("torchtitan", "megatron-dist"):
            conversion.convert(Request(str(source), to, str(directory / to)))
        self.expected: dict[tuple[str, str], dict[str, bytes]] = {}
        for source_name, to in DIRECTIONS:
            conversion.convert(self.request(source_name, to, False))
            self.expected[source_name, to] = everything(self.out)
            shutil.rmtree(self.out)

    @property
    def out(self) -> Path:
        return self.directory / "place" / "out"

    def request(self, source: str, to: str, replaces: bool) -> Request:
        return Request(str(self.directory / source), to, str(self.out), force=replaces)

    def run(self) -> None:
        source, to = self.choose.choice(DIRECTIONS)
        count, replaces = self.choose.choice((2, 3)), self.choose.random() < 0.3
        request, expected = self.request(source, to, replaces), self.expected[source, to]
        if replaces:
            shutil.copytree(self.old, self.out)
        for _ in range(self.choose.choice((1, 2, 3))):
            if self.is_complete(expected):
                break
            self.disturb(request, count)
            self.check_visible(expected, replaces)
        if not (self.is_complete(expected) and not self.partial.exists()):
            self.repeat(request, count, expected)
        if replaces:
            # A part that is given again after the publication begins anew with --force, and removes that without.
            self.wait([self.started(self.request(source, to, False), Slice(0, count))])
        if everything(self.out) != expected:
            raise Broken(f"{source} to {to} in {count} parts: another result")
        remaining = {path.name for path in self.out.parent.iterdir()} - {"out"}
        if remaining:
            raise Broken(f"{source} to {to} in {count} parts: {remaining} is left")
        shutil.rmtree(self.out)

    @property
    def partial(self) -> Path:
        return self.out.parent / ".out.partial"

    def is_complete(self, expected: dict[str, bytes]) -> bool:
        return self.out.is_dir() and everything(self.out) == expected

    def disturb(self, request: Request, count: int) -> None:
        """Start all parts at once, and kill each of them."""
        children = []
        for index in range(count):
            at_call = self.choose.randrange(MOST_CALLS) if self.choose.random() < 0.5 else None
            children.append((self.started(request, Slice(index, count), at_call), at_call))
        for child, at_call in self.choose.sample(children, len(children)):
            if at_call is None:
                time.sleep(self.choose.uniform(0, SECONDS))
                os.kill(child, signal.SIGKILL)
        for child, at_call in children:
            status = os.waitpid(child, 0)[1]
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            # A part may find that another one has just published: that is no failure.
            if not killed and os.waitstatus_to_exitcode(status) not in (0, 73, 75):
                raise Broken(f"a part ends with {os.waitstatus_to_exitcode(status)}")
            kind = "at a random moment" if at_call is None else "in a call"
            self.counts[f"killed {kind}" if killed else "ended before it was killed"] += 1

    def started(self, request: Request, part: Slice, at_call: int | None = None) -> int:
        return forked(lambda: convert(request, part, at_call))

    def check_visible(self, expected: dict[str, bytes], replaces: bool) -> None:
        """A result that is there is whole: the old one or the new one, with the state of the parts at most."""
        names = everything(self.out) if self.out.is_dir() else None
        if names is None:
            replaced = self.out.parent / ".out.replaced"
            if replaces and not replaced.is_dir():
                raise Broken("neither the old result nor the new one is there")
            return
        visible = {name: data for name, data in names.items() if not name.startswith(".lt-convert.parts/")}
        if visible != expected and not (replaces and visible == everything(self.old)):
            different = sorted(name for name in {*visible, *expected} if visible.get(name) != expected.get(name))
            raise Broken(f"what is there is neither the old result nor the new one: {different}")

    def repeat(self, request: Request, count: int, expected: dict[str, bytes]) -> None:
        """Give every part again, all at once or one after the other."""
        order = self.choose.sample(range(count), count)
        children = []
        for index in order:
            children.append(self.started(request, Slice(index, count)))
            if self.counts.total() % 2:
                self.wait(children)
        self.wait(children)
        if not self.is_complete(expected):
            # A part that found the place published in the meantime is given again, as its exit code says.
            for index in order:
                self.wait([self.started(request, Slice(index, count))])

    def wait(self, children: list[int]) -> None:
        while children:
            code = os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1])
            if code not in (0, 75):
                raise Broken(f"a part that is given again ends with {code}")


def convert(request: Request, part: Slice, at_call: int | None) -> None:
    """Convert a part, with a line in the journal after every tensor; die in the call number `at_call` that changes a file."""
    journal.SYNC_SECONDS = 0.0
    if at_call is not None:
        calls = [0]
        for name in CALLS:
            setattr(os, name, dying(getattr(os, name), calls, at_call))
    else:
        contents = output_writer.contents

        def slowly(*arguments: Any) -> Any:
            for data in contents(*arguments):
                time.sleep(0.001)
                yield data

        output_writer.contents = slowly
    conversion.convert_part(request, part)


def dying(function: Callable[..., Any], calls: list[int], at_call: int) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return call


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            work()
        code = 0
    except BaseException as error:
        code = int(getattr(error, "exit_code", 70))
        if code == 70:
            traceback.print_exc()
    finally:
        os._exit(code)


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    output.begin("lt-convert")
    broken = 0
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder, contextlib.redirect_stderr(io.StringIO()):
        trials = Trials(Path(folder), options.seed)
        for number in range(options.runs):
            try:
                trials.run()
            except Broken as error:
                broken += 1
                print(f"trial {number}: {error}", flush=True)
                shutil.rmtree(trials.out.parent, ignore_errors=True)
    for kind, count in sorted(trials.counts.items()):
        print(f"{count:6d}  {kind}")
    print(f"{options.runs} trials, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
