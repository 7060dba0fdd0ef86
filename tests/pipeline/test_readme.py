"""The pipelines of README.md, word for word but for the number of steps, in a shell with pipefail."""

import json
import re
from pathlib import Path

import documented_blocks
import numpy
import pytest
import torch
from documented_blocks import ROOT, Block, Done
from transformers import AutoModelForCausalLM, AutoTokenizer

from lt_shared.data import indexed_dataset

README = (ROOT / "README.md").read_text()
STEPS = 6
PIPELINES = [
    Block(language, re.sub(r"--train-iters [12]0 ", f"--train-iters {STEPS} ", text))
    for language, text in documented_blocks.blocks_of(README)
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Done]]:
    directory = tmp_path_factory.mktemp("readme")
    return directory, documented_blocks.run_all(PIPELINES, directory, quick=True)


def test_every_pipeline_succeeds(results: tuple[Path, list[Done]]) -> None:
    _, runs = results
    assert len(runs) == 4
    documented_blocks.assert_success(PIPELINES, runs)


def test_pipe_and_steps_make_the_same_model(results: tuple[Path, list[Done]]) -> None:
    directory, runs = results
    checkpoint, end = map(json.loads, runs[0].stdout.splitlines())
    assert checkpoint["path"] == str(directory / "pipeline/model")
    assert end == {"v": 1, "kind": "end", "count": 1}
    weights = [(directory / name / "model.safetensors").read_bytes() for name in ("pipeline/model", "pipeline/steps-model")]
    # Not in the assertion: pytest would describe how the bytes differ for minutes.
    is_same = weights[0] == weights[1]
    assert is_same


def test_monitor_sees_the_run(results: tuple[Path, list[Done]]) -> None:
    directory, runs = results
    assert f"{STEPS} / {STEPS}" in runs[2].stdout
    assert (directory / "pipeline/loss.png").read_bytes().startswith(b"\x89PNG")


def test_transformers_continues_a_prompt(results: tuple[Path, list[Done]]) -> None:
    directory, _ = results
    tokenizer = AutoTokenizer.from_pretrained(directory / "pipeline/model")
    model = AutoModelForCausalLM.from_pretrained(directory / "pipeline/model")
    inputs = tokenizer("A hacker is", return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(tokens[0]).startswith("A hacker is")
    assert tokens.shape[1] > inputs["input_ids"].shape[1]


def test_a_failing_producer_stops_the_pipe(tmp_path: Path) -> None:
    """A bad line in the text: no dataset, no run, no model, and the first failure's exit code."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    script = PIPELINES[0].text.replace("tests/demo/corpus.jsonl.zst", "bad.jsonl")
    done = documented_blocks.run(Block("sh", script), tmp_path, quick=True)
    assert done.returncode == 66
    assert "bad.jsonl, line 2" in done.stderr or "bad.jsonl:2" in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if "pipeline" in path.parts and path.is_file()] == []


def test_the_trainer_and_the_converted_model_agree(tmp_path: Path, results: tuple[Path, list[Done]]) -> None:
    """The loss of lt-train's next step is the loss that transformers computes with the converted model on the same tokens.

    Both are fp32 means over 256 tokens; they differ by the order of the sums, 1e-7 of a loss near 7.
    """
    directory, _ = results
    model = AutoModelForCausalLM.from_pretrained(directory / "pipeline/model", dtype=torch.float32)
    sample = indexed_dataset.Reader(str(directory / "pipeline/data-part00000_text_document")).tokens[:256]
    # Copies of one sample, end to end: whatever the order of the documents, every training sample holds these tokens.
    with indexed_dataset.Writer(str(tmp_path / "copies"), sample.dtype) as writer:
        for _ in range(20):
            writer.append_document(sample)
        writer.publish()
    options = (
        f"--model tiny --device cpu --seq-length 256 --train-iters {STEPS + 1} --log-interval 1 --split 1,0,0 --eval-iters 0"
    )
    script = f"lt-train {options} --load {directory}/pipeline/run --save {tmp_path}/run {tmp_path}/copies"
    done = documented_blocks.run(Block("sh", script), tmp_path, quick=True)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (step,) = [record for record in records if record["kind"] == "step"]
    tokens = torch.from_numpy(numpy.append(sample, sample[0]).astype(numpy.int64))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens[None, :-1]).logits[0], tokens[1:])
    assert float(loss) == pytest.approx(step["loss"], abs=5e-6)
