"""The metrics file: accepted by promtool, served by a real node_exporter, kept up in a pipeline."""

import datetime
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.collect import state_file
from lt_monitor.prometheus import exposition
from lt_monitor.runs.run_state import RunState

HOSTILE = 'run "one"\\\n\x1b[31m{x="y"}\u202e 100\n# TYPE lt_train_step counter'
VALUE = r'((?:[^"\\\n]|\\[\\n"])*)'
LINE = re.compile(
    rf'(\w+)\{{(?:run="{VALUE}")?(?:,(?!monitor)(\w+)="([^"]*)")?(?:(?:,|(?<=\{{))monitor="(?:[^"\\\n]|\\[\\n"])*")?\}} (\S+)'
)


def event(kind: str, offset: int, run: str = "r", **fields: Any) -> str:
    return json.dumps({"v": 1, "kind": kind, "run": run, **fields, "src": {"file": f"{run}.log", "offset": offset}}) + "\n"


def steps(first: int, last: int, run: str = "r", **fields: Any) -> str:
    now = datetime.datetime.now().astimezone()
    times = {number: (now - datetime.timedelta(seconds=last - number)).isoformat() for number in range(first, last + 1)}
    return "".join(
        event("step", number * 10, run, step=number, loss=2.5, step_seconds=1.0, time=times[number], skipped_steps=1, **fields)
        for number in range(first, last + 1)
    )


def values(text: str) -> dict[str, float]:
    """Samples by name and labels other than the run."""
    metrics = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            metrics[f"{match[1]}{{{match[4]}}}" if match[4] else match[1]] = float(match[5])
    return metrics


