"""Attention by flash-attn-4 on one rank and on ranks that share the samples is attention by one mask."""

import json
import subprocess
from pathlib import Path

import nursery
import shared_sequences
from running import environment


def test_equals_attention_by_a_mask(tmp_path: Path) -> None:
    """Windows, documents, sinks and values of another size, each with the others, on one, two and four ranks: outputs and all
    gradients."""
    command = [nursery.python(), shared_sequences.__file__, str(tmp_path / "store")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3 * len(shared_sequences.WINDOWS) * 4 * len(shared_sequences.VALUE_SIZES)
    # The normalizers are float32.
    assert not {case: difference for case, difference in found.items() if difference > 1e-6}
