"""`lt-monitor alert` as cron runs it: state, exit codes, deliveries, hostile lines, kills."""

import datetime
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from monitor_command import monitor

from lt_shared.contracts import run_log

TOOL = [sys.executable, "-m", "lt_monitor"]
CRITICAL = 3


def stamp(seconds_ago: float) -> str:
    return f"{datetime.datetime.now() - datetime.timedelta(seconds=seconds_ago):%Y-%m-%d %H:%M:%S.%f}"


def step(number: int, seconds_ago: float, loss: str = "2.500000E+00", nans: int = 0) -> str:
    return (
        f" [{stamp(seconds_ago)}] iteration {number:8d}/    1000 | consumed samples: {number * 8:12d} |"
        f" elapsed time per iteration (ms): 1000.0 | learning rate: 1.0E-04 | global batch size:     8 | lm loss: {loss} |"
        f" loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   {nans} |\n"
    )


def healthy(count: int = 30) -> str:
    return "".join(step(number, count - number + 1) for number in range(1, count + 1))


def alert(*arguments: str, cwd: Path, stdin: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return subprocess.run(monitor("alert", *arguments), cwd=cwd, input=stdin, capture_output=True, text=True)


def event(kind: str, offset: int, **fields: Any) -> str:
    return json.dumps({"v": 1, "kind": kind, "run": "r", **fields, "src": {"file": "r.log", "offset": offset}}) + "\n"


def fault(offset: int, name: str = "xid", cause: str = "root", **fields: Any) -> str:
    return event("fault", offset, fault=name, cause=cause, severity="critical", **{"message": name, **fields})


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers), json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        if self.server.answer == 302:  # type: ignore[attr-defined]
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.received, server.answer = [], 200  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/services/SECRET"


