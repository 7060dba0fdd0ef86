"""The files of the checkpoint that a run starts from: looked at, and copied to this node when they are in a store."""

from pathlib import Path

from lt_shared import checkpoint_layout, storage
from lt_shared.checksums import FileChecksums
from lt_train.checkpoint import pickle_allowlist, remote_run
from lt_train.config.run_config import RunConfig


def fetched(config: RunConfig, ranks_decide: bool = True) -> RunConfig:
    """The configuration with a local copy instead of a remote checkpoint to start from.

    With --save-local the ranks decide where to start, and call it without `ranks_decide` when that is in the store.
    """
    settings = config.checkpointing
    if settings.start is None or not storage.is_remote(settings.start) or (ranks_decide and settings.save_local):
        return config
    copy = remote_run.fetch(settings.start)
    check_files(config, copy)
    return config.starting_at(str(copy), settings.continues)


def check_files(config: RunConfig, directory: Path) -> None:
    """Raises BadData for a checkpoint that names what none needs, or whose small files are not as they were written."""
    recorded = FileChecksums.read(directory) if config.checkpointing.verify else None
    for name in recorded.ranges if recorded else ():
        # Of the shards, each rank checks what it reads.
        if recorded and not name.endswith(".distcp"):
            recorded.check_file(directory, name)
    configuration = directory / checkpoint_layout.CONFIGURATION
    if configuration.is_file():
        checkpoint_layout.check_configuration(storage.read_bytes(configuration), str(configuration))
    pickle_allowlist.check(directory)
