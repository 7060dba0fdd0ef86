"""Read ranges from one version of a remote object, so that two versions are never mixed."""

import os
from typing import Any

from lt_shared.console import BadData, NoInput, Unavailable
from lt_shared.files import storage

# Of one process to an S3 store. botocore has 10 by default, and lets further requests wait.
CONNECTIONS = 32
PRECONDITION_FAILED = 412
# One attempt is 25 requests of s3fs and botocore; without these limits, every request waits for a minute.
SLOW_SECONDS, ANSWER_SECONDS = 10, 60


def read_range(path: str | os.PathLike[str], begin: int, end: int, version: str) -> bytes:
    """Read a range of the object whose `storage.fingerprint` had `version`. Raises BadData if the object was replaced.

    S3 is asked for this version only. With another store, a second request compares the version after the bytes were read.
    Unlike `read_range` it uses up to CONNECTIONS connections, and raises Unavailable when the store denies access.
    """
    name = os.fspath(path)
    filesystem, key = storage.store_of(name, CONNECTIONS)
    read = _read_if_match if hasattr(filesystem, "call_s3") else _read_and_compare
    try:
        return storage.retry(lambda: read(filesystem, name, key, (begin, end), version), name)
    except FileNotFoundError:
        raise NoInput(f"{name}: no such file") from None
    except PermissionError as error:
        raise Unavailable(f"{name}: {error}", "see the credentials in the environment, and what they may read") from None


def below(url: str) -> dict[str, tuple[int, str]]:
    """The objects whose names begin with a remote directory's: names relative to it, sizes in bytes, and what
    `storage.fingerprint` calls their version."""
    filesystem, key = storage.store_of(url.rstrip("/"), CONNECTIONS)
    filesystem.invalidate_cache(key)
    details_by_key = storage.retry(lambda: filesystem.find(key, detail=True), url)
    return {
        path.removeprefix(key).lstrip("/"): (int(info["size"]), str(info.get("ETag") or filesystem.ukey(path)))
        for path, info in details_by_key.items()
    }


def _read_if_match(filesystem: Any, name: str, key: str, place: tuple[int, int], version: str) -> bytes:
    # Loaded with the first such request: asyncio takes a tenth of the start of a command.
    import asyncio

    from fsspec.asyn import sync

    bucket, path, _ = filesystem.split_path(key)
    wanted = {"Bucket": bucket, "Key": path, "Range": f"bytes={place[0]}-{place[1] - 1}", "IfMatch": version}

    async def read() -> bytes:
        request = asyncio.ensure_future(filesystem._call_s3("get_object", **wanted))
        if not (await asyncio.wait({request}, timeout=SLOW_SECONDS))[0]:
            storage.warn_seldom(f"{name}: no answer for {SLOW_SECONDS} s: still asking")
        try:
            answer = await asyncio.wait_for(request, ANSWER_SECONDS - SLOW_SECONDS)
        except TimeoutError:
            # Of a TimeoutError fsspec makes its own, without the reason.
            raise OSError(f"no answer within {ANSWER_SECONDS} s") from None
        # Some stores that speak S3 do not know the condition.
        if answer.get("ETag", version) != version:
            answer["Body"].close()
            raise _changed(name)
        try:
            return bytes(await answer["Body"].read())
        finally:
            answer["Body"].close()

    try:
        return bytes(sync(filesystem.loop, read))
    except OSError as error:
        # That of a request without an answer is None.
        answer = getattr(error.__cause__, "response", None) or {}
        if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == PRECONDITION_FAILED:
            raise _changed(name) from None
        raise


def _read_and_compare(filesystem: Any, name: str, key: str, place: tuple[int, int], version: str) -> bytes:
    content = bytes(filesystem.cat_file(key, start=place[0], end=place[1]))
    if storage.fingerprint(name, refresh=True)["version"] != version:
        raise _changed(name)
    return content


def _changed(name: str) -> BadData:
    return BadData(f"{name}: was replaced while it was read", "put the old object back; write new data under a new name")
