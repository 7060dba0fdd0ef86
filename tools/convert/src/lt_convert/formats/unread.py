"""Checkpoints in formats that lt-convert does not read: name the format, and say how to make a readable checkpoint."""

import re
from collections.abc import Sequence

from lt_shared.console import BadData

_FROM_TORCH = "write safetensors with transformers: AutoModelForCausalLM.from_pretrained(DIR, dtype='auto').save_pretrained(NEW)"
_VARIANT = r"model\.[A-Za-z0-9_]+\.safetensors|model\.safetensors\.index\.[A-Za-z0-9_]+\.json"
_KINDS: Sequence[tuple[str, str, str]] = (
    (r"adapter_config\.json|adapter_model\.(safetensors|bin)", "a LoRA adapter without its model",
     "merge it with PEFT: AutoPeftModelForCausalLM.from_pretrained(DIR).merge_and_unload().save_pretrained(NEW)"),
    (r"pytorch_model.*\.bin(\.index.*\.json)?", "PyTorch weights (pickles), which are not read", _FROM_TORCH),
    (r"consolidated\.\d+\.pth", "Meta's original Llama weights, which are not read",
     "use the repository's safetensors, or convert it with transformers' convert_llama_weights_to_hf.py"),
    (r"consolidated(-\d+-of-\d+)?\.safetensors(\.index\.json)?", "Mistral's original weights, which are not read",
     "use the model-*.safetensors and config.json of the same repository, or transformers' convert_mistral_weights_to_hf.py"),
    (r".*\.gguf", "a GGUF file of llama.cpp, which is not read",
     "AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(NEW) dequantizes it; better use the original"),
    (r".*\.onnx(_data)?", "an ONNX graph, which is not read", "use the model that it was exported from"),
    (r"flax_model.*\.msgpack(\.index\.json)?", "Flax weights, which are not read",
     "AutoModelForCausalLM.from_pretrained(DIR, from_flax=True).save_pretrained(NEW), with transformers 4"),
    (r"tf_model.*\.h5(\.index\.json)?|model\.ckpt.*", "TensorFlow weights, which are not read",
     "AutoModelForCausalLM.from_pretrained(DIR, from_tf=True).save_pretrained(NEW), with transformers 4"),
    (r".*\.nemo|model_weights\.ckpt|model_config\.yaml", "a checkpoint of NeMo 1, which is not read",
     "convert it first: convert_nemo1_to_nemo2.py of NeMo"),
    (r".*\.(npz|mlx)|weights(\.\d+)?\.safetensors", "MLX weights, which are not read", "use the original model"),
    (r".*\.ckpt", "a checkpoint of PyTorch Lightning, which is not read",
     "load it in the program that wrote it, and save_pretrained the model"),
    (r".*\.(pt|pth|bin|tar)", "PyTorch files (pickles), which are not read", _FROM_TORCH),
    (r".*\.engine", "an engine of TensorRT, which is not read", "use the model that it was built from"),
    (r".*_CHECKPOINT_METADATA|ocdbt\..*|_METADATA", "a checkpoint of Orbax (JAX), which is not read",
     "export it to Hugging Face with the program that wrote it"),
)  # fmt: skip


def name(path: str, names: Sequence[str]) -> BadData | None:
    """An error that names the first kind of known, unread files among `names` in the directory `path`; None for none."""
    variants = sorted(file_name for file_name in names if re.fullmatch(_VARIANT, file_name))
    if len(variants) > 1:
        return BadData(f"{path}: several variants of the model: {', '.join(variants)}", "keep the files of one of them")
    for pattern, kind, remedy in _KINDS:
        examples = sorted(file_name for file_name in names if re.fullmatch(pattern, file_name))
        if examples:
            return BadData(f"{path}/{examples[0]}: {kind}", remedy)
    return None
