"""Random bytes and repeated text in a corpus: training shows spikes, and blame names the file and the lines that were planted."""

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

DEMO = Path(__file__).parents[1] / "demo"
SENTENCES = ("the cat sat on the mat. ", "a dog ran to the park. ", "we went home and slept. ", "it rained all day long. ")
# Lines of random bytes, of one token that is rare and one that is not, and of a phrase, again and again.
RANDOM = (151, 301)
REPEATED = {201: " zoo" * 150, 251: "buy cheap shoes now! " * 40, 351: " the" * 150}
PLANTED = {*RANDOM, *REPEATED}
MODEL = (
    *("--model", "tiny", "--num-layers", "1", "--hidden-size", "64", "--ffn-hidden-size", "128", "--num-attention-heads", "4"),
    *("--seq-length", "64", "--micro-batch-size", "4", "--train-iters", "150", "--eval-iters", "0", "--save-interval", "25"),
    *("--log-interval", "1", "--split", "1,0,0", "--lr", "1e-2", "--lr-decay-style", "constant", "--lr-warmup-iters", "0"),
    *("--device", "cpu"),
)


def tool(name: str, *arguments: str, cwd: Path, stdin: str = "") -> str:
    command = [nursery.python() if name == "lt_train" else sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=cwd, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a corpus, its shuffled dataset, and a run that was trained through a pipe."""
    place = tmp_path_factory.mktemp("poisoned")
    rng = random.Random(3)
    lines = [json.dumps({"text": "".join(rng.choices(SENTENCES, k=12))}) for _ in range(400)]
    for line, text in REPEATED.items():
        lines[line - 1] = json.dumps({"text": text})
    for line in RANDOM:
        lines[line - 1] = json.dumps({"text": bytes(rng.randrange(128, 256) for _ in range(120)).decode("latin-1")})
    (place / "easy.jsonl").write_text("\n".join(lines) + "\n")
    made = tool("lt_preprocess", "easy.jsonl", "--tokenizer", str(DEMO / "tokenizer"), "--append-eod", "-o", "easy", cwd=place)
    shuffled = tool("lt_preprocess", "shuffle", "-", "-o", "shuffled", cwd=place, stdin=made)
    tool("lt_train", *MODEL, "--save", "run", "--log-sample-loss", "-", cwd=place, stdin=shuffled)
    return place


def test_the_lines_are_named(poisoned: Path) -> None:
    record = json.loads(tool("lt_monitor", "blame", "run", "--spike", "--skip-list", "skip.jsonl", "--json", cwd=poisoned))
    suspects = [sample for found in record["found"] for sample in found["samples"] if sample["is_suspect"]]
    assert suspects
    named = []
    for sample in suspects:
        lines = {(part["path"], part["line"]) for part in sample["documents"]}
        planted = [line for path, line in lines if path == str(poisoned / "easy.jsonl") and line in PLANTED]
        assert planted, sample
        named += planted
    assert set(named) == PLANTED
    skipped = [json.loads(line) for line in (poisoned / "skip.jsonl").read_text().splitlines()]
    assert [number for line in skipped for number in line["samples"][:1]] == sorted(sample["sample"] for sample in suspects)
    words = shlex.split(record["rollback"]["command"])
    assert words[0] == "lt-train" and str(poisoned / "shuffled") in words and "-" not in words
    went_on = tool("lt_train", *words[1:], cwd=poisoned)
    assert json.loads(went_on.splitlines()[-2])["iteration"] == 150
    spiked, calm = (sample_losses(poisoned / run) for run in ("run", "run-skip"))
    left_out = {sample["sample"] for sample in suspects}
    assert not left_out & calm.keys()
    for found in record["found"]:
        samples = {sample["sample"] for sample in found["samples"]} & calm.keys()
        assert samples and max(calm[number] for number in samples) < 0.5 * min(spiked[number] for number in left_out)
    # Up to there nothing else has moved.
    begun = min(left_out)
    assert {number: loss for number, loss in calm.items() if number < begun - 4} == {
        number: spiked[number] for number in calm if number < begun - 4
    }


def sample_losses(run: Path) -> dict[int, float]:
    """The losses of a run's samples, of those that counted."""
    found = {}
    for record in map(json.loads, (run / "sample-losses.jsonl").read_text().splitlines()):
        for number, loss in enumerate(record["losses"], record["first_sample"]):
            if loss is not None:
                found[number] = loss
    return found
