"""Files of formats that lt-convert does not read: an error names the format, and what makes a readable checkpoint.

Users also name the directory above a checkpoint: a cache of the Hub, the runs of a trainer, a folder of exports. `error_below`
names the checkpoints or files there.
"""

import os
import re
from collections.abc import Iterator, Sequence

from lt_convert import formats
from lt_convert.formats.huggingface import stored_weights
from lt_convert.tensors.source_files import INCOMPLETE
from lt_shared.console import BadData, NoInput
from lt_shared.files import storage

# Formats that are not read: a pattern of their file names, their description, and how to make a readable checkpoint.
_FROM_TORCH = "write safetensors with transformers: AutoModelForCausalLM.from_pretrained(DIR, dtype='auto').save_pretrained(NEW)"
UNREAD_FORMATS: Sequence[tuple[str, str, str]] = (
    (r"adapter_config\.json|adapter_model\.(safetensors|bin)", "a LoRA adapter without its model",
     "merge it into its base: lt-convert merge BASE --adapter DIR --to hf -o NEW"),
    (r"consolidated(\.\d+\.pth|(-\d+-of-\d+)?\.safetensors(\.index\.json)?)", "weights of Meta or Mistral without params.json",
     "put the params.json of the same repository beside it"),
    (r".*\.gguf", "a GGUF file of llama.cpp, which is not read",
     "AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(NEW) dequantizes it; better use the original"),
    (r".*\.onnx(_data)?", "an ONNX graph, which is not read", "use the model that it was exported from"),
    (r"flax_model.*\.msgpack(\.index\.json)?", "Flax weights, which are not read",
     "AutoModelForCausalLM.from_pretrained(DIR, from_flax=True).save_pretrained(NEW), with transformers 4"),
    (r"tf_model.*\.h5(\.index\.json)?|model\.ckpt.*", "TensorFlow weights, which are not read",
     "AutoModelForCausalLM.from_pretrained(DIR, from_tf=True).save_pretrained(NEW), with transformers 4"),
    (r"pytorch_model_fsdp_\d+", "weights in shards of Accelerate's FSDP (SHARDED_STATE_DICT), which are not read",
     "join them: accelerate merge-weights DIR/pytorch_model_fsdp_0 NEW, and put the model's config.json into NEW"),
    (r"lit_model\.pth", "a checkpoint of LitGPT, which is not read", "litgpt convert_from_litgpt DIR NEW"),
    (r"checkpoint_metadata\.json", "a checkpoint of nanotron, which is not read",
     "convert it first: examples/llama/convert_nanotron_to_hf.py of nanotron"),
    (r".*\.nemo|model_weights\.ckpt|model_config\.yaml", "a checkpoint of NeMo 1, which is not read",
     "convert it first: convert_nemo1_to_nemo2.py of NeMo"),
    (r".*\.(npz|mlx)|weights(\.\d+)?\.safetensors", "MLX weights, which are not read", "use the original model"),
    (r"meta_\d+\.json|optim_\d+(_rank\d+)?\.pt", "a checkpoint of nanochat, which is not read",
     "export it to Hugging Face with scripts of nanochat"),
    (r"(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt", "weights in shards of verl's FSDP, which are not read",
     "join them: python -m verl.model_merger merge --backend fsdp --local_dir DIR --target_dir NEW"),
    (r"(model|optimizer|train_state)_\d+\.pt", "files of torch_checkpointing without metadata.pkl", INCOMPLETE),
    (r".*\.(mlmodel|mlpackage|tflite|keras|rkllm)|openvino_model\.(xml|bin)", "a model for devices, which is not read",
     "use the model that it was exported from"),
    (r"(shared_|source_)?vocabulary\.(json|txt)", "a model of CTranslate2, which is not read",
     "use the model that it was made from"),
    (r"mlc-chat-config\.json|ndarray-cache\.json|tensor-cache\.json", "a model of MLC, which is not read",
     "use the model that it was made from"),
    (r".*\.llamafile", "a llamafile, with GGUF inside, which is not read", "use the original model"),
    (r"rank\d+\.safetensors", "a checkpoint of TensorRT-LLM, which is not read", "use the model that it was made from"),
    (r"model_index\.json", "a pipeline of diffusers, which is no language model", "name the directory of a language model"),
    (r".*\.incomplete", "an unfinished download", "start the download again: hf download resumes it"),
    (r".*\.ckpt", "a checkpoint of PyTorch Lightning, which is not read",
     "load it in the program that wrote it, and save_pretrained the model"),
    (r".*\.(pt|pth|bin|tar)", "PyTorch files (pickles), which are not read", _FROM_TORCH),
    (r".*\.ot", "weights of rust-bert, which are not read", "use the original model"),
    (r".*\.pdparams", "weights of PaddlePaddle, which are not read", "export them to PyTorch with PaddleNLP"),
    (r".*(GPTQ|AWQ|gptq|awq).*\.safetensors", "weights quantized by GPTQ or AWQ, which are not read",
     "use the model that was quantized"),
    (r".*\.safetensors", "safetensors under a name that transformers does not load",
     "if they are the whole model, name the file model.safetensors, with its config.json beside it"),
    (r".*\.engine", "an engine of TensorRT, which is not read", "use the model that it was built from"),
    (r".*_CHECKPOINT_METADATA|ocdbt\..*|_METADATA", "a checkpoint of Orbax (JAX), which is not read",
     "export it to Hugging Face with the program that wrote it"),
)  # fmt: skip
_CONFIG = "config.json"
# How deep and how far `error_below` looks. A cache of the Hub has the files two directories below.
MAXIMUM_DEPTH, MAXIMUM_DIRECTORIES, SHOWN = 3, 200, 5


