"""`lt_preprocess.tokenize` and `lt_train.pretrain`: what the commands do, as functions of a notebook."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lt_preprocess
import lt_train
from lt_shared import BadData, NoInput, TryAgain, UsageError
from lt_shared.contracts import manifest

TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"
SMALL = {"model": "tiny", "seq_length": 32, "num_layers": 1, "ranks": 1, "device": "cpu", "eval_iters": 1}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "-corpus.jsonl"
    path.write_text(
        "".join(f'{{"text": "document {number} with some words", "title": "no {number}"}}\n' for number in range(300))
    )
    return path


def test_from_text_to_a_checkpoint(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The functions take no options from the environment.
    monkeypatch.setenv("LT_PREPROCESS_JSON_KEYS", "nothing")
    monkeypatch.setenv("LT_TRAIN_TRAIN_ITERS", "7")
    monkeypatch.chdir(tmp_path)
    datasets = lt_preprocess.tokenize(
        corpus.name, tokenizer=TOKENIZER, output_prefix=tmp_path / "data", json_keys=["text", "title"], append_eod=True, workers=1
    )
    assert [(one.prefix, one.documents) for one in datasets] == [
        (f"{tmp_path}/data_{key}_document", 300) for key in ("text", "title")
    ]
    assert [one.tokens for one in datasets] == [manifest.describe(one.prefix).tokens for one in datasets]
    begun = {"train_iters": 2, "exit_interval": 1, "save": tmp_path / "run"}
    with pytest.raises(TryAgain):
        lt_train.pretrain(datasets, **SMALL, **begun)
    run = lt_train.pretrain(datasets, **SMALL, **begun | {"exit_interval": None})
    assert run.checkpoints == (run.checkpoints[-1],)
    assert (run.checkpoints[-1].path, run.checkpoints[-1].iteration) == (f"{tmp_path}/run/iter_0000002", 2)
    output, messages = capfd.readouterr()
    assert output == "" and "iteration        2/" in messages


def test_errors_are_those_of_the_commands(corpus: Path, tmp_path: Path) -> None:
    made = {"tokenizer": TOKENIZER, "output_prefix": tmp_path / "data"}
    with pytest.raises(NoInput, match=r"gone\.jsonl: no such file"):
        lt_preprocess.tokenize("gone.jsonl", **made)
    with pytest.raises(UsageError, match="no option wokers") as raised:
        lt_preprocess.tokenize(corpus, **made, wokers=3)
    assert raised.value.hint == "did you mean workers?"
    corpus.write_text("no JSON\n")
    with pytest.raises(BadData, match="line 1, byte 0: not JSON") as bad:
        lt_preprocess.tokenize(corpus, **made)
    assert bad.value.hint == "--on-error skip or quarantine leaves such lines out and reports them"
    with pytest.raises(UsageError, match="no option dtype") as foreign:
        lt_train.pretrain("data", dtype="bf16")
    assert foreign.value.hint == "use --bf16, --fp16 or --fp8-recipe; without one of them float32"
    with pytest.raises(UsageError, match="a dataset is there twice"):
        lt_train.pretrain(["data", "data"])


INTERRUPTED = """
import lt_train
small = dict(model="tiny", seq_length=32, num_layers=1, ranks=1, device="cpu", eval_iters=1)
try:
    lt_train.pretrain({data!r}, **small, train_iters=100000, save={save!r})
except KeyboardInterrupt:
    raise SystemExit(42)
"""


def test_an_interrupt_saves_and_is_raised(corpus: Path, tmp_path: Path) -> None:
    (dataset,) = lt_preprocess.tokenize(corpus, tokenizer=TOKENIZER, output_prefix=tmp_path / "data", append_eod=True, workers=1)
    code = INTERRUPTED.format(data=dataset.prefix, save=str(tmp_path / "run"))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ) as notebook:
        assert notebook.stderr is not None
        for line in notebook.stderr:
            if "iteration " in line and "lm loss" in line:
                break
        notebook.send_signal(signal.SIGINT)
        remaining = notebook.stderr.read()
        assert notebook.wait() == 42, remaining
    assert "saved checkpoint from iteration" in remaining
