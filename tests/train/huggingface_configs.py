"""Write the configurations of published models into huggingface_configs.json, for recipes that take a model by its name.

    python tests/train/huggingface_configs.py

Sizes are those of lt-train's presets, which tests hold to the published ones. What a config.json leaves out is the default of
transformers' class.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig

from lt_shared.models.huggingface import to_config
from lt_shared.models.presets import preset
from lt_train.importers.python import huggingface_configs

TABLE = Path(huggingface_configs.__file__).with_suffix(".json")
MODELS = {
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "llama2-70b": "meta-llama/Llama-2-70b-hf",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama3.1-8b": "meta-llama/Llama-3.1-8B meta-llama/Meta-Llama-3.1-8B",
    "llama3.1-70b": "meta-llama/Llama-3.1-70B meta-llama/Meta-Llama-3.1-70B",
    "llama3.1-405b": "meta-llama/Llama-3.1-405B meta-llama/Meta-Llama-3.1-405B",
    "llama3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-v0.3",
    "qwen2-0.5b": "Qwen/Qwen2-0.5B",
    "qwen2-1.5b": "Qwen/Qwen2-1.5B",
    "qwen2-7b": "Qwen/Qwen2-7B",
    "qwen2-72b": "Qwen/Qwen2-72B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "gemma2-2b": "google/gemma-2-2b",
    "gemma2-9b": "google/gemma-2-9b",
    "gemma2-27b": "google/gemma-2-27b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V3-Base",
}
# Values of the published config.json that no preset has, and that transformers' class has otherwise.
PUBLISHED = {
    "deepseek-v3": {"aux_loss_alpha": 0.001, "seq_aux": True, "topk_method": "noaux_tc"},
    "deepseek-v2-lite": {"aux_loss_alpha": 0.001, "seq_aux": True},
}
# Values that say nothing about a model.
NOT_OF_MODELS = (
    "id2label",
    "label2id",
    "return_dict",
    "problem_type",
    "chunk_size_feed_forward",
    "transformers_version",
    "rope_parameters",
)


def main() -> None:
    rows: dict[str, Any] = {}
    for name, published in MODELS.items():
        written = to_config(preset(name), "bfloat16")
        config = AutoConfig.for_model(
            written["model_type"], **{key: value for key, value in written.items() if key != "model_type"}
        )
        values = config.to_dict() | written | PUBLISHED.get(name, {})
        rope = written.get("rope_parameters") or {}
        values.setdefault("rope_theta", rope.get("rope_theta"))
        if rope.get("rope_type", "default") != "default":
            values["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
        kept = {key: value for key, value in values.items() if key not in NOT_OF_MODELS and not key.startswith("_")}
        kept["lt_preset"] = name
        rows.update({identifier: dict(sorted(kept.items())) for identifier in published.split()})
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    TABLE.write_text(f'{{"source": "transformers {transformers.__version__}",\n "models": {{\n{lines}\n}}}}\n')
    print(f"{TABLE}: {len(rows)} models")


if __name__ == "__main__":
    main()
