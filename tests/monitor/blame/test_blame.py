"""`lt-monitor blame` on runs whose data was made by hand: from a step to the lines of the source, and to what leaves them out."""

import dataclasses
import json
import os
import shlex
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_monitor.blame import rollback
from lt_monitor.cli import blame_command
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins.origins import TokenizedLines
from lt_shared.data.sample_order import run_order, sample_losses
from lt_shared.data.sample_order.run_order import AttemptOrder, OrderedDataset

Tool = Callable[..., subprocess.CompletedProcess[str]]

LENGTH, BATCH, STEPS = 16, 4, 60


def dataset(directory: Path, name: str, documents: int, first_token: int) -> OrderedDataset:
    """Documents of 5 to 40 tokens, each of its own number `first_token` + document, from a source that says which it is."""
    source = directory / f"{name}.jsonl"
    lines = [json.dumps({"text": f"{name} document {number} " + "x" * number}) for number in range(documents)]
    source.write_text("".join(f"{line}\n\n" for line in lines))
    prefix = directory / name
    runs = np.arange(documents)
    nothing = np.zeros(0, np.int64)
    status = source.stat()
    file = {"path": str(source), "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    table = TokenizedLines(documents, [file], runs, runs * 0, 2 * runs + 1, nothing, nothing, nothing)
    with indexed_dataset.Writer(str(prefix), np.uint16) as writer:
        for number in range(documents):
            writer.append_document(np.full(5 + zlib.crc32(bytes([number])) % 36, first_token + number))
        record = {"v": 2, "dataset": {"prefix": str(prefix)}, "options": {"json_key": "text"}, "origins": table.to_record()}
        writer.publish((f"{prefix}.json", json.dumps(record).encode()))
    return OrderedDataset(str(prefix), 0.75 if name == "web" else 0.25)


@pytest.fixture
def order(tmp_path: Path) -> AttemptOrder:
    datasets = (dataset(tmp_path, "web", 90, 1000), dataset(tmp_path, "code", 60, 2000))
    command = ("--model", "tiny", "--save", "run", "-")
    return AttemptOrder(0, 0, STEPS * BATCH, 7, LENGTH, BATCH, STEPS, datasets, "1,0,0", None, None, command)


@pytest.fixture
def poisoned(order: AttemptOrder, tmp_path: Path) -> list[int]:
    """A run whose step 40 had two samples of high losses. Returns those."""
    run = tmp_path / "run"
    run.mkdir()
    (run / run_order.FILE).write_text(run_order.line(order) + "\n")
    rng = np.random.default_rng(1)
    numbers = [4 * 39 + 1, 4 * 39 + 3]
    with (run / sample_losses.FILE).open("w") as file, (run / "train.log").open("w") as log:
        for step in range(1, STEPS + 1):
            first = BATCH * (step - 1)
            losses = [
                9.0 + sample % 4 if sample in numbers else 4 + rng.normal(0, 0.05) for sample in range(first, first + BATCH)
            ]
            file.write(sample_losses.line(step, first, losses))
            log.write(step_line(step, sum(losses) / BATCH))
        file.write('{"v":1,"kind":"sample_losses","step":61,"fir')
    for iteration in (20, 30, 40):
        directory = run / f"iter_{iteration:07}"
        directory.mkdir()
        (directory / ".metadata").touch()
        (directory / "__0_0.distcp").touch()
    return numbers


def step_line(step: int, loss: float) -> str:
    fields = (
        f"iteration {step:8}/{STEPS:8}",
        f"consumed samples: {BATCH * step:12}",
        "elapsed time per iteration (ms): 50.0",
        "learning rate: 1.0E-04",
        f"global batch size: {BATCH:5}",
        f"lm loss: {loss:.6E}",
        "loss scale: 1.0",
        "grad norm: 1.0",
    )
    return f" [2026-11-25 10:{step // 60:02}:{step % 60:02}] {' | '.join(fields)} |\n"


def expected_documents(order: AttemptOrder, number: int) -> list[tuple[str, int]]:
    """(dataset, document) of the tokens of a sample: each document has a token of its own."""
    tokens = order.training_samples()[number].tolist()
    return [("code", token - 2000) if token >= 2000 else ("web", token - 1000) for token in dict.fromkeys(tokens)]


def blamed(tool: Tool, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = tool("blame", "run", "--json", *arguments)
    assert result.returncode == code, result.stderr
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_a_spike_leads_to_its_lines(tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path) -> None:
    record = blamed(tool, "--spike")
    [finding] = record["found"]
    assert finding["steps"] == [40, 40]
    assert [sample["sample"] for sample in finding["samples"] if sample["is_suspect"]] == poisoned[::-1]
    assert [sample["loss"] for sample in finding["samples"]][:2] == [12.0, 10.0]
    for sample in finding["samples"]:
        assert sample["step"] == 40
        expected = expected_documents(order, sample["sample"])
        assert [document["document"] for document in sample["documents"]] == [number for _, number in expected]
        for (name, number), part in zip(expected, sample["documents"], strict=True):
            assert sample["dataset"] == str(tmp_path / name)
            assert (part["path"], part["line"]) == (str(tmp_path / f"{name}.jsonl"), 2 * number + 1)
            line = (tmp_path / f"{name}.jsonl").read_bytes()[part["offset"] :].split(b"\n")[0]
            text = json.loads(line)["text"]
            assert text.startswith(f"{name} document {number} ") and part["text"] in text
    assert sum(part["tokens"] for part in finding["samples"][0]["documents"]) == LENGTH + 1


def test_the_way_back(tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path) -> None:
    """The command begins at the newest complete checkpoint before the step, with the data by its name."""
    (tmp_path / "run/iter_0000030/.metadata").unlink()
    record = blamed(tool, "--spike", "--skip-list", "skip.jsonl")
    assert record["rollback"]["samples"] == [[poisoned[0]] * 2, [poisoned[1]] * 2]
    lines = [json.loads(line) for line in (tmp_path / "skip.jsonl").read_text().splitlines()]
    assert lines == [{"v": 1, "kind": "skip", "samples": [number, number]} for number in poisoned]
    words = shlex.split(record["rollback"]["command"])
    assert words == [
        *("lt-train", "--model", "tiny", "--save", "run", "0.75", str(tmp_path / "web"), "0.25", str(tmp_path / "code")),
        *("--load", str(tmp_path / "run/iter_0000020"), "--save", "run-skip", "--skip-samples", "skip.jsonl"),
    ]


def test_a_stream_that_came_through_a_pipe_is_named_by_its_list(order: AttemptOrder) -> None:
    stream = dataclasses.replace(order, datasets=(OrderedDataset("web-part00000", shard_list="/fsx/web.list"),))
    words = shlex.split(str(rollback.plan("run", stream, 1, [3], "skip.jsonl").command))
    assert words[:6] == ["lt-train", "--model", "tiny", "--save", "run", "@/fsx/web.list"]


def test_losses_of_another_program(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    lines = "".join(sample_losses.line(1, sample, [8.0 if sample == 2 else 4.0 + sample % 3 / 100]) for sample in range(8))
    for arguments in (["--losses", "-"], ["--losses", "losses.jsonl"]):
        (tmp_path / "losses.jsonl").write_text(lines)
        result = tool("blame", "run", "--step", "1-2", "--json", *arguments, stdin=lines)
        [finding] = json.loads(result.stdout)["found"]
        assert [sample["sample"] for sample in finding["samples"] if sample["is_suspect"]] == [2]
    (tmp_path / "losses.jsonl").write_text("not a loss\n")
    result = tool("blame", "run", "--step", "1-2", "--losses", "losses.jsonl")
    assert result.returncode == 65 and "losses.jsonl, line 1: not the losses of samples" in result.stderr


def test_samples_after_a_bad_step_are_not_bad_for_its_effect(
    tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path
) -> None:
    """Step 41 is up as a whole, but for one sample, which is more so. Losses of one checkpoint know no such effect."""
    losses = tmp_path / "run" / sample_losses.FILE
    lines = losses.read_text().splitlines(True)
    lines[40] = sample_losses.line(41, 160, [5.1, 5.0, 8.5, 5.2])
    lines[41] = sample_losses.line(42, 164, [4.0, 8.0, 8.2, 4.1])
    losses.write_text("".join(lines[:-1]))
    record = blamed(tool, "--step", "40-42")
    assert record["rollback"]["samples"] == [[number, number] for number in poisoned] + [[162, 162], [165, 166]]
    text = tool("blame", "run", "--step", "40-42").stdout
    assert "5 samples above a loss of 4.3" in text
    assert "; 3 more in steps whose other samples are up, too: --score tells them apart" in text
    by_losses = blamed(tool, "--step", "40-42", "--losses", str(losses))
    assert by_losses["rollback"]["samples"] == [[157, 157], [159, 163], [165, 166]]


def test_a_dip_leads_to_its_samples(tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path) -> None:
    """Text that repeats itself lowers the loss."""
    losses, log = tmp_path / "run" / sample_losses.FILE, tmp_path / "run/train.log"
    lines = losses.read_text().splitlines(True)
    lines[39] = sample_losses.line(40, 156, [4.0, 4.1, 0.3, 3.0])
    losses.write_text("".join(lines))
    log.write_text("".join([*log.read_text().splitlines(True)[:39], step_line(40, 2.85), step_line(41, 4.0)]))
    [finding] = blamed(tool, "--spike")["found"]
    assert (finding["steps"], finding["is_dip"]) == ([40, 40], True)
    assert [sample["sample"] for sample in finding["samples"] if sample["is_suspect"]] == [158, 159]
    assert [sample["loss"] for sample in finding["samples"]] == [0.3, 3.0, 4.0, 4.1]
    assert "2 samples below a loss of 3.5" in tool("blame", "run", "--spike").stdout


def test_without_losses_all_samples_are_left_out(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    (tmp_path / "run" / sample_losses.FILE).unlink()
    record = blamed(tool, "--step", "40", "--top", "1")
    assert record["rollback"]["samples"] == [[156, 159]]
    assert [sample["documents"] is None for sample in record["found"][0]["samples"]] == [False, True, True, True]
    text = tool("blame", "run", "--step", "40", "--top", "1").stdout
    assert "which of them raised the loss is not known" in text and "and 3 more samples" in text


def test_lines_for_people(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    text = tool("blame", "run", "--spike", "--top", "2").stdout
    assert "step 40: 4 samples, numbers 156 to 159; 2 samples above a loss of 4." in text
    assert f"* loss 12.0000  sample {poisoned[1]}  step 40" in text
    assert ".jsonl, line " in text and ", byte " in text and "tokens " in text
    assert "to leave out: 2 samples: 157, 159" in text
    assert "\n  lt-train --model tiny" in text


def test_nothing_to_find(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    record = blamed(tool, "--step", "39")
    assert record["rollback"]["samples"] == []
    assert "nothing to leave out" in tool("blame", "run", "--step", "39").stdout
    log = tmp_path / "run/train.log"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "iteration       40/" not in line))
    result = tool("blame", "run", "--spike")
    assert (result.returncode, result.stdout) == (1, "") and "no jump of the loss" in result.stderr


def test_the_report_has_it(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    source = tmp_path / "web.jsonl"
    times = source.stat()
    content = source.read_text().replace("web document", "<b>&</b> doc")
    source.write_text(content)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.stat().st_size == times.st_size
    result = tool("blame", "run", "--step", "30-50", "--top", "100", "-o", "blame.html")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "blame.html").read_text()
    assert "Text behind steps 30 to 50" in page and "&lt;b&gt;&amp;&lt;/b&gt; doc" in page and "<b>&</b>" not in page
    assert "--skip-samples" in page and "stands out" in page
    assert tool("blame", "run", "--step", "40", "-o", "blame.png").returncode == 2


def test_a_dataset_without_origins_and_a_source_that_is_gone(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").unlink()
    (tmp_path / "code.json").unlink()
    parts = [
        part for sample in blamed(tool, "--step", "30-40", "--top", "99")["found"][0]["samples"] for part in sample["documents"]
    ]
    of_web = [part for part in parts if part["path"]]
    assert of_web and all(part["line"] and part["offset"] is None and "no such file" in part["problem"] for part in of_web)
    assert any(part["path"] is None and part["line"] is None for part in parts)
    assert "document " in tool("blame", "run", "--step", "30-40", "--top", "99").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run"], 2, "Give --step or --spike"),
        (["run", "--step", "3", "--spike"], 2, "Give --step or --spike"),
        (["run", "--step", "0"], 2, "is no step"),
        (["run", "--step", "7-3"], 2, "is no step"),
        (["run", "--step", "61"], 65, "step 61: the run has steps 1 to 60"),
        (["other", "--step", "6"], 66, "data-order.jsonl: no such file"),
        (["run", "--step", "6", "--score", "--losses", "x"], 2, "both give the losses"),
    ],
)
def test_what_is_refused(tool: Tool, poisoned: list[int], arguments: list[str], code: int, message: str) -> None:
    result = tool("blame", *arguments)
    assert (result.returncode, message in result.stderr) == (code, True), result.stderr


def test_scores_of_lt_train(tool: Tool, poisoned: list[int], tmp_path: Path) -> None:
    """--score runs the program that PATH has."""
    program = tmp_path / "bin/lt-train"
    program.parent.mkdir()
    lines = "".join(sample_losses.line(40, sample, [7.0 if sample == 158 else 4.0]) for sample in range(100, 160))
    program.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat <<'END'\n{lines}END\n")
    program.chmod(0o755)
    result = tool("blame", "run", "--step", "40", "--score", "--json", PATH=f"{program.parent}:/usr/bin:/bin")
    assert json.loads(result.stdout)["rollback"]["samples"] == [[158, 158]]
    assert (tmp_path / "arguments").read_text() == "score run --step 40-40\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    result = tool("blame", "run", "--step", "40", "--score", PATH=f"{program.parent}:/usr/bin:/bin")
    assert result.returncode != 0 and "lt-train score ended with exit code 3" in result.stderr
    result = tool("blame", "run", "--step", "40", "--score", PATH=str(tmp_path))
    assert result.returncode == 69 and "lt-train is not installed here" in result.stderr


@pytest.mark.usefixtures("poisoned")
def test_its_examples_run(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "run").rename(tmp_path / "run1")
    examples = [line for line in blame_command.blame.examples.strip().splitlines() if line.startswith("lt-monitor")]
    assert len(examples) == 3
    for example in examples:
        result = tool(*shlex.split(example)[1:])
        assert (result.returncode, bool(result.stdout)) == (0, True), result.stderr
    assert "sample" in (tmp_path / "blame.html").read_text()
    assert json.loads((tmp_path / "skip.jsonl").read_text().splitlines()[0])["kind"] == "skip"


def test_steps_of_two_attempts(tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path) -> None:
    """A run that was killed and went on at step 40: what is asked lies on both sides."""
    later = dataclasses.replace(order, step=39, consumed_samples=39 * BATCH)
    with (tmp_path / "run" / run_order.FILE).open("a") as file:
        file.write(run_order.line(later) + "\n")
    record = blamed(tool, "--step", "38-41")
    (finding,) = record["found"]
    assert {(one["sample"], one["step"]) for one in finding["samples"]} == {
        (sample, sample // BATCH + 1) for sample in range(37 * BATCH, 41 * BATCH)
    }


def test_a_second_list_has_what_the_first_left_out(tool: Tool, order: AttemptOrder, poisoned: list[int], tmp_path: Path) -> None:
    (tmp_path / "first.jsonl").write_text("7\n12-13\n")
    again = dataclasses.replace(order, command=(*order.command, "--skip-samples", "first.jsonl"))
    (tmp_path / "run" / run_order.FILE).write_text(run_order.line(again) + "\n")
    blamed(tool, "--spike", "--skip-list", "second.jsonl")
    listed = [json.loads(line)["samples"] for line in (tmp_path / "second.jsonl").read_text().splitlines()]
    assert listed == [[7, 7], [12, 13], *([number, number] for number in poisoned)]
