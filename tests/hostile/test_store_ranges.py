"""Ranges of objects on S3, of one version, through whatever the store does."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
import s3fs
from faulty_store import ERRORS, FAULTS, FaultyStore
from s3_server import Server

from lt_shared.console import BadData, IoFailure, NoInput, Unavailable
from lt_shared.files import object_versions, storage

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def faulty(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    store = FaultyStore(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    once = {"read_timeout": 2, "connect_timeout": 2, "retries": {"max_attempts": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": once})
    s3fs.S3FileSystem.clear_instance_cache()
    yield store
    s3fs.S3FileSystem.clear_instance_cache()


def version_of(url: str) -> str:
    return str(storage.fingerprint(url, refresh=True)["version"])


def test_many_ranges_of_one_version(bucket: str) -> None:
    url = f"{bucket}/web.bin"
    storage.write_bytes(url, CONTENT)
    version = version_of(url)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda begin: object_versions.read_range(url, begin, begin + 100, version), range(0, 10_000, 500)))
    assert found == [CONTENT[begin : begin + 100] for begin in range(0, 10_000, 500)]
    storage.write_bytes(url, CONTENT[::-1])
    with pytest.raises(BadData, match=r"web\.bin: was replaced while it was read"):
        object_versions.read_range(url, 0, 100, version)
    storage.remove(url)
    with pytest.raises(NoInput, match=r"web\.bin"):
        object_versions.read_range(url, 0, 100, version)


def test_what_passes_and_what_does_not(bucket: str, faulty: FaultyStore) -> None:
    url = f"{bucket}/web.bin"
    storage.write_bytes(url, CONTENT)
    version = version_of(url)
    for fault in FAULTS:
        faulty.disturb(fault, 1, 1)
        if ERRORS.get(fault, (0,))[0] in (400, 403):
            with pytest.raises(Unavailable, match=r"web\.bin") as refused:
                object_versions.read_range(url, 10, 20, version)
            assert "credentials" in str(refused.value.hint)
            assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(refused.value).replace(bucket, "")
        else:
            assert object_versions.read_range(url, 10, 20, version) == CONTENT[10:20], fault
        assert faulty.requests


def test_a_store_that_does_not_answer(
    bucket: str, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{bucket}/web.bin"
    storage.write_bytes(url, CONTENT)
    version = version_of(url)
    monkeypatch.setattr(object_versions, "SLOW_SECONDS", 0.5)
    monkeypatch.setattr(object_versions, "ANSWER_SECONDS", 1)
    monkeypatch.setattr(storage, "REMOTE_ATTEMPTS", 2)
    monkeypatch.setattr(storage, "WARNING_SECONDS", 0)
    faulty.disturb("no answer", 1, 99)
    with pytest.raises(IoFailure, match=r"web\.bin: no answer within 1 s"):
        object_versions.read_range(url, 10, 20, version)
    # The second may still be on its way to a store on a busy machine.
    assert 1 <= faulty.requests <= 2
    messages = capsys.readouterr().err
    for reason in ("no answer for 0.5 s: still asking", "no answer within 1 s: asking again"):
        assert f"{url}: {reason}" in messages
