"""The named architectures: published shapes, and a tiny shape per family for trials. A module holds a group of families.

lt-train's `--model` takes a name; tests compare parameter counts with the published counts.
"""

from lt_shared.console import UsageError
from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.adjacent_pairs import ADJACENT_PAIRS
from lt_shared.models.presets.arcee import ARCEE
from lt_shared.models.presets.deepseek import DEEPSEEK
from lt_shared.models.presets.dense import DENSE
from lt_shared.models.presets.dots1 import DOTS1
from lt_shared.models.presets.gemma import GEMMA
from lt_shared.models.presets.glm4_moe import GLM4_MOE
from lt_shared.models.presets.gpt_oss import GPT_OSS
from lt_shared.models.presets.granite import GRANITE
from lt_shared.models.presets.minimax_m2 import MINIMAX_M2
from lt_shared.models.presets.olmo import OLMO
from lt_shared.models.presets.phi3 import PHI3
from lt_shared.models.presets.qwen3_moe import QWEN3_MOE
from lt_shared.models.presets.qwen3_next import QWEN3_NEXT
from lt_shared.models.presets.seed_oss import SEED_OSS
from lt_shared.models.presets.unrotated import UNROTATED

_ALL = (
    *DENSE,
    *QWEN3_MOE,
    *QWEN3_NEXT,
    *PHI3,
    *GRANITE,
    *OLMO,
    *GEMMA,
    *GPT_OSS,
    *DEEPSEEK,
    *GLM4_MOE,
    *DOTS1,
    *MINIMAX_M2,
    *SEED_OSS,
    *UNROTATED,
    *ARCEE,
    *ADJACENT_PAIRS,
)
PRESETS = {architecture.name: architecture for architecture in _ALL}


def preset(name: str) -> Architecture:
    """The preset `name`. Raises UsageError naming the nearest ones, or all, when there is none."""
    if name not in PRESETS:
        # Most commands look up no name that is not there.
        from difflib import get_close_matches

        nearest = get_close_matches(name.lower(), PRESETS, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"presets: {', '.join(PRESETS)}"
        raise UsageError(f"no model preset {name!r}", hint)
    return PRESETS[name]
