"""Check the files of the checkpoint that a run starts from, and copy them to this node from a store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lt_shared.console import BadData, IoFailure, NoInput, ToolError
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import storage
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint import pickle_allowlist, remote_run
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.checkpointing import Checkpointing

USE_ANOTHER = "use another checkpoint, or copy it again"
READ_AGAIN = "see that every node can read it, and run the same command again"


@contextlib.contextmanager
def remedies() -> Iterator[None]:
    """Within the context, add a remedy to errors about a checkpoint, and the file name to errors of the operating system."""
    try:
        yield
    except ToolError as error:
        error.hint = error.hint or (USE_ANOTHER if isinstance(error, BadData | NoInput) else READ_AGAIN)
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise IoFailure(f"{error.filename}: {str(error.strerror).lower()}", READ_AGAIN) from error


def fetch_start(config: RunConfig, ranks_decide: bool = True) -> RunConfig:
    """Return `config` with a local copy in place of a remote checkpoint.

    With --save-local, the ranks choose the checkpoint later. They call this function with `ranks_decide` false if it is in the
    store.
    """
    settings = config.checkpointing
    if settings.start is None or not storage.is_remote(settings.start) or (ranks_decide and settings.save_local):
        return config
    copy = remote_run.fetch(settings.start, settings.directory)
    try:
        check_files(copy, settings.verify)
    except ToolError as error:
        raise type(error)(str(error).replace(str(copy), settings.start), error.hint) from None
    return config.starting_at(str(copy), settings.continues)


def forget(settings: Checkpointing) -> None:
    """Delete the copy that `fetch_start` made, after loading. No other run uses the copy if the run saves."""
    if settings.start is not None and settings.directory is not None:
        remote_run.forget(Path(settings.start))


@remedies()
def check_files(directory: Path, verify: bool) -> None:
    """Raise BadData if a pickle names an unknown class, or if a small file differs from its checksum."""
    recorded = FileChecksums.read(directory) if verify else None
    for name in recorded.ranges if recorded else ():
        # Each rank checks the objects of the shards that it reads.
        if recorded and not name.endswith(".distcp"):
            recorded.check_file(directory, name)
    configuration = directory / checkpoint_layout.CONFIGURATION
    if configuration.is_file():
        checkpoint_layout.check_configuration(storage.read_bytes(configuration), str(configuration))
    pickle_allowlist.check(directory)
