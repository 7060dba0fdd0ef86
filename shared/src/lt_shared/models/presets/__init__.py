"""The named architectures: published shapes, and a tiny shape per family for trials. A module holds a group of families.

lt-train's `--model` takes a name; tests compare parameter counts with the published counts.
"""

import re

from lt_shared.console import UsageError
from lt_shared.models.architecture import Architecture
from lt_shared.models.presets.adjacent_pairs import ADJACENT_PAIRS
from lt_shared.models.presets.apertus import APERTUS
from lt_shared.models.presets.arcee import ARCEE
from lt_shared.models.presets.bamba import BAMBA
from lt_shared.models.presets.cohere import COHERE
from lt_shared.models.presets.deepseek import DEEPSEEK
from lt_shared.models.presets.dense import DENSE
from lt_shared.models.presets.dots1 import DOTS1
from lt_shared.models.presets.falcon_h1 import FALCON_H1
from lt_shared.models.presets.gemma import GEMMA
from lt_shared.models.presets.glm4_moe import GLM4_MOE
from lt_shared.models.presets.gpt_oss import GPT_OSS
from lt_shared.models.presets.granite import GRANITE
from lt_shared.models.presets.hunyuan import HUNYUAN
from lt_shared.models.presets.kimi_linear import KIMI_LINEAR
from lt_shared.models.presets.lfm2 import LFM2
from lt_shared.models.presets.minimax_m2 import MINIMAX_M2
from lt_shared.models.presets.ministral3 import MINISTRAL3
from lt_shared.models.presets.nemotron_h import NEMOTRON_H
from lt_shared.models.presets.olmo import OLMO
from lt_shared.models.presets.phi3 import PHI3
from lt_shared.models.presets.qwen3_moe import QWEN3_MOE
from lt_shared.models.presets.qwen3_next import QWEN3_5, QWEN3_NEXT
from lt_shared.models.presets.seed_oss import SEED_OSS
from lt_shared.models.presets.unrotated import UNROTATED

_ALL = (
    *DENSE,
    *QWEN3_MOE,
    *QWEN3_NEXT,
    *QWEN3_5,
    *PHI3,
    *GRANITE,
    *OLMO,
    *GEMMA,
    *GPT_OSS,
    *DEEPSEEK,
    *KIMI_LINEAR,
    *GLM4_MOE,
    *DOTS1,
    *MINIMAX_M2,
    *SEED_OSS,
    *MINISTRAL3,
    *HUNYUAN,
    *COHERE,
    *UNROTATED,
    *ARCEE,
    *APERTUS,
    *ADJACENT_PAIRS,
    *LFM2,
    *NEMOTRON_H,
    *BAMBA,
    *FALCON_H1,
)
PRESETS = {architecture.name: architecture for architecture in _ALL}


def preset(name: str) -> Architecture:
    """The preset `name`. Raises UsageError naming the nearest ones, or all, when there is none."""
    if name not in PRESETS:
        raise UsageError(f"no model preset {name!r}", _hint(name))
    return PRESETS[name]


def _hint(name: str) -> str:
    """The preset for the name of a repository on the Hugging Face Hub, else presets with names like `name`."""
    model = name.rpartition("/")[2].lower()
    published = next((preset for preset in PRESETS if _comparable(preset) == _comparable(model)), None)
    if published is not None and "/" in name:
        return f"--model {published}; its tokenizer: hf download {name} --include '*token*' 'vocab*' 'merges*'"
    # Most commands look up no name that is not there.
    from difflib import get_close_matches

    nearest = [published] if published is not None else get_close_matches(model, PRESETS, n=3, cutoff=0.7)
    if nearest:
        return f"did you mean {' or '.join(nearest)}?"
    begin = re.match(r"[a-z]+", model)
    alike = [preset for preset in PRESETS if begin and preset.startswith(begin[0])]
    return f"presets of a like name: {', '.join(alike)}" if alike else "lt-train models lists the presets"


def _comparable(name: str) -> str:
    """The letters and digits of a model's name without variants (base, instruct), dates and the maker's name."""
    name = re.sub(r"^meta-(?=llama)", "", name)
    return re.sub(r"-(hf|base|instruct|it|pt|chat)\b|-\d{4}(?=-|$)|[^a-z0-9]", "", name)