def error(path: str, names: Sequence[str]) -> BadData | None:
    """Return an error that names the first kind of known, unread files among `names` in the directory `path`, or None."""
    variants = stored_weights.variants(names)
    if len(variants) > 1:
        return BadData(f"{path}: several variants of the model: {', '.join(variants)}", "keep the files of one of them")
    weights = stored_weights.weight_files(names)
    if weights:
        return BadData(f"{path}/config.json: missing beside {weights[0]}", "put the config.json of the model there")
    for pattern, kind, remedy in UNREAD_FORMATS:
        examples = sorted(file_name for file_name in names if re.fullmatch(pattern, file_name))
        if examples:
            return BadData(f"{path}/{examples[0]}: {kind}", remedy)
    return None


def error_below(path: str) -> NoInput | BadData | None:
    """Return an error that names the checkpoints below a local directory, or the unread format of the files there."""
    if storage.is_remote(path):
        return None
    checkpoints, unread = [], None
    for directory, names in _directories_below(path):
        if formats.recognise(names):
            checkpoints.append(directory)
        else:
            unread = unread or error(directory, names)
    if checkpoints:
        ordered = sorted(checkpoints, key=_by_numbers)
        shown = ", ".join(os.path.relpath(one, path) for one in ordered[-SHOWN:])
        more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
        return NoInput(f"{path}: no checkpoint itself, but below it are {shown}{more}", f"name one of them: {ordered[-1]}")
    if unread is None and _CONFIG in os.listdir(path):
        return NoInput(f"{path}: {_CONFIG} without weights", "download the whole model: hf download REPOSITORY --local-dir DIR")
    return unread


def _directories_below(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield directories below `path` with the names in them, breadth first, without following links."""
    level = [path]
    remaining = MAXIMUM_DIRECTORIES
    for _ in range(MAXIMUM_DEPTH):
        below = []
        for directory in level:
            try:
                with os.scandir(directory) as entries:
                    below += sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            except OSError:
                continue
        level = below[:remaining]
        remaining -= len(level)
        for directory in level:
            try:
                yield directory, sorted(os.listdir(directory))
            except OSError:
                continue


def _by_numbers(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts checkpoint-10 behind checkpoint-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
