"""What the kernel is asked to make durable, and in which order."""

import os
from collections.abc import Callable
from typing import Any

import pytest

Calls = list[tuple[str, str, int]]


@pytest.fixture
def durable_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every fsync and rename of this process, in order: the call, the path (a rename's new one) and its size in bytes."""
    calls: Calls = []

    def recording(name: str, true: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = path_of(*arguments)
            result = true(*arguments, **options)
            calls.append((name, path, os.stat(path).st_size))
            return result

        return call

    monkeypatch.setattr(os, "fsync", recording("fsync", os.fsync, lambda file: os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr(os, "rename", recording("rename", os.rename, lambda old, new: os.fspath(new)))
    return calls