def test_nothing_wrong(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(healthy())
    result = tool("alert", "run.log")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_findings_are_new_once(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(healthy())
    assert tool("alert", "--state", "s", "run.log").returncode == 0
    with log.open("a") as file:
        file.write(step(31, 0, nans=1))
    result = tool("alert", "--state", "s", "run.log")
    assert (result.returncode, result.stdout) == (
        CRITICAL,
        "CRITICAL nan run: step 31: 1 step with a loss that is not a number\n",
    )
    result = tool("alert", "--state", "s", "run.log")
    assert (result.returncode, result.stdout) == (0, "")


def test_what_holds_is_said_once_and_counts_in_each_pass(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(step(1, 4000) + step(2, 3999))
    first, second = (tool("alert", "--state", "s", "run.log") for _ in range(2))
    assert first.stdout.startswith("CRITICAL hang run: no step after 2 for 67 min")
    assert (first.returncode, second.returncode, second.stdout) == (CRITICAL, CRITICAL, "")
    result = tool("alert", "run.log")
    assert result.stdout.startswith("CRITICAL hang")


DUMP = "".join(f"{line}\n" for line in run_log.format_arguments({"seq_length": 8, "world_size": 2}))


@pytest.mark.parametrize("is_emptied_first", [False, True])
@pytest.mark.parametrize("through_scrape", [False, True])
def test_a_log_that_was_overwritten_by_one_that_begins_alike_is_read(
    tool: Any, tmp_path: Path, is_emptied_first: bool, through_scrape: bool
) -> None:
    log = tmp_path / "run.log"

    def findings() -> list[str]:
        if not through_scrape:
            return tool("alert", "--state", "state", "run.log").stdout.splitlines()
        new = tool("scrape", "--state", "scrape.state", "run.log").stdout
        # The pipe broke after alert was done, so the same records come twice.
        first = tool("alert", "--state", "state", "-", stdin=new).stdout.splitlines()
        assert tool("alert", "--state", "state", "-", stdin=new).stdout == ""
        return first

    log.write_text(DUMP + healthy(50))
    assert findings() == []
    if is_emptied_first:
        log.write_text("")
        assert findings() == []
    log.write_text(DUMP + step(1, 3) + step(2, 2, nans=1, loss="nan"))
    assert [line.split()[:2] for line in findings()] == [["CRITICAL", "nan"]]
    assert findings() == []
    assert len(json.loads((tmp_path / "state").read_text())["runs"][0]["attempts"]) == 2


@pytest.mark.parametrize("hours", [-9, -5.75, 0, 8])
@pytest.mark.parametrize("has_state", [True, False])
def test_a_log_of_another_zone_is_read_by_the_time_of_its_file(tool: Any, tmp_path: Path, hours: float, has_state: bool) -> None:
    log = tmp_path / "run.log"
    state = ["--state", "state"] if has_state else []

    def write(count: int, seconds_ago: float) -> None:
        log.write_text("".join(step(number, hours * 3600 + seconds_ago + count - number) for number in range(1, count + 1)))
        os.utime(log, (time.time() - seconds_ago,) * 2)

    write(30, 20)
    result = tool("alert", *state, "run.log")
    assert (result.returncode, result.stdout) == (0, "")
    assert ("have no time zone" in result.stderr) == (hours != 0)
    write(31, 3000)
    result = tool("alert", *state, "run.log")
    assert result.stdout.startswith("CRITICAL hang run: no step after 31 for 50 min")
    # The file's time tells nothing now, so what was known of the log counts.
    os.utime(log, (time.time() - 3000 + 400,) * 2)
    if has_state:
        result = tool("alert", *state, "run.log")
        assert (result.returncode, result.stdout, result.stderr) == (CRITICAL, "", "")


def test_times_in_the_future_are_said(tool: Any) -> None:
    result = tool("alert", "-", stdin=step(1, -9 * 3600) + step(2, -9 * 3600))
    assert result.stderr == (
        "lt-monitor: warning: standard input: its times have no time zone and are 9 h ahead of this machine's clock:"
        " set the log's time zone, e.g. TZ=UTC lt-monitor ...\n"
    )


@pytest.mark.parametrize("last", ["0001-01-01 00:00:00", "9999-12-31 23:59:59", "2026-02-31 00:00:00", "2026-11-20 25:00:00"])
def test_times_that_are_none_tell_no_zone(tool: Any, tmp_path: Path, last: str) -> None:
    (tmp_path / "run.log").write_text(step(1, 3) + f" [{last}]" + step(2, 2).split("]", 1)[1])
    assert "internal error" not in tool("alert", "run.log").stderr


def test_a_time_in_the_middle_of_a_quarter_is_no_zone(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(step(1, 8 * 3600 + 400) + step(2, 8 * 3600 + 399))
    assert tool("alert", "run.log").stdout.startswith("CRITICAL hang run: no step after 2 for 8.1 h")


def test_warnings_exit_with_1(tool: Any) -> None:
    note = event("note", 1, note="missing", message="nvidia-smi: not installed here")
    result = tool("alert", "-", stdin=note)
    assert (result.returncode, result.stdout) == (1, "WARNING blind r: nvidia-smi: not installed here\n")


def test_logs_that_tell_nothing_are_not_a_good_sign(tool: Any, tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("noise\n")
    assert tool("alert", "a.log", "b.log").returncode == 0
    os.utime(tmp_path / "a.log", (0, 0))
    os.utime(tmp_path / "b.log", (time.time() - 7200,) * 2)
    result = tool("alert", "a.log", "b.log")
    assert (result.returncode, result.stdout) == (
        1,
        "WARNING blind a: no training events in 2 logs, the newest of which is 2.0 h old\n",
    )
    (tmp_path / "b.log").write_text(healthy())
    assert tool("alert", "a.log", "b.log").returncode == 0


def test_roots_come_before_cascades_of_other_files(tool: Any) -> None:
    events = "".join(
        [
            event("step", 1, step=5),
            *(fault(10 + rank, "nccl-timeout", "cascade", rank=rank) for rank in range(8)),
            fault(30, "out-of-memory", rank=3, message="torch.OutOfMemoryError: CUDA out of memory."),
            fault(40, "exit", "cascade"),
        ]
    )
    result = tool("alert", "-", stdin=events)
    assert result.stdout == (
        "CRITICAL out-of-memory r: rank 3: torch.OutOfMemoryError: CUDA out of memory.; then nccl-timeout x8, exit\n"
    )


def test_a_root_that_is_read_later_is_told_then(tool: Any) -> None:
    before = event("step", 1, step=5) + fault(10, "nccl-timeout", "cascade", rank=1)
    first = tool("alert", "--state", "s", "-", stdin=before)
    second = tool("alert", "--state", "s", "-", stdin=fault(20, "xid", xid=79, node="n7"))
    assert first.stdout.startswith("CRITICAL nccl-timeout")
    assert second.stdout == "CRITICAL xid r: node n7: xid; then nccl-timeout\n"


def test_json(tool: Any) -> None:
    result = tool("alert", "--json", "-", stdin=fault(1, xid=79, node="n7"))
    record = json.loads(result.stdout)
    assert (record["v"], record["kind"], record["rule"], record["fields"]["xid"]) == (1, "finding", "xid", 79)


def test_a_rules_file(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[xid]\nseverity = "warning"\n')
    result = tool("alert", "--rules", "rules.toml", "-", stdin=fault(1))
    assert (result.returncode, result.stdout) == (1, "WARNING xid r: xid\n")
    (tmp_path / "rules.toml").write_text("[xyz]\n")
    result = tool("alert", "--rules", "rules.toml", "-", stdin="")
    assert (result.returncode, result.stdout) == (78, "")


def test_a_command_gets_each_new_finding_on_its_stdin(tool: Any, tmp_path: Path) -> None:
    command = "tee -a 'told me.jsonl'"
    for _ in range(2):
        tool("alert", "--state", "s", "--exec", command, "-", stdin=fault(1, message="$(touch owned); `touch owned`"))
    (line,) = (tmp_path / "told me.jsonl").read_text().splitlines()
    assert json.loads(line)["rule"] == "xid"
    assert not (tmp_path / "owned").exists()


def test_a_command_that_fails_is_tried_again(tool: Any, tmp_path: Path) -> None:
    failing = tool("alert", "--state", "s", "--exec", "false", "-", stdin=event("note", 1, note="missing", message="x"))
    assert (failing.returncode, failing.stderr) == (1, "lt-monitor: warning: --exec: exit code 1\n")
    again = tool("alert", "--state", "s", "--exec", "tee told", "-", stdin="")
    assert (again.returncode, again.stdout) == (0, "")
    assert json.loads((tmp_path / "told").read_text())["rule"] == "blind"
    tool("alert", "--state", "s", "--exec", "tee -a told", "-", stdin="")
    assert len((tmp_path / "told").read_text().splitlines()) == 1
    missing = tool("alert", "--exec", "/no/such/program", "-", stdin=fault(1))
    assert "--exec: No such file" in missing.stderr


def test_a_webhook_gets_escaped_text(tool: Any, webhook: Any) -> None:
    hostile = "<!channel> <script>alert(1)</script> & \x1b[31mred"
    result = tool(
        "alert", "-", stdin=fault(1, message=hostile), LT_MONITOR_ALERT_WEBHOOK=url(webhook), LT_MONITOR_WEBHOOK_TOKEN="t0ken"
    )
    assert (result.returncode, result.stderr) == (CRITICAL, "")
    ((headers, body),) = webhook.received
    assert headers["Authorization"] == "Bearer t0ken"
    assert body["text"] == "CRITICAL xid r: &lt;!channel&gt; &lt;script&gt;alert(1)&lt;/script&gt; &amp; \\x1b[31mred"
    assert "\x1b" not in json.dumps(body["findings"], ensure_ascii=False)
    assert body["findings"][0]["fields"]["offset"] == 1


@pytest.mark.parametrize("answer", [302, 500])
def test_a_webhook_that_fails_is_tried_again_and_its_url_is_not_shown(
    tool: Any, tmp_path: Path, webhook: Any, answer: int
) -> None:
    webhook.answer = answer
    result = tool("alert", "--state", "s", "--webhook", url(webhook), "-", stdin=fault(1))
    assert result.stderr == f"lt-monitor: warning: --webhook: 127.0.0.1 answers {answer}\n"
    assert "SECRET" not in (tmp_path / "s").read_text()
    webhook.answer = 200
    result = tool("alert", "--state", "s", "--webhook", url(webhook), "-", stdin="")
    assert (result.stdout, result.stderr) == ("", "")
    assert len(webhook.received) == 2


def test_a_webhook_that_is_gone(tool: Any) -> None:
    result = tool("alert", "--webhook", "http://127.0.0.1:9/SECRET", "-", stdin=fault(1))
    assert result.returncode == CRITICAL
    assert "--webhook: 127.0.0.1: Connection refused" in result.stderr
    assert "SECRET" not in result.stderr


@pytest.mark.parametrize("bad", ["file:///etc/passwd", "https://", "x", "http://user:pass@host/", "http://host:port/"])
def test_bad_webhooks_are_usage_errors(tool: Any, bad: str) -> None:
    result = tool("alert", "--webhook", bad, "-", stdin="")
    assert (result.returncode, result.stdout) == (2, "")
    assert "pass" not in result.stderr.replace("password", "")


def test_the_command_does_not_get_the_token(tool: Any, tmp_path: Path) -> None:
    tool("alert", "--exec", "sh -c 'env > environment'", "-", stdin=fault(1), LT_MONITOR_WEBHOOK_TOKEN="t0ken")
    assert "t0ken" not in (tmp_path / "environment").read_text()


def test_a_heartbeat_for_each_finished_pass(tool: Any, tmp_path: Path) -> None:
    tool("alert", "--heartbeat", "beat", "-", stdin=fault(1))
    beat = json.loads((tmp_path / "beat").read_text())
    assert beat["worst"] == "critical"
    assert abs(datetime.datetime.fromisoformat(beat["time"]).timestamp() - time.time()) < 60
    (tmp_path / "beat").unlink()
    tool("alert", "--heartbeat", "beat", "no-such.log")
    assert not (tmp_path / "beat").exists()


def test_hostile_lines_reach_the_terminal_as_text(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\rOK everything fine\u202e\ud800"
    events = json.dumps(json.loads(fault(1, message=hostile)) | {"run": hostile}) + "\n"
    result = alert("-", cwd=tmp_path, stdin=events)
    assert result.returncode == CRITICAL
    assert result.stdout.rstrip("\n").isprintable()
    assert len(result.stdout.splitlines()) == 1


def test_a_missing_log_or_a_foreign_state(tool: Any, tmp_path: Path) -> None:
    result = tool("alert", "--state", "s", "gone.log")
    assert (result.returncode, result.stderr) == (66, "lt-monitor: error: gone.log: no such file\n")
    for content in ("{}", "[]", '{"v":1,"kind":"alert-state","runs":[{"run":1}],"known":{},"undelivered":[],"logs":[]}'):
        (tmp_path / "s").write_text(content)
        result = tool("alert", "--state", "s", "-", stdin="")
        assert result.returncode == 65
        assert (tmp_path / "s").read_text() == content


def test_two_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([*TOOL, "alert", "--state", "s", "-"], cwd=tmp_path, stdin=-1, stdout=-1) as first:
        while not list(tmp_path.glob(".s.partial")):
            time.sleep(0.01)
        second = alert("--state", "s", "-", cwd=tmp_path, stdin=fault(1))
        first.communicate(fault(1).encode())
    assert (first.returncode, second.returncode, second.stdout) == (CRITICAL, 75, "")


def test_a_pass_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """The finding is printed and delivered, and then the process dies before its state: the next pass says it again."""
    arguments = [*TOOL, "alert", "--state", "s", "--exec", "sh -c 'cat; touch reached; sleep 60'", "-"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdin=-1, stdout=-1, start_new_session=True) as process:
        process.stdin.write(fault(1).encode())
        process.stdin.close()
        while not (tmp_path / "reached").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read().startswith(b"CRITICAL xid")
    assert not (tmp_path / "s").exists()
    assert alert("--state", "s", "-", cwd=tmp_path, stdin=fault(1)).stdout == "CRITICAL xid r: xid\n"
    assert alert("--state", "s", "-", cwd=tmp_path, stdin="").stdout == ""


def test_a_checkpoint_that_the_log_claims(tool: Any, tmp_path: Path) -> None:
    save = tmp_path / "save"
    claim = f"  [{stamp(1)}] successfully saved checkpoint from iteration      30 to {save} [ t 1/1, p 1/1 ]\n"
    (tmp_path / "run.log").write_text(healthy() + claim)

    def outcome() -> tuple[int, str]:
        result = tool("alert", "run.log")
        return result.returncode, result.stdout.partition(", but ")[2].replace(str(save), "SAVE").strip()

    assert outcome() == (1, "SAVE does not exist on this machine")
    save.mkdir()
    assert outcome() == (CRITICAL, "SAVE is empty")
    (save / "iter_0000020").mkdir()
    assert outcome() == (CRITICAL, "SAVE/iter_0000030 does not exist")
    (save / "iter_0000030").mkdir()
    assert outcome() == (CRITICAL, "SAVE/iter_0000030 is empty")
    (save / "iter_0000030" / "mp_rank_00").mkdir()
    assert outcome() == (0, "")
    (save / "iter_0000030" / "run.json").write_text("{}")
    assert outcome()[0] == CRITICAL


def test_state_does_not_grow_with_findings(tool: Any, tmp_path: Path) -> None:
    for number in range(3):
        events = "".join(event("note", index, note="missing", message=f"{number} {index}") for index in range(4000))
        tool("alert", "--state", "s", "-", stdin=events)
    assert len(json.loads((tmp_path / "s").read_text())["known"]) <= 14_000


@pytest.mark.parametrize(
    "line",
    [
        '0: :::MLLOG {"namespace": "", "time_ms": 1, "key": "run_stop", "metadata": {"status": "success"}}',
        "step:125/1770 val_loss:4.6445 train_time:17953ms step_avg:143.62ms",
        "{'train_runtime': 100.5, 'train_samples_per_second': 5.1, 'epoch': 3.0}",
        "ValueError: no such shard",
    ],
)
def test_a_log_that_says_something_is_not_blind(tool: Any, tmp_path: Path, line: str) -> None:
    """MLPerf's logs, and those of a validation, have no steps."""
    log = tmp_path / "a.log"
    log.write_text(line + "\n")
    os.utime(log, (time.time() - 3600,) * 2)
    assert "blind" not in tool("alert", str(log)).stdout
    log.write_text("nothing\n")
    os.utime(log, (time.time() - 3600,) * 2)
    assert "WARNING blind" in tool("alert", str(log)).stdout
