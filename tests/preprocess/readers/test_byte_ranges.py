"""Files of JSON lines that are read at offsets."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.readers.byte_ranges import LocalFile


def test_a_file_whose_close_fails_is_read_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS and quotas report errors at close, here of a descriptor that is closed already."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n')
    mistakes: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", mistakes.append)
    file = LocalFile(str(tmp_path / "a.jsonl"))
    assert file.read(2, 4) == b"text"
    os.close(file._descriptor)
    del file
    assert not mistakes
