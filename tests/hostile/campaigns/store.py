"""A fault campaign on the S3 store that the tools read from and write to.

    python tests/hostile/campaigns/store.py                # every request of every command with a fault, drawn at random
    python tests/hostile/campaigns/store.py --runs 50      # so many of them
    python tests/hostile/campaigns/store.py --seed 7

Between a command and moto's server one request, or all from one on, are answered with an error of S3's, with half of the answer,
with a closed connection or not at all. What must hold:

- the command ends within five minutes: with 0, or with one line of an error and the exit code for it;
- what is visible then is whole: the dataset, checkpoint or model of an undisturbed run, or none;
- given again to a store that works, it ends with 0, and the result is that of an undisturbed run, byte for byte.

Prints a line for each kind with the number of runs, and exits with 1 when something did not hold.
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

import nursery
import s3_server
from convert_models import write_model
from fault_campaign import Broken, ended, in_turn
from faulty_store import FAULTS, FaultyStore

TOKENIZER = Path(__file__).parents[2] / "demo" / "tokenizer"
LIMIT_SECONDS = 300
# One attempt a request, and not for long, so that a fault is seen; s3fs and the tools try again.
SETTINGS = json.dumps({"config_kwargs": {"read_timeout": 2, "connect_timeout": 2, "retries": {"max_attempts": 1}}})
FOR_EVER = 1_000_000
SMALL = (
    "--model tiny --num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --seq-length 32 --micro-batch-size 2 --global-batch-size 4"
    " --train-iters 4 --lr 1e-3 --save-interval 2 --eval-iters 1 --device cpu --ranks 1 --log-interval 1"
)
TRACKER = "latest_checkpointed_iteration.txt"
RESULT = re.compile(
    rf"^(?!\.|lt-train-|cache/|run/data-cache/).*(?:\.bin|\.idx|\.distcp|\.safetensors|common\.pt|lt-convert\.json|metrics\.jsonl|{TRACKER}|stdout)$"
)
ORDERLY = (0, 65, 66, 69, 73, 74, 75, 77)


@dataclasses.dataclass(frozen=True)
class Command:
    """`words` with {store} for the URL of the run's own directory, {inputs} for that of the inputs, {place} for a local one."""

    name: str
    words: str


COMMANDS = (
    Command("preprocess, from the store", "lt_preprocess {inputs}/a.jsonl.gz --tokenizer {tokenizer} -o {place}/out"),
    Command("preprocess, to the store", "lt_preprocess {local}/a.jsonl --tokenizer {tokenizer} -o {store}/out"),
    Command("convert, from the store", "lt_convert {inputs}/model --to torchtitan -o {place}/out"),
    Command("convert, to the store", "lt_convert {local}/model --to torchtitan -o {store}/out"),
    Command("convert merge, from the store", "lt_convert merge {inputs}/model {inputs}/other --to hf -o {place}/out"),
    Command("convert merge, to the store", "lt_convert merge {local}/model {local}/other --to hf -o {store}/out"),
    Command("convert verify, in the store", "lt_convert verify {inputs}/converted --json"),
    Command("convert verify, two in the store", "lt_convert verify {inputs}/model {inputs}/converted --json"),
    Command("convert follow, from the store", "lt_convert follow {inputs}/runs --to hf -o {place}/out --once"),
    Command(
        "preprocess stream, from the store", "lt_preprocess {inputs}/a.jsonl --tokenizer {tokenizer} --stream -o {place}/out"
    ),
    Command("preprocess stream, to the store", "lt_preprocess {local}/a.jsonl --tokenizer {tokenizer} --stream -o {store}/out"),
    Command("monitor, from the store", "lt_monitor scrape {inputs}/run.log"),
    Command("monitor summary, from the store", "lt_monitor summarize --json {inputs}/run.log"),
    Command("train, to the store", f"lt_train {SMALL} --mock-data --save {{store}}/run"),
    Command(
        "train, from the store",
        f"lt_train {SMALL} {{inputs}}/data_text_document --object-storage-cache-path {{place}}/cache --save {{place}}/run",
    ),
    Command(
        "train, a stream from the store",
        f"lt_train {SMALL} @{{local}}/stream.list --object-storage-cache-path {{place}}/cache --save {{place}}/run",
    ),
)