@pytest.fixture
def exporter(node_exporter: str, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A node_exporter with nothing but the textfile collector: its directory, of those that begin so, and its URL."""
    folder = tmp_path / "textfiles"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [f"--web.listen-address=127.0.0.1:{port}", "--collector.disable-defaults", "--collector.textfile"]
    arguments.append(f"--collector.textfile.directory={folder}*")
    with subprocess.Popen([node_exporter, *arguments], stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}/metrics"
        for _ in range(200):
            try:
                with urllib.request.urlopen(url):
                    break
            except OSError:
                time.sleep(0.02)
        yield folder, url
        process.terminate()


def test_a_real_node_exporter_serves_the_file(tool: Any, exporter: tuple[Path, str]) -> None:
    folder, url = exporter
    assert tool("prom", "-o", str(folder / "lt.prom"), "-", stdin=steps(1, 30) + steps(1, 5, HOSTILE)).returncode == 0
    with urllib.request.urlopen(url) as answer:
        served = answer.read().decode()
    assert f'lt_train_step{{monitor="{folder}/lt",run="r"}} 30\n' in served
    assert "node_textfile_scrape_error 0\n" in served
    assert 'node_textfile_mtime_seconds{file="' in served
    ours = [line for line in served.splitlines() if line.startswith("lt_train_step{")]
    assert len(ours) == 2
    assert {re.split("[{ ]", line)[0] for line in served.splitlines() if line.startswith("lt_")} <= set(exposition.BY_NAME)


FILES, DIRECTORIES = "a file each", "a directory each"
OTHER_BYTES = ["a\udcfe", "a\udcff"]


@pytest.mark.parametrize(
    ("names", "log", "output"),
    [
        (["base", "large"], "train.log", FILES),
        (["base", "large"], "train.log", DIRECTORIES),
        (["base", "large"], "train.log", "-"),
        (["base", "large"], "-", "-"),
        (OTHER_BYTES, "train.log", FILES),
        (["a\x01", "a\\x01"], "train.log", FILES),
    ],
    ids=["files", "directories", "standard output", "pipes", "names that are not UTF-8", "names with an escape"],
)
def test_two_monitors_of_one_exporter_have_no_series_in_common(
    names: list[str], log: str, output: str, exporter: tuple[Path, str], promtool: str, tmp_path: Path
) -> None:
    """node_exporter keeps one of two equal series, and a monitor that is dead looks like the one that lives."""
    folder, url = exporter
    targets = []
    for name, last in zip(names, (30, 20), strict=True):
        (tmp_path / name).mkdir()
        lines = steps(1, last, "train")
        (tmp_path / name / "train.log").write_text(lines)
        target = folder / f"{name}.prom"
        if output == DIRECTORIES:
            target = tmp_path / f"{folder.name}-{name}" / "lt.prom"
            target.parent.mkdir()
        command = [sys.executable, "-m", "lt_monitor", "prom", "-o", "-" if output == "-" else target, log]
        done = subprocess.run(command, input=lines, cwd=tmp_path / name, check=True, capture_output=True, text=True)
        if output == "-":
            target.write_text(done.stdout)
        targets.append(target)
    texts = [target.read_text() for target in targets]
    series = [line.rpartition(" ")[0] for text in texts for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)) > 20
    for text in texts:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    if names == OTHER_BYTES:
        # node_exporter has a label with the name of each file, and drops those that are not UTF-8.
        return
    with urllib.request.urlopen(url) as answer:
        served = answer.read().decode()
    assert "node_textfile_scrape_error 0\n" in served
    for step in (30, 20):
        assert len(re.findall(rf'^lt_train_step\{{monitor=".*",run="train"\}} {step}$', served, re.MULTILINE)) == 1
    assert served.count("\nlt_monitor_last_run_timestamp_seconds{") == 2


def test_many_logs_on_standard_output_make_a_short_label(tool: Any, tmp_path: Path) -> None:
    """Two lists that differ in the last log only have two labels."""
    names = [f"{'n' * 90}{number}.log" for number in range(9)]
    for name in names:
        (tmp_path / name).write_text(steps(1, 3))
    labels = []
    for logs in (names[:8], [*names[:7], names[8]]):
        labels.append(tool("prom", *logs).stdout.splitlines()[-1].partition('"')[2].rpartition('"')[0])
    assert labels[0] != labels[1]
    assert max(map(len, labels)) < 330


def test_monitors_on_standard_output_are_told_apart_by_their_logs(tool: Any, tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(steps(1, 3))
    lines = [tool("prom", name).stdout.splitlines()[-1].rpartition(" ")[0] for name in ("a.log", "b.log")]
    assert lines == [f'lt_monitor_last_run_timestamp_seconds{{monitor="{tmp_path}/{name}"}}' for name in ("a.log", "b.log")]


def test_promtool_finds_nothing_to_complain_about(tool: Any, promtool: str) -> None:
    events = steps(1, 30, total_steps=100, mfu=0.4, grad_norm=None, tflops_per_gpu=400.0, memory_bytes=1 << 36) + steps(
        1, 5, HOSTILE
    )
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=tool("prom", "-", stdin=events).stdout, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@given(st.text())
def test_no_run_name_breaks_the_format(name: str) -> None:
    state = RunState(name)
    state.take({"kind": "step", "step": 3, "loss": None, "src": {"file": "f", "offset": 0}}, 100.0)
    metrics = values(exposition.render([state], 100.0))
    assert metrics["lt_train_step"] == 3
    assert metrics["lt_train_loss"] != metrics["lt_train_loss"]


def test_each_metric_has_help_type_and_a_base_unit() -> None:
    for metric in exposition.METRICS:
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not re.search(r"_(ms|milliseconds|percent|mb|gib|minutes|hours)(_|$)", metric.name)


def test_counters_go_on_in_a_pipeline(tool: Any, tmp_path: Path) -> None:
    first = tool("prom", "-o", "lt.prom", "-", stdin=steps(1, 10))
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    before = values((tmp_path / "lt.prom").read_text())
    tool("prom", "-o", "lt.prom", "-", stdin=steps(11, 15))
    after = values((tmp_path / "lt.prom").read_text())
    assert (before["lt_train_skipped_steps_total"], after["lt_train_skipped_steps_total"]) == (10, 15)
    tool("prom", "-o", "lt.prom", "-", stdin="")
    silent = values((tmp_path / "lt.prom").read_text())
    assert silent["lt_train_step"] == 15
    assert silent["lt_monitor_last_run_timestamp_seconds"] >= after["lt_monitor_last_run_timestamp_seconds"]


def test_the_file_is_readable_for_node_exporter_whatever_the_umask(tool: Any, tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        tool("prom", "-o", "lt.prom", "-", stdin=steps(1, 3))
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "lt.prom").stat().st_mode) == 0o644
    assert not [path for path in tmp_path.glob("*.prom") if path.name != "lt.prom"]


def test_only_prom_files_are_read_by_node_exporter(tool: Any) -> None:
    result = tool("prom", "-o", "lt.txt", "-")
    assert (result.returncode, result.stdout) == (2, "")
    assert tool("prom", "-o", "no/such/lt.prom", "-").returncode == 73


def test_runs_that_ended_leave_the_file(tool: Any, tmp_path: Path) -> None:
    tool("prom", "-o", "lt.prom", "-", stdin=steps(1, 3) + event("end", 99, reason="completed"))
    assert values((tmp_path / "lt.prom").read_text())["lt_train_running"] == 0
    state = json.loads((tmp_path / "lt.prom.state").read_text())
    state["runs"][0]["end"]["at"] -= 4000
    (tmp_path / "lt.prom.state").write_bytes(
        state_file.content("prom-state", {key: state[key] for key in state if key != "sha256"})
    )
    tool("prom", "-o", "lt.prom", "-", stdin="")
    assert set(values((tmp_path / "lt.prom").read_text())) == {"lt_monitor_last_run_timestamp_seconds"}


def test_what_the_metrics_say_of_a_story(tool: Any) -> None:
    fault = {"fault": "xid", "cause": "root", "severity": "critical", "message": "Xid 79"}
    story = (
        event("start", 0, arguments={"seq_length": 100, "global_batch_size": 8, "train_iters": 500, "world_size": 8})
        + steps(1, 20)
        + event("checkpoint", 202, step=20, path="/save", time=datetime.datetime.now().astimezone().isoformat())
        + event("eval", 203, step=20, loss=2.25)
        + event("fault", 204, **fault)
    )
    metrics = values(tool("prom", "-", stdin=story).stdout)
    now = time.time()
    assert metrics["lt_train_total_steps"] == 500
    assert metrics["lt_train_tokens_per_second"] == 800
    assert metrics["lt_train_validation_loss"] == 2.25
    assert metrics["lt_train_last_checkpoint_step"] == 20
    assert now - 10 < metrics["lt_train_last_checkpoint_timestamp_seconds"] <= now
    assert now - 10 < metrics["lt_train_last_step_timestamp_seconds"] <= now
    assert (metrics["lt_train_failed"], metrics["lt_train_running"]) == (1, 0)
    assert (metrics["lt_train_faults_total{xid}"], metrics["lt_train_faults_total{killed}"]) == (1, 0)
    assert metrics["lt_train_hang_limit_seconds"] == 300
    assert metrics["lt_train_badput_seconds_total{lost-work}"] == 0


def test_the_numbers_of_goodput_are_those_of_the_command(tool: Any) -> None:
    story = steps(1, 30) + event("load", 310, step=20, path="/save") + steps(21, 40).replace('"offset": ', '"offset": 1')
    summary = json.loads(tool("goodput", "--json", "-", stdin=story).stdout)
    metrics = values(tool("prom", "-", stdin=story).stdout)
    assert metrics["lt_train_lost_steps_total"] == summary["lost_steps"] == 10
    assert metrics["lt_train_goodput_ratio"] == pytest.approx(summary["goodput"], abs=1e-6)
    assert metrics["lt_train_badput_seconds_total{lost-work}"] == pytest.approx(summary["lost_seconds"]["lost-work"], abs=1e-3)


def test_kills_at_any_moment_lose_and_double_nothing(tmp_path: Path) -> None:
    """The log grows, passes are killed after ever longer times; what is published is whole, and right in the end."""
    arguments = [sys.executable, "-m", "lt_monitor", "prom", "-o", "lt.prom", "run.log"]
    line = " iteration {0:8d}/    1000 | elapsed time per iteration (ms): 9.0 | number of skipped iterations:   1 |\n"
    written = 0
    for delay in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5):
        with (tmp_path / "run.log").open("a") as log:
            log.write("".join(line.format(number) for number in range(written + 1, written + 51)))
        written += 50
        with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
            time.sleep(delay)
            process.kill()
        if (tmp_path / "lt.prom").exists():
            assert values((tmp_path / "lt.prom").read_text())["lt_train_step"] % 50 == 0
    assert subprocess.run(arguments, cwd=tmp_path).returncode == 0
    metrics = values((tmp_path / "lt.prom").read_text())
    assert (metrics["lt_train_step"], metrics["lt_train_skipped_steps_total"], metrics["lt_train_restarts_total"]) == (
        written,
        written,
        0,
    )


def test_the_mfu_of_a_log_that_does_not_tell_its_gpu(tool: Any) -> None:
    sizes = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8}
    sizes |= {"group_query_attention": True, "swiglu": True, "padded_vocab_size": 128256, "seq_length": 8192}
    sizes |= {"global_batch_size": 128, "world_size": 16}
    start = {"v": 1, "kind": "start", "run": "r", "arguments": sizes, "src": {"file": "r.log", "offset": 0}}
    step = {
        "v": 1,
        "kind": "step",
        "run": "r",
        "step": 1,
        "loss": 2.0,
        "step_seconds": 10.0,
        "src": {"file": "r.log", "offset": 1},
    }
    log = json.dumps(start) + "\n" + json.dumps(step) + "\n"
    (summary,) = json.loads(tool("summarize", "--json", "--gpu", "H100", "-", stdin=log).stdout)["runs"]
    metrics = values(tool("prom", "--gpu", "H100", "-", stdin=log).stdout)
    assert metrics["lt_train_mfu_ratio"] == summary["mfu"] > 0.3
    assert metrics["lt_train_tflops_per_gpu"] == summary["tflops_per_gpu"]
    assert "lt_train_mfu_ratio" not in values(tool("prom", "-", stdin=log).stdout)
    logged = json.dumps(step | {"tflops_per_gpu": 494.5}) + "\n"
    assert values(tool("prom", "--gpu", "H100", "-", stdin=logged).stdout)["lt_train_mfu_ratio"] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("lines", [1, 2, 25])
def test_tokens_per_second_are_those_of_all_gpus(tool: Any, lines: int) -> None:
    """TorchTitan prints those of one GPU. By hand: 1000 tokens/s on each of 16 GPUs; 8 samples of 512 tokens in 1 s."""
    sizes = {"world_size": 16, "seq_length": 512, "global_batch_size": 8}
    per_gpu = event("start", 0, arguments=sizes) + steps(1, lines + 1, tokens_per_second_per_gpu=1000.0)
    assert values(tool("prom", "-", stdin=per_gpu).stdout)["lt_train_tokens_per_second"] == 16_000
    computed = event("start", 0, arguments=sizes) + steps(1, lines + 1)
    assert values(tool("prom", "-", stdin=computed).stdout)["lt_train_tokens_per_second"] == 4_096
    (summary,) = json.loads(tool("summarize", "--json", "-", stdin=per_gpu).stdout)["runs"]
    assert summary["tokens_per_second"] == 16_000
