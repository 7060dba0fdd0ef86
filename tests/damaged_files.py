"""Convert a checkpoint whose files are damaged one after the other, at random places that are the same in each run."""

import random
from collections.abc import Sequence
from pathlib import Path

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData, NoInput

# Headers and pickles are there, and most of a file is values, whose damage no reader can see.
BEGIN_BYTES = 3000


def outcomes_of_damage(checkpoint: Path, files: Sequence[Path], out: Path, trials: int, changed_share: float) -> set[str]:
    """Damage each file `trials` times: in `changed_share` of the trials a byte is changed, else the rest of the file is cut off.

    Return the outcomes, of `harmless` and `refused`; any other exception is the caller's.
    """
    chance = random.Random(1)
    outcomes = set()
    for path in files:
        original = path.read_bytes()
        for _ in range(trials):
            damaged = bytearray(original)
            position = chance.choice([chance.randrange(len(original)), chance.randrange(min(BEGIN_BYTES, len(original)))])
            if chance.random() < changed_share:
                damaged[position] = chance.randrange(256)
            else:
                del damaged[position:]
            path.write_bytes(damaged)
            try:
                conversion.convert(Request(str(checkpoint), "hf", str(out), force=True))
                outcomes.add("harmless")
            except (BadData, NoInput):
                outcomes.add("refused")
        path.write_bytes(original)
    return outcomes