class Campaign:
    """The inputs of the commands, locally and in the store, and what the commands make of them undisturbed."""

    def __init__(self, directory: Path, store: FaultyStore, seed: int, commands: list[Command]):
        self.directory, self.store = directory, store
        self.choose = random.Random(seed)
        self.places = 0
        self.happened: collections.Counter[str] = collections.Counter()
        self.failed = 0
        local = directory / "inputs"
        local.mkdir()
        write_model(local / "model", tokenizer=True)
        if not all(command.name.startswith("convert") for command in commands):
            lines = [json.dumps({"text": f"document {number} says {number * 7919 % 1000} " * 20}) for number in range(2000)]
            (local / "a.jsonl").write_text("\n".join(lines) + "\n")
            subprocess.run(["gzip", "-k", local / "a.jsonl"], check=True)
            words = ["-m", "lt_preprocess", str(local / "a.jsonl"), "--tokenizer", str(TOKENIZER), "-o", str(local / "data")]
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
        write_model(local / "other", seed=1, tokenizer=True)
        self._convert(local / "model", "torchtitan", local / "converted")
        for step in (2, 4):
            self._convert(local / "model", "torchtitan", local / f"runs/step-{step}")
        steps = [json.dumps({"v": 1, "kind": "step", "step": step, "loss": 2.5}) for step in range(1, 20_000)]
        (local / "run.log").write_text("\n".join(steps) + "\n")
        self.inputs = s3_server.upload(local, f"{s3_server.new_bucket('inputs')}/inputs")
        if (local / "a.jsonl").exists():
            words = ["-m", "lt_preprocess", str(local / "a.jsonl"), "--tokenizer", str(TOKENIZER), "--stream"]
            with open(local / "stream.list", "w") as lines:
                subprocess.run([sys.executable, *words, "-o", f"{self.inputs}/stream"], check=True, stdout=lines, stderr=PIPE)

    @staticmethod
    def _convert(source: Path, target: str, output: Path) -> None:
        words = ["-m", "lt_convert", str(source), "--to", target, "-o", str(output)]
        subprocess.run([nursery.light_python(), *words], check=True, capture_output=True)

    def new_place(self) -> tuple[Path, str]:
        self.places += 1
        place = self.directory / f"place{self.places:04d}"
        place.mkdir()
        return place, s3_server.new_bucket(f"store{self.places:04d}")

    def finish(self, command: Command, place: Path, bucket: str) -> subprocess.CompletedProcess[str]:
        names = {"local": str(self.directory / "inputs"), "inputs": self.inputs, "store": bucket, "place": str(place)}
        words = command.words.format(tokenizer=TOKENIZER, **names).split()
        variables = {"FSSPEC_S3": SETTINGS, "TMPDIR": str(place), "OMP_NUM_THREADS": "1", "AWS_ENDPOINT_URL": self.store.url}
        python = sys.executable if words[0] == "lt_train" else nursery.light_python()
        process = subprocess.Popen([python, "-m", *words], env=os.environ | variables, stdout=PIPE, stderr=PIPE, text=True)
        done = ended(process)
        if words[0] == "lt_monitor" or "verify" in words:
            (place / "stdout").write_text(done.stdout)
        return done

    @functools.cache  # noqa: B019
    def undisturbed(self, command: Command) -> tuple[dict[str, object], int]:
        """The result, and how many requests it takes."""
        place, bucket = self.new_place()
        self.store.disturb("", 0, 0)
        done = self.finish(command, place, bucket)
        if done.returncode:
            raise Broken(f"{command.name}: the undisturbed command ends with {done.returncode}: {done.stderr}")
        return result(place, bucket), self.store.requests

    def run(self, command: Command, fault: str, first: int, count: int) -> None:
        kind = f"{command.name}: {fault}{' for ever' if count > 1 else ''}"
        wanted = self.undisturbed(command)[0]
        place, bucket = self.new_place()
        self.store.disturb(fault, first, count)
        begin = time.monotonic()
        done = self.finish(command, place, bucket)
        self.happened[kind] += 1
        self.failed += done.returncode != 0
        what = f"{kind} from request {first}"
        if time.monotonic() - begin > LIMIT_SECONDS:
            raise Broken(f"{what}: it took {time.monotonic() - begin:.0f} s")
        if done.returncode not in ORDERLY:
            raise Broken(f"{what}: ended with {done.returncode}: {done.stderr[-3000:]}")
        if done.returncode and (" error: " not in done.stderr or "Traceback" in done.stderr):
            raise Broken(f"{what}: no reason, or more: {done.stderr[-3000:]}")
        self.store.disturb("", 0, 0)
        check_visible(result(place, bucket), wanted, is_done=done.returncode == 0, what=what)
        again = self.finish(command, place, bucket)
        if again.returncode:
            raise Broken(f"{what}: again, it ends with {again.returncode}: {again.stderr[-3000:]}")
        found = result(place, bucket)
        for name in wanted:
            if name.endswith("metrics.jsonl"):
                # Those of steps before the fault may not have come to the store.
                found[name] = {**wanted[name], **found.get(name, {})}  # type: ignore[dict-item]
        if found != wanted:
            differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise Broken(f"{what}: again, another result: {differing}")
        shutil.rmtree(place)


