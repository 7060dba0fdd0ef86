"""Do two checkpoints compute the same? Their fp32 logits are compared at every position of a long sequence.

A wrong RoPE scaling shows only at long positions: with a factor of 8 instead of 32, the logits of 64 tokens of Llama 3.2 differ
by 5e-5 and every argmax agrees. So the sequence is as long as the model allows, up to `POSITIONS`. transformers computes both;
a checkpoint in another format is converted to a temporary directory first.
"""

import tempfile
from pathlib import Path
from typing import Any

from lt_convert.commands.conversion import Request, convert
from lt_convert.formats import HUGGINGFACE, location
from lt_convert.tensors.source_files import Files
from lt_shared.console import Unavailable

POSITIONS = 8192
# Share of the largest absolute logit: fp32 sums in another order round differently.
TOLERANCE = 1e-4


def compare(one: str, other: str) -> dict[str, Any]:
    """Compare two checkpoints' fp32 logits.

    `largest` in the result is the largest absolute difference, `scale` the largest absolute logit. Raises Unavailable when
    torch or transformers is missing.
    """
    try:
        import torch
        import transformers
    except ImportError:
        raise Unavailable("--logits needs torch and transformers", "pip install 'lt-convert[logits]'") from None

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        first, second = (_load(argument, Path(directory) / str(number)) for number, argument in enumerate((one, other)))
        positions = min(POSITIONS, first.config.max_position_embeddings, second.config.max_position_embeddings)
        vocabulary = min(first.config.vocab_size, second.config.vocab_size)
        tokens = torch.randint(vocabulary, (1, positions), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            first_logits, second_logits = (model(tokens).logits[..., :vocabulary] for model in (first, second))
    max_difference, scale = float((first_logits - second_logits).abs().max()), float(first_logits.abs().max())
    return {"positions": positions, "largest": max_difference, "scale": scale, "same": max_difference <= TOLERANCE * scale}


def _load(argument: str, converted: Path) -> Any:
    """The model in fp32, converted to Hugging Face's format where it has another."""
    import torch
    from transformers import AutoModelForCausalLM

    with Files() as files:
        source = location.open_source(argument, files)
    directory = source.directory
    if source.format != HUGGINGFACE.name or source.quantization:
        directory = convert(Request(directory, HUGGINGFACE.name, str(converted))).path
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()
