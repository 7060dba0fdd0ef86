"""What lt-preprocess, lt-convert and lt-train print of a stranger's names, texts and settings, no terminal obeys."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import nursery
import pytest
from convert_models import TOKENIZER, run_here, write_model

from lt_preprocess.datasets.provenance import Derivation, sidecar
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.data import indexed_dataset

# C1 controls, a new line of Unicode, overrides, isolates and marks of direction.
EVIL = "a\x7f\x85\x9b31m\u2028\u202e\u2066\u200e\u200f\u061c\ufeff\u200b\u2060\xadz"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a dataset, a model and configurations of a stranger."""
    place = tmp_path_factory.mktemp("terminals")
    (place / f"{EVIL}.jsonl").write_text(json.dumps({"text": f"some {EVIL} text", "title": EVIL}, ensure_ascii=False) + "\n")
    (place / "bad.jsonl").write_text(f'{{"text": "{EVIL}", "text": 1, }}{EVIL}\n{{"text": "a"}}\n')
    prefix = str(place / f"{EVIL}_text_document")
    dataset = Dataset(prefix, 4, 40, "uint16", 2048, 2047, Tokenizer(EVIL, "0" * 64, f"/{EVIL}"), 1.0)
    with indexed_dataset.Writer(prefix, np.uint16) as writer:
        for number in range(4):
            writer.append_document(np.array([*range(number, number + 9), 2047]))
        options = {"append_eod": True, "json_keys": [EVIL]}
        writer.publish(sidecar(dataset, writer.complete(), Derivation("merge", {}, []), options))
    write_model(place / EVIL, tokenizer=True)
    config = json.loads((write_model(place / "unknown") / "config.json").read_text())
    (place / "unknown/config.json").write_text(json.dumps(config | {"model_type": EVIL, "architectures": [EVIL]}))
    for name, values in (("a.yaml", {"model": {"num_layers": EVIL, EVIL: 3}}), ("b.yaml", {"num_layers": 2, "save": EVIL})):
        (place / name).write_text(json.dumps(values))
    script = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2"
    (place / "c.sh").write_text(f"{script} --save '{EVIL}'\n")
    return place


TINY = ("--model", "tiny", "--ranks", "1")
WORDS = {
    "tokenize": ["preprocess", f"{EVIL}.jsonl", "--tokenizer", TOKENIZER, "-o", f"out-{EVIL}"],
    "a bad line": ["preprocess", "bad.jsonl", "--tokenizer", TOKENIZER, "-o", "bad"],
    "a quarantined line": ["preprocess", "bad.jsonl", "--tokenizer", TOKENIZER, "-o", "bad", "--on-error", "quarantine"],
    "another field": ["preprocess", f"{EVIL}.jsonl", "--json-keys", EVIL, "--tokenizer", TOKENIZER, "-o", "keys"],
    "a plan": ["preprocess", f"{EVIL}.jsonl", "--tokenizer", TOKENIZER, "-o", f"plan-{EVIL}", "--dry-run"],
    "another tokenizer": ["preprocess", f"{EVIL}.jsonl", "--tokenizer", f"./{EVIL}", "-o", "other"],
    "info": ["preprocess", "info", f"{EVIL}_text_document", "--tokenizer", TOKENIZER],
    "info --json": ["preprocess", "info", "--json", f"{EVIL}_text_document"],
    "verify": ["preprocess", "verify", f"{EVIL}_text_document", "--deep", "2"],
    "verify --json": ["preprocess", "verify", "--json", f"{EVIL}_text_document"],
    "cat": ["preprocess", "cat", f"{EVIL}_text_document"],
    "documents": ["preprocess", "cat", f"out-{EVIL}_text_document"],
    "places": ["preprocess", "cat", "--where", f"out-{EVIL}_text_document"],
    "matches": ["preprocess", "grep", "some", f"out-{EVIL}_text_document"],
    "first documents": ["preprocess", "info", f"out-{EVIL}_text_document"],
    "merge": ["preprocess", "merge", f"out-{EVIL}_text_document", f"{EVIL}_text_document", "-o", "merged"],
    "inspect": ["convert", "inspect", EVIL],
    "inspect --json": ["convert", "inspect", "--json", EVIL],
    "a plan of a conversion": ["convert", EVIL, "--to", "megatron-dist", "-o", f"converted-{EVIL}", "--dry-run"],
    "a plan as JSON": ["convert", EVIL, "--to", "megatron-dist", "-o", f"converted-{EVIL}", "--dry-run", "--json"],
    "convert": ["convert", EVIL, "--to", "megatron-dist", "-o", f"converted-{EVIL}"],
    "compare": ["convert", "verify", EVIL, f"converted-{EVIL}"],
    "compare --json": ["convert", "verify", "--json", EVIL, f"converted-{EVIL}"],
    "an unknown model": ["convert", "unknown", "--to", "megatron-dist", "-o", "unknown-out"],
    "import": ["train", "import", "a.yaml"],
    "import of a path": ["train", "import", "b.yaml", "--partial"],
    "import of a script": ["train", "import", "c.sh", "--partial"],
    "import --json": ["train", "import", "--json", "c.sh", "--partial"],
    "a plan of a run": [
        "train",
        "--model",
        "tiny",
        "--ranks",
        "1",
        "--save",
        f"run-{EVIL}",
        f"{EVIL}_text_document",
        "--dry-run",
    ],
    "plan": ["train", "plan", "--model", "tiny", "--gpus-per-node", "1", f"{EVIL}_text_document"],
    "preflight": ["train", "preflight", *TINY, f"{EVIL}_text_document"],
}


@pytest.mark.parametrize("command", WORDS)
def test_a_terminal_obeys_nothing_of_a_stranger(command: str, place: Path) -> None:
    tool, *words = map(str, WORDS[command])
    python = nursery.python() if tool == "train" else nursery.light_python()
    done = subprocess.run([python, "-m", f"lt_{tool}", *words], cwd=place, capture_output=True, stdin=subprocess.DEVNULL)
    printed = (done.stdout + done.stderr).decode()
    assert printed
    assert "Traceback" not in printed and "internal error" not in printed, printed
    assert not OBEYED.search(printed), ascii(printed)


def test_quarantined_lines_are_shown_as_text(place: Path) -> None:
    words = ["bad.jsonl", "--tokenizer", str(TOKENIZER), "-o", "kept", "--on-error", "quarantine"]
    done = subprocess.run([nursery.light_python(), "-m", "lt_preprocess", *words], cwd=place, capture_output=True)
    assert done.returncode == 0, done.stderr
    (quarantine,) = place.glob("*kept*quarantine*")
    content = quarantine.read_text()
    assert not OBEYED.search(content), ascii(content)
    assert EVIL in json.dumps(json.loads(content.splitlines()[0]), ensure_ascii=False).replace("\\u007f", "\x7f")


def test_brackets_in_a_name_are_no_markup(tmp_path: Path) -> None:
    """rich would take [/x] for the end of a style that has not begun."""
    done = run_here("inspect", write_model(tmp_path / "[/x][red]model", tokenizer=True))
    assert done.returncode == 0, done.stderr
    assert "[/x][red]model" in done.stdout
