"""Save a run to a URL, such as s3://bucket/run1, and resume it from there.

Shards are uploaded while they are written. A store has neither rename nor append. A checkpoint in a store is complete if it has
`run.json`, which is uploaded last, and if every file has the size that `run.json` names. Other files are ignored. The small files
beside the shards are written into a spool, a directory of the node in the system's temporary directory (TMPDIR), and uploaded. To
resume, they are copied to the spool, and each rank reads the ranges of the shards that it needs (shards/stored_shards.py). No
lock keeps a second lt-train on another node from the same URL.
"""

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from lt_shared.console import BadData, CannotCreate, NoInput, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RECORD, TRACKER, RunRecord
from lt_shared.data.sample_order import run_order, sample_losses
from lt_shared.files import object_versions, ownership, storage
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint.shards import stored_shards
from lt_train.checkpoint.shards.stored_shards import StoredShard, StoredShards
from lt_train.config.settings.checkpointing import spool
from lt_train.data.index_cache import make_once
from lt_train.data.remote_datasets import copy_file

LOG_FILES = ("train.log", "metrics.jsonl", run_order.FILE, sample_losses.FILE)


def read_record(url: str) -> RunRecord:
    """Read the record of the checkpoint at `url`. Raises NoInput if there is no record, BadData if it is malformed."""
    return RunRecord.parse(storage.read_bytes(f"{url}/{RECORD}"), f"{url}/{RECORD}")


def newest(run: str, below: int | None = None) -> str | None:
    """Return the URL of the newest complete checkpoint. With `below`, consider only checkpoints of earlier iterations.

    Returns None if the run has no checkpoint or only the remains of an interrupted upload. Warns of every incomplete checkpoint
    that is skipped. Raises BadData if the run has had a complete checkpoint and has none any more.
    """
    sizes = storage.sizes_below(run)
    names = {iteration: name for iteration, name in _iterations(sizes).items() if below is None or iteration < below}
    for iteration in sorted(names, reverse=True):
        problem = _damage(run, names[iteration], sizes)
        if problem is None:
            return f"{run.rstrip('/')}/{names[iteration]}"
        warn(f"passing over an incomplete checkpoint: {problem}")
    if below is None and (TRACKER in sizes or any(f"{name}/{RECORD}" in sizes for name in names.values())):
        raise BadData(f"{run}: none of its checkpoints is complete", "move them away to start again from the beginning")
    return None


def find_checkpoint(url: str) -> str:
    """Return `url` if it is a checkpoint, its `release`, or the run's newest complete checkpoint. Raise NoInput, BadData."""
    url = url.rstrip("/")
    sizes = storage.sizes_below(url)
    if RECORD in sizes:
        run, name = url.rsplit("/", 1)
        problem = _damage(run, name, {f"{name}/{file}": size for file, size in sizes.items()})
        if problem:
            raise BadData(problem, "the checkpoint is incomplete: use another one or copy it again")
        return url
    if f"{checkpoint_layout.RELEASE}/{RECORD}" in sizes and not _iterations(sizes):
        return find_checkpoint(f"{url}/{checkpoint_layout.RELEASE}")
    checkpoint = newest(url)
    if checkpoint is None:
        raise NoInput(f"{url}: neither a checkpoint nor a run: it has no {RECORD}")
    return checkpoint


def _iterations(sizes: dict[str, int]) -> dict[int, str]:
    """Find the iteration directories among the names of a run's files."""
    names = {name.split("/", 1)[0] for name in sizes if "/" in name}
    return {iteration: name for name in names if (iteration := checkpoint_layout.iteration_of(Path(name))) is not None}


def _damage(run: str, name: str, sizes: dict[str, int]) -> str | None:
    directory = f"{run.rstrip('/')}/{name}"
    if f"{name}/{RECORD}" not in sizes:
        return f"{directory}/{RECORD}: missing"
    try:
        files = read_record(directory).files
    except BadData as error:
        return str(error)
    for file, size in files.items():
        stored_size = sizes.get(f"{name}/{file}")
        if stored_size != size:
            return f"{directory}/{file}: {'missing' if stored_size is None else f'{stored_size} bytes'}, expected {size}"
    return None


def fetch(url: str, run: str | None) -> Path:
    """Copy the small files of the checkpoint at `url` to this node, once for the node's ranks that train `run`.

    The directory has the checkpoint's name, and the same path on all nodes. The shards stay in the store, and `StoredShards` of
    the directory reads them. Replaced objects are copied again.
    """
    objects = object_versions.below(url)
    spool_directory = Path(spool(json.dumps([url, run, sorted(objects.items())])))
    make_spool(spool_directory.parent)
    return make_once(spool_directory, os.path.basename(url), lambda directory: _fetch(url, objects, directory))


