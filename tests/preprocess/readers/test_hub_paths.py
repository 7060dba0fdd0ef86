"""Paths of the Hugging Face Hub are read through huggingface_hub, and its token is printed by no error."""

import hashlib
import http.server
import itertools
import json
import os
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lt_preprocess.pipeline import run as runs
from lt_shared.console import IoFailure
from lt_shared.files import storage

pytest.importorskip("huggingface_hub")

Run = Callable[..., subprocess.CompletedProcess[str]]
TOKEN = "hf_theTokenOfThisTest123"
COMMIT = "a" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """What HfFileSystem asks for: the repository, its files, and byte ranges. Other tokens are refused, and repeated."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        paths = json.loads(body)["paths"] if body.startswith(b"{") else urllib.parse.parse_qs(body.decode())["paths"]
        self.answer(200, json.dumps([self.entry(path) for path in paths if path in self.files]).encode())

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        authorization = self.headers.get("Authorization", "")
        if authorization != f"Bearer {TOKEN}":
            headers = {"X_Error_Code": "RepoNotFound", "X_Error_Message": authorization}
            self.answer(401, json.dumps({"error": authorization}).encode(), **headers)
        elif re.fullmatch(r"/api/datasets/owner/name(/revision/.*)?", path):
            description = {"id": "owner/name", "sha": COMMIT, "private": True, "siblings": [], "tags": []}
            self.answer(200, json.dumps(description).encode())
        elif path.startswith("/api/datasets/owner/name/tree/"):
            entries = [self.entry(name) for name in sorted(self.files)]
            self.answer(200, json.dumps([{"type": "directory", "path": "data", "oid": COMMIT}, *entries]).encode())
        elif (name := path.removeprefix("/datasets/owner/name/resolve/main/")) in self.files:
            content = self.files[name]
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first, last = (int(match[1]), int(match[2] or len(content) - 1)) if match else (0, len(content) - 1)
            headers = {"ETag": f'"{self.entry(name)["oid"]}"', "X_Repo_Commit": COMMIT}
            headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(206 if match else 200, content[first : last + 1], **headers)
        else:
            self.answer(404, X_Error_Code="EntryNotFound")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program that uses this Hub."""
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["three", "four"]}), rows)
    Hub.files = {"data/a.jsonl": b'{"text": "one"}\n{"text": "two"}\n', "data/b.parquet": rows.read_bytes()}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": TOKEN}
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        yield {**environment, **home, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        server.shutdown()


@pytest.mark.parametrize("path", ["data/", "data/*"])
def test_files_of_a_repository(run: Run, tmp_path: Path, demo_tokenizer: Path, hub: dict[str, str], path: str) -> None:
    command = [f"hf://datasets/owner/name/{path}", "--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / "o", "--plain"]
    done = run(*command, env=hub)
    assert done.returncode == 0, done.stderr
    lines = run("cat", done.stdout.strip()).stdout.splitlines()
    assert [json.loads(line)["text"].split("<|")[0] for line in lines] == ["one", "two", "three", "four"]
    assert "up to date" in run(*command, env=hub).stderr
    assert TOKEN not in done.stderr + Path(f"{done.stdout.strip()}.json").read_text()


def test_what_the_hub_refuses(run: Run, tmp_path: Path, demo_tokenizer: Path, hub: dict[str, str]) -> None:
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / "o"]
    for token, path in (("hf_anotherTokenOfThisTest9", "data/a.jsonl"), (TOKEN, "data/c.jsonl")):
        done = run(f"hf://datasets/owner/name/{path}", *options, env={**hub, "HF_TOKEN": token})
        assert done.returncode == 66
        assert f"{path}: no such file" in done.stderr
        assert "hint: a private or gated repository needs HF_TOKEN" in done.stderr
        assert token not in done.stderr


def test_a_connection_that_breaks_is_no_damaged_file(
    tmp_path: Path, demo_tokenizer: Path, planned: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of Parquet are retried like other requests, and the last error names the file and the network."""
    pq.write_table(pa.table({"text": ["three", "four"]}), tmp_path / "rows.parquet")
    store = fsspec.filesystem("memory")
    store.pipe_file("/hub/rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    real_open = type(store)._open
    failures: Iterator[bool] = iter([True, True])

    def broken(self: Any, *arguments: Any, **options: Any) -> Any:
        file = real_open(self, *arguments, **options)
        real_read = file.read

        def read(size: int = -1) -> bytes:
            # The first page begins behind the magic number.
            if 4 <= file.tell() < 100 and next(failures, False):
                raise ConnectionResetError("connection reset by peer")
            return real_read(size)

        file.read = read
        return file

    monkeypatch.setattr(type(store), "_open", broken)
    [dataset] = runs.build(planned(["memory://hub/rows.parquet"], demo_tokenizer, tmp_path / "o"), 1)
    assert dataset.documents == 2
    assert next(failures, None) is None
    failures = itertools.repeat(True)
    with pytest.raises(IoFailure, match=r"memory://hub/rows.parquet: connection reset by peer") as error:
        runs.build(planned(["memory://hub/rows.parquet"], demo_tokenizer, tmp_path / "o"), 1, anew=True)
    assert error.value.hint == storage.FAILING
    store.rm("/hub", recursive=True)
