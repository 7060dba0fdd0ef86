"""Webhooks, commands and programs that hang, trickle, flood or lie: a pass of lt-monitor ends in time and tells no secret."""

import contextlib
import json
import os
import queue
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from monitor_command import monitor

from lt_monitor.alerts import delivery
from lt_monitor.collect import external_programs, gpu, neuron, slurm_jobs
from lt_monitor.events.alert_findings import Finding

FAULT = '{"v":1,"kind":"fault","fault":"xid","cause":"root","severity":"critical","message":"Xid 79"}\n'
FINDING = Finding("xid", "critical", "run", "xid:1", "Xid 79")
TOKEN = "bearer-" + "5" * 20
Answer = Callable[[socket.socket], None]


def request(connection: socket.socket) -> bytes:
    """An HTTP request whole: its body may come in a segment after its head."""
    sent = b""
    while block := connection.recv(1 << 16):
        sent += block
        head, end, body = sent.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return sent


@contextlib.contextmanager
def endpoint(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """A server whose connections `answer` has; its URL, and what it was sent. At the end it cuts them: who was still reading what
    never ends would read on, for as long as other tests run in this process."""
    received: list[bytes] = []
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                with connection, contextlib.suppress(OSError):
                    received.append(request(connection))
                    answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/secret-path", received
        server.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def hang(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def trickle(text: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        for byte in text * 1000:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return answer


def flood(begin: bytes, block: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(block)

    return answer


def say(text: bytes) -> Answer:
    return lambda connection: connection.sendall(text)


ENDPOINTS: dict[str, Answer] = {
    "hangs": hang,
    "trickles its status": trickle(b"HTTP/1.1 200 O"),
    "trickles headers": trickle(b"HTTP/1.1 200 OK\r\nA: "),
    "continues for ever": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "floods headers": flood(b"HTTP/1.1 200 OK\r\n", b"A: " + b"x" * 60_000 + b"\r\n"),
    "floods a line": flood(b"HTTP/1.1 200 OK\r\nA: ", b"x" * (1 << 20)),
    "no HTTP": say(b"\x00\xff\x1b[2J\r\n\r\n"),
    "no status": say(b"HTTP/1.1 abc\r\n\r\n"),
    "closes": say(b""),
    "to a file": say(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"),
    "error floods": flood(b"HTTP/1.1 500 No\r\nContent-Length: 99999999999\r\n\r\n", b"x" * (1 << 20)),
    "refuses": say(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
}

UNTIL_THE_LIMIT = {name for name in ENDPOINTS if name.startswith(("hangs", "trickles", "continues"))}


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_bad_endpoint_is_a_problem_of_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "WEBHOOK_SECONDS", 0.3 if name in UNTIL_THE_LIMIT else 2.0)
    monkeypatch.setenv(delivery.TOKEN_VARIABLE, TOKEN)
    with endpoint(ENDPOINTS[name]) as (url, _):
        begin = time.monotonic()
        problem = delivery.post(url, [FINDING])
        assert time.monotonic() - begin < 30
    assert problem is not None and problem.startswith("--webhook: 127.0.0.1")
    assert problem.isprintable()
    assert "secret-path" not in problem and TOKEN not in problem


def test_silence_is_told_alike_whichever_time_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket's limit or the whole delivery's: here the second waits for the first."""

    class PatientQueue:
        def __init__(self) -> None:
            self.outcomes: queue.Queue[str | None] = queue.Queue()
            self.put = self.outcomes.put

        def get(self, timeout: float) -> str | None:
            return self.outcomes.get(timeout=60)

    monkeypatch.setattr(delivery, "WEBHOOK_SECONDS", 0.2)
    with endpoint(hang) as (url, _):
        problem = delivery.post(url, [FINDING])
        monkeypatch.setattr(delivery.queue, "SimpleQueue", PatientQueue)
        assert delivery.post(url, [FINDING]) == problem == "--webhook: 127.0.0.1: no answer within 0.2 s"


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(flood(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * (1 << 20))) as (url, received):
        assert delivery.post(url, [FINDING]) is None
    assert b"POST /secret-path" in received[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_secret_goes_to_another_host(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(delivery.TOKEN_VARIABLE, TOKEN)
    with endpoint(say(b"HTTP/1.1 200 OK\r\n\r\n")) as (other, reached):
        location = other.replace("127.0.0.1", "localhost").encode()
        redirect = say(b"HTTP/1.1 %d Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, location))
        with endpoint(redirect) as (url, received):
            assert delivery.post(url, [FINDING]) == f"--webhook: 127.0.0.1 answers {status}"
    assert TOKEN.encode() in received[0]
    assert reached == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://h/x", "http://u:p@h/x", "http://", "http://h:x/", "gopher://h", "data:,x"]
)
def test_urls_that_are_no_webhook(url: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(FAULT)
    done = subprocess.run(monitor("alert", "--webhook", url, "run.log"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "u:p" not in done.stderr


def test_the_command_line_with_an_endpoint_that_hangs(tmp_path: Path) -> None:
    """The finding is printed and kept for the next pass, which delivers it."""
    (tmp_path / "run.log").write_text(FAULT)
    (tmp_path / "sitecustomize.py").write_text("from lt_monitor.alerts import delivery\ndelivery.WEBHOOK_SECONDS = 2\n")
    command = monitor("alert", "--state", "state", "run.log")
    with endpoint(hang) as (url, _):
        webhook = {"LT_MONITOR_ALERT_WEBHOOK": url, delivery.TOKEN_VARIABLE: TOKEN}
        environment = os.environ | webhook | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "Xid 79" in done.stdout
    assert done.stderr.splitlines() == ["lt-monitor: warning: --webhook: 127.0.0.1: no answer within 2 s"]
    assert TOKEN not in (tmp_path / "state").read_text() and "secret-path" not in (tmp_path / "state").read_text()
    with endpoint(say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (url, received):
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | webhook | {"LT_MONITOR_ALERT_WEBHOOK": url}, capture_output=True
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert b"Xid 79" in received[0]


def test_a_command_that_hangs_is_tried_once_in_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lt_monitor.alerts.alert import Channels, alert

    monkeypatch.setattr(delivery, "COMMAND_SECONDS", 1)
    (tmp_path / "run.log").write_text("".join(FAULT.replace('"fault",', f'"fault","run":"r{number}",', 1) for number in range(5)))
    (tmp_path / "hang").write_text(f"#!/bin/sh\necho x >> {tmp_path}/tried\nsleep 1000 & echo $! >> {tmp_path}/pids; wait\n")
    (tmp_path / "hang").chmod(0o755)
    code = alert(
        [str(tmp_path / "run.log")], state_file=str(tmp_path / "state"), channels=Channels(command=str(tmp_path / "hang"))
    )
    assert code == 3
    assert (tmp_path / "tried").read_text() == "x\n"
    assert len(json.loads((tmp_path / "state").read_text())["undelivered"]) == 5
    for pid in (tmp_path / "pids").read_text().split():
        for _ in range(1200):
            if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                break
            time.sleep(0.1)
        else:
            raise AssertionError("what the command started still runs")


def test_a_command_gets_no_secret(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(FAULT)
    with endpoint(say(b"HTTP/1.1 200 OK\r\n\r\n")) as (url, _):
        environment = os.environ | {"LT_MONITOR_ALERT_WEBHOOK": url, delivery.TOKEN_VARIABLE: TOKEN}
        command = monitor("alert", "--exec", "sh -c 'env > environment; cat > given'", "run.log")
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    given = (tmp_path / "environment").read_text()
    assert TOKEN not in given and "secret-path" not in given
    assert json.loads((tmp_path / "given").read_text())["rule"] == "xid"


PROGRAMS = {
    "hangs": "sleep 1000",
    "closes its output and hangs": "exec >&- 2>&-; sleep 1000",
    "leaves a child": "sleep 1000 & echo; exit 0",
    "floods": "exec yes '{\"jobs\": ['",
    "floods without lines": "exec cat /dev/zero",
    "floods errors": "exec yes >&2",
    "fails with a flood": "yes x | head -c 9000000; exit 3",
    "escapes": r"printf '\033[2J\033]0;x\007'; printf '\033[2J' >&2; exit 1",
    "no text": "head -c 100000 /dev/urandom",
    "deep": "head -c 1000000 /dev/zero | tr '\\0' '['",
    "deep JSON": "printf '{\"jobs\":'; head -c 1000000 /dev/zero | tr '\\0' '['",
    "huge numbers": 'printf \'{"jobs":[{"job_id":1%05000d}]}\' 0',
    "wrong types": 'echo \'{"jobs":[{"job_id":{},"name":[],"job_state":{"a":1}},7,null],"errors":3}\'',
    "not an object": "echo '{\"jobs\":7}'; echo 3",
    "nothing": "exit 0",
    "killed": "kill -9 $$",
}
SILENT = ("hangs", "closes its output and hangs", "leaves a child")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("source", ["squeue", "nvidia-smi", "neuron-monitor"])
def test_a_program_that_misbehaves_is_a_note(
    source: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in {source, "sacct", "scontrol"}:
        (tmp_path / name).write_text(f"#!/bin/sh\n{PROGRAMS[program]}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if program.startswith("floods"):
        monkeypatch.setattr(external_programs, "MAXIMUM_BYTES", 1 << 20)
    limit = 0.3 if program in SILENT else 2.0
    for function in (external_programs.answer, external_programs.first_line):
        monkeypatch.setattr(external_programs, function.__name__, lambda words, ask=function: ask(words, limit))
    begin = time.monotonic()
    records = {
        "squeue": lambda: slurm_jobs.sample(None, ["7"]),
        "nvidia-smi": lambda: gpu.sample(None),
        "neuron-monitor": lambda: neuron.sample(None),
    }[source]()
    assert time.monotonic() - begin < 60
    assert all(record["kind"] in ("note", "job") for record in records)
    assert sum(len(json.dumps(record)) for record in records) < 100_000
    said = capfd.readouterr().err
    assert "\x1b" not in said and len(said) < 10_000