def check_visible(found: dict[str, object], wanted: dict[str, object], is_done: bool, what: str) -> None:
    """What makes a result complete comes last: a dataset's index, a conversion's record, the tracker of a run."""
    expected = dict(wanted) if is_done else {}
    for name, content in found.items():
        if name.endswith((".idx", "lt-convert.json")):
            whole = name.removesuffix("idx").removesuffix("lt-convert.json")
        elif name.endswith(TRACKER):
            whole = f"{Path(name).parent}/iter_{int(str(content)):07d}/"
        else:
            continue
        expected |= {name: content for name, content in wanted.items() if name.startswith(whole)}
    missing = sorted(name for name, content in expected.items() if found.get(name) != content)
    if missing:
        raise Broken(f"{what}: it looks complete, but {missing} are missing or not those of an undisturbed run")


def result(place: Path, bucket: str) -> dict[str, object]:
    """The files of a run, locally and in the store, as far as an undisturbed run always makes the same ones."""
    import s3fs

    store = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    files = {name: store.cat_file(f"{bucket}/{name}") for name in s3_server.names(bucket)}
    files |= {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    return {name: same_each_time(name, content) for name, content in files.items() if RESULT.search(name)}


def same_each_time(name: str, content: bytes) -> object:
    """Checkpoints have the state of generators of random numbers, metrics the time; records have the names of places."""
    if "/iter_" in name:
        return "a file"
    if name.endswith("metrics.jsonl"):
        records = [json.loads(line) for line in content.splitlines()]
        return {record["step"]: record["loss"] for record in records if record["kind"] == "step"}
    if name.endswith("lt-convert.json"):
        return sorted(
            (each, of) for each, of in json.loads(content)["files"].items() if each not in ("run.json", "checksums.json")
        )
    return content.decode() if name.endswith(TRACKER) else content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=[command.name for command in COMMANDS], help="only this one")
    options = parser.parse_args()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lt-campaign-") as folder, s3_server.running(Path(folder) / "log") as server:
        commands = [command for command in COMMANDS if options.command in (None, command.name)]
        campaign = Campaign(Path(folder), FaultyStore(server.port), options.seed, commands)
        cases = []
        for command in commands:
            requests = campaign.undisturbed(command)[1]
            for fault in FAULTS:
                for count in (1, FOR_EVER):
                    firsts = campaign.choose.sample(range(1, requests + 1), min(requests, 20))
                    cases += [((command, fault, count), (command, fault, first, count)) for first in firsts]
        for command, fault, first, count in in_turn(cases, campaign.choose)[: options.runs]:
            try:
                campaign.run(command, fault, first, count)
            except Broken as error:
                broken.append(str(error))
                print(error, flush=True)
    for kind, number in sorted(campaign.happened.items()):
        print(f"{number:6d}  {kind}")
    print(f"{sum(campaign.happened.values())} runs, {campaign.failed} failed in order, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
