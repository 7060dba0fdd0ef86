"""A run keeps the files that lay beside the Hugging Face model that it began with."""

import os
from pathlib import Path

import pytest

from lt_train.checkpoint import remote_run
from lt_train.launch import kept_files

FILES = {"README.md": b"a card", "special_token_ids.json": b"{}", "additional_chat_templates/tool.jinja": b"{{ 1 }}"}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "start/huggingface" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "run").mkdir()
    return tmp_path / "start"


def kept(run: Path) -> dict[str, bytes]:
    directory = run / "huggingface"
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("load", ["start", "start/", "start/release", "start/iter_0000010"])
def test_of_a_run_and_of_its_checkpoint(start: Path, load: str, tmp_path: Path) -> None:
    kept_files.keep_model_files(f"{tmp_path}/{load}", tmp_path / "run")
    assert kept(tmp_path / "run") == FILES
    (start / "huggingface/README.md").write_bytes(b"another card")
    kept_files.keep_model_files(str(start), tmp_path / "run")
    assert kept(tmp_path / "run") == FILES


def test_by_a_relative_name(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(start)
    kept_files.keep_model_files("release", tmp_path / "run")
    assert kept(tmp_path / "run") == FILES


@pytest.mark.parametrize("load", [None, "other", "start/huggingface"])
def test_nothing_to_keep(start: Path, load: str | None, tmp_path: Path) -> None:
    kept_files.keep_model_files(load and f"{tmp_path}/{load}", tmp_path / "run")
    assert not os.listdir(tmp_path / "run")


def test_on_a_remote_store(start: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.put(str(start), "/kept-start", recursive=True)
    kept_files.keep_model_files("memory://kept-start/release", tmp_path / "run")
    assert kept(tmp_path / "run") == FILES
    remote_run.send_kept_files(tmp_path / "run", "memory://kept-run")
    assert store.cat("/kept-run/huggingface/README.md") == FILES["README.md"]