def _fetch(url: str, objects: dict[str, tuple[int, str]], directory: Path) -> None:
    sizes = read_record(url).files
    checksums = [FileChecksums.NAME] if _exists(f"{url}/{FileChecksums.NAME}") else []
    for file in dict.fromkeys([*sizes, RECORD, *checksums]):
        if not file.endswith(stored_shards.SUFFIX):
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            copy_file(f"{url}/{file}", directory / file)
    shards = {file: StoredShard(*objects.get(file, (0, ""))) for file in sizes if file.endswith(stored_shards.SUFFIX)}
    for file, size in sizes.items():
        copied_bytes = shards[file].size_bytes if file in shards else (directory / file).stat().st_size
        if copied_bytes != size:
            raise BadData(f"{url}/{file}: {copied_bytes} bytes, expected {size}", f"{url} changed while it was copied")
    StoredShards(url, shards).write(directory)


def _exists(url: str) -> bool:
    """Return whether the object exists. Ask for the object itself, because listings are late in some stores.

    A checksum file that is missing in a listing would silently turn off verification.
    """
    try:
        storage.fingerprint(url, refresh=True)
    except NoInput:
        return False
    return True


def forget(copy: Path) -> None:
    """Delete the directory that `fetch` made, after the checkpoint was loaded. Do nothing for other directories."""
    if copy.parent.parent == Path(spool("")).parent:
        shutil.rmtree(copy.parent, ignore_errors=True)


def make_spool(directory: Path) -> None:
    """Make a directory that no other user can write to. Raise CannotCreate for a link or another user's directory."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = ownership.reason_for_distrust(os.lstat(directory), directory.parent)
    if reason is not None:
        raise CannotCreate(f"{directory}: {reason}", "set TMPDIR to a directory of your own")


def publish(partial: Path, url: str, iteration: int, shards: Collection[str]) -> None:
    """Upload rank 0's files except `shards`, then `run.json`, then the run's tracker."""
    small = [path for path in sorted(partial.iterdir()) if path.name not in shards and path.name != RECORD]
    for path in (*small, partial / RECORD):
        storage.upload(path, f"{url}/{path.name}")
    storage.write_bytes(f"{os.path.dirname(url)}/{TRACKER}", str(iteration).encode())


def delete_expired(run: str, newest_iteration: int, keep_last: int | None, keep_every: int | None) -> None:
    """Delete expired checkpoints, `run.json` first: a checkpoint that is deleted in part counts as incomplete."""
    sizes = storage.sizes_below(run)
    names = _iterations(sizes)
    complete = [iteration for iteration, name in names.items() if _damage(run, name, sizes) is None]
    if newest_iteration not in complete:
        return
    for iteration in checkpoint_layout.expired(complete, keep_last, keep_every):
        files = [name for name in sizes if name.startswith(f"{names[iteration]}/")]
        for name in sorted(files, key=lambda name: not name.endswith(f"/{RECORD}")):
            storage.remove(f"{run.rstrip('/')}/{name}")


def send_log(directory: Path, run: str) -> None:
    """Upload the current log and metrics."""
    for name in LOG_FILES:
        if (directory / name).exists():
            storage.upload(directory / name, f"{run.rstrip('/')}/{name}")


def prepare(directory: Path, run: str) -> None:
    """Fetch the log and metrics of attempts on other nodes, so that this attempt appends to them."""
    make_spool(directory.parent)
    directory.mkdir(exist_ok=True)
    sizes = storage.sizes_below(run)
    for name in LOG_FILES:
        path = directory / name
        # The files only grow, so the longer one is newer.
        if sizes.get(name, 0) > (path.stat().st_size if path.exists() else 0):
            path.unlink(missing_ok=True)
            copy_file(f"{run.rstrip('/')}/{name}", path)


def send_kept_files(directory: Path, run: str) -> None:
    """Upload the files of the tokenizer and of the Hugging Face model that the store lacks."""
    for kept in (checkpoint_layout.TOKENIZER_DIRECTORY, checkpoint_layout.HUGGINGFACE_DIRECTORY):
        stored_files = storage.sizes_below(f"{run.rstrip('/')}/{kept}")
        for path in sorted((directory / kept).rglob("*")):
            name = str(path.relative_to(directory / kept))
            if path.is_file() and name not in stored_files:
                storage.upload(path, f"{run.rstrip('/')}/{kept}/{name}")
