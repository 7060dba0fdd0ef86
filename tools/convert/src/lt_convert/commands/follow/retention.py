"""Delete old conversions: the files that the conversion wrote, and nothing else.

Files that the command has put beside them, such as the scores of an evaluation, stay.
"""

import contextlib
import os
from pathlib import Path

from lt_convert.engine.receipt import ConversionRecord
from lt_convert.tensors.checksums import Checksums


def delete(directory: Path) -> None:
    """Delete a converted checkpoint, first the files that make it one for other tools, last its record.

    So a kill leaves nothing that is taken for a checkpoint, and the next call deletes the rest.
    """
    record = ConversionRecord.read(str(directory))
    if record is None:
        return
    for name in reversed(list(record.files.sizes)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(directory / name)
        for folder in list(Path(name).parents)[:-1]:
            with contextlib.suppress(OSError):
                os.rmdir(directory / folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(directory / Checksums.RECORD)
    with contextlib.suppress(OSError):
        os.rmdir(directory)
