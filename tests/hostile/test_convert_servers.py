"""A stranger's checkpoint names a server: lt-convert, on a machine behind a firewall, does not ask it."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from convert_models import run, write_model

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.tensors.source_files import Files
from lt_convert.tokenizers import discovery
from lt_shared.contracts.manifest import Tokenizer


class Listener:
    """A server that writes down who connects, and hangs up."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.callers: list[object] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, caller = self.socket.accept()
            except OSError:
                return
            self.callers.append(caller)
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.shutdown(socket.SHUT_RDWR)
    listener.socket.close()


def test_the_listener_notices_who_asks(listener: Listener) -> None:
    with pytest.raises(Exception, match=r"."):
        fsspec.filesystem("http").cat_file(f"http://127.0.0.1:{listener.port}/tokenizer/vocab.json")
    assert listener.callers


@pytest.mark.parametrize("scheme", ["http", "webhdfs", "ftp"])
def test_the_tokenizer_of_a_run_is_not_looked_for_on_a_server(scheme: str, listener: Listener, tmp_path: Path) -> None:
    saved = Tokenizer("gpt2", "0" * 64, f"{scheme}://127.0.0.1:{listener.port}/tokenizer")
    with Files() as files:
        assert discovery.of_run(str(tmp_path), saved, files) is None
    assert listener.callers == []


@pytest.mark.parametrize("name", ["megatron-dist", "torchtitan"])
def test_a_conversion_connects_to_nobody(name: str, listener: Listener, tmp_path: Path) -> None:
    write_model(tmp_path / "model", tokenizer=True)
    conversion.convert(Request(str(tmp_path / "model"), name, str(tmp_path / "theirs")))
    (record_path,) = (tmp_path / "theirs").rglob("run.json")
    record = json.loads(record_path.read_text())
    for place in (tmp_path / "theirs").rglob("tokenizer"):
        place.rename(tmp_path / "tokenizer")
    for path in (tmp_path / "theirs").rglob("*.json"):
        if path.name in ("lt-convert.json", "checksums.json"):
            path.unlink()
    record["tokenizer"] = {"name": "gpt2", "sha256": "0" * 64, "path": f"http://127.0.0.1:{listener.port}/tokenizer"}
    record_path.write_text(json.dumps(record))
    for command in ("inspect", "verify"):
        run(command, tmp_path / "theirs")
    done = run(tmp_path / "theirs", "--to", "hf", "-o", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "ours").glob("*token*"))
    assert listener.callers == []
