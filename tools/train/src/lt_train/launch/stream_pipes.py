"""Forward the lines of the launcher's pipes to the ranks while the ranks run."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lt_train.config.settings import streaming
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.streaming import Streaming
from lt_train.process import stream_intake
from lt_train.process.private_directory import private_directory


@contextlib.contextmanager
def forward_pipes(streams: Streaming | None, checkpointing: Checkpointing, is_first: bool) -> Iterator[None]:
    """Write each pipe's list to the run's directory on the first node, or without a run directory to a directory of this node."""
    places = [place for place in streams.lists if place and place.startswith(streaming.PIPE)] if streams else []
    if not places:
        yield
        return
    is_shared = checkpointing.directory is not None and not checkpointing.is_remote
    with private_directory() as directory:
        private = str(directory)
        os.environ[stream_intake.DIRECTORY_VARIABLE] = private
        for place, intake in zip(places, stream_intake.streams(), strict=True):
            broken = streaming.broken_path(place, private)
            assert broken is not None
            if is_first or not is_shared:
                intake.hand_on(Path(streaming.list_path(place, checkpointing.directory, private)), broken)
            else:
                intake.discard()
        yield
