"""LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

The file has a pair of matrices for each adapted module, `lora_A` [rank, in] and `lora_B` [out, rank], under the module's name in
transformers. Modules of `modules_to_save` are whole tensors, which replace the model's.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from lt_convert.containers.torch_files import read_state_dict
from lt_convert.formats.directories import listing, normalized
from lt_convert.formats.huggingface.safetensors_files import read_file
from lt_convert.tensors.adapted import LowRank
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import CASTABLE, Tensor
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT
from lt_shared.console import BadData, warn
from lt_shared.files import strict_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# PEFT wrote this file until 2023, and reads it if there are no safetensors.
FORMER_WEIGHTS = "adapter_model.bin"
PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<letter>[AB])(?:\.weight)?")
# Fields that change the arithmetic, with the values that change nothing.
_VARIANTS: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "lora_bias": (False, None),
    # Biases are whole tensors of the adapter, as modules_to_save.
    "bias": ("none", None, "all", "lora_only"),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (None,),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
}
# Ways to initialise the factors that leave the model's weights as they are. With all others (PiSSA, OLoRA, CorDA, LoftQ ...) PEFT
# changes the weights again whenever it loads the adapter.
_INITIALISED = (True, False, None, "gaussian", "eva", "orthogonal")
# An adapted embedding is saved with the embedding itself, which is under this name in PEFT's model.
BASE_LAYER = ".base_layer."
# A pattern of PEFT is a regular expression. Repeated groups and many repetitions can take hours to match; no module needs them.
_REPEATED_GROUP, _REPETITION, _MAXIMUM_REPETITIONS = re.compile(r"\)[*+?{]"), re.compile(r"[*+{]"), 3
# Expressions are tried on every module. A tool that writes a key for each module names the modules.
_MAXIMUM_EXPRESSIONS, _MAXIMUM_SHAPES, _LONGEST_MODULE = 64, 256, 256
_NAME = re.compile(r"[\w.-]+")


@dataclasses.dataclass(frozen=True)
class Adapter:
    """`updates` and `replaced` have the names of a model's tensors. `base` is the model that the adapter's file names, if any.

    `trained` are the names in `replaced` of modules that were trained whole. The others are the model's own, copied beside their
    factors.
    """

    directory: str
    updates: Mapping[str, LowRank]
    replaced: Mapping[str, Tensor]
    base: str
    trained: frozenset[str] = frozenset()

    def check(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        """Raises BadData unless every tensor of the adapter fits one of the model's `tensors`.

        Warns of an adapted embedding that is the output layer, too: PEFT adapts the embedding alone until it merges.
        """
        if any(update.is_embedding for update in self.updates.values()) and OUTPUT_WEIGHT not in tensors:
            warn(f"{self.directory}: adapts the embedding, which is the output layer of {origin}, too: as in PEFT, both change")
        named = f"its file names {self.base}" if self.base else "its file names no base"
        for name in (*self.updates, *self.replaced):
            if name == OUTPUT_WEIGHT and name not in tensors:
                raise BadData(
                    f"{self.directory}: adapts the output layer, which is the embedding of {origin}, too",
                    "save the base with an output layer of its own (tie_word_embeddings false), and merge into that one",
                )
            if name not in tensors:
                raise BadData(
                    f"{self.directory}: adapts {name}, which {origin} does not have", f"merge it into its base: {named}"
                )
            shape, update = tensors[name].shape, self.updates.get(name)
            adapted = (update.outer.shape[0], update.inner.shape[1]) if update else self.replaced[name].shape
            if shape != adapted:
                raise BadData(
                    f"{self.directory}: {name} is {list(adapted)}, in {origin} {list(shape)}", f"merge it into its base: {named}"
                )


def read(path: str, files: Files, has_conv1d: bool) -> Adapter:
    """Open an adapter; no value is read. `has_conv1d` says that the model's layers are GPT-2's, with weights [in, out].

    Raises BadData for a damaged adapter and for variants of LoRA that are not merged.
    """
    directory = normalized(path)
    names = listing(directory)
    if CONFIG not in names:
        raise BadData(f"{directory}: no {CONFIG}: not an adapter of PEFT", "name the directory that PEFT's save_pretrained wrote")
    weights = next((f"{directory}/{name}" for name in (WEIGHTS, FORMER_WEIGHTS) if name in names), None)
    if weights is None:
        raise BadData(f"{directory}/{WEIGHTS}: missing", "copy the adapter again, or save it with PEFT again")
    config_path = f"{directory}/{CONFIG}"
    try:
        config = dict(strict_json.loads(files.read(config_path, 0, files.size_bytes(config_path))))
        rank, alpha = config["r"], config["lora_alpha"]
        alphas = dict(config.get("alpha_pattern") or {})
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in (rank, alpha, *alphas.values())):
            raise ValueError("r or lora_alpha is no number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{config_path}: not the configuration of a LoRA adapter: {error}") from None
    if config.get("peft_type") != "LORA":
        raise BadData(f"{config_path}: peft_type is {config.get('peft_type')!r}", "only LORA is merged here: merge it with PEFT")
    for field, neutral in _VARIANTS.items():
        if config.get(field) not in neutral:
            raise BadData(f"{config_path}: {field} is {config[field]!r}", "only plain LoRA is merged here: merge it with PEFT")
    if config.get("init_lora_weights", True) not in _INITIALISED:
        raise BadData(
            f"{config_path}: init_lora_weights is {config['init_lora_weights']!r}: PEFT changes the model's weights with it",
            "save the adapter with path_initial_model_for_weight_conversion, or merge it with PEFT",
        )
    patterns = AlphaPatterns(alphas, config_path)
    factors: dict[str, dict[str, Tensor]] = {}
    embeddings: set[str] = set()
    replaced: dict[str, Tensor] = {}
    trained: set[str] = set()
    for name, tensor in (read_file if weights.endswith(WEIGHTS) else read_state_dict)(weights, files).items():
        if tensor.dtype not in CASTABLE:
            raise BadData(f"{weights}: {name} is stored as {tensor.dtype}", f"known are {', '.join(CASTABLE)}")
        match = _FACTOR.fullmatch(name.removeprefix(PREFIX))
        if match is None:
            if "lora_" in name or not name.startswith(PREFIX):
                raise BadData(f"{weights}: {name}: not a tensor of plain LoRA", "merge it with PEFT")
            replaced_name = name.removeprefix(PREFIX).replace(BASE_LAYER, ".")
            replaced[replaced_name] = tensor
            if BASE_LAYER not in name:
                trained.add(replaced_name)
            continue
        factors.setdefault(match["module"], {})[match["letter"]] = tensor.cast("float32")
        if match["embedding"]:
            embeddings.add(match["module"])
    updates = {}
    for module, pair in factors.items():
        if (
            set(pair) != {"A", "B"}
            or any(len(one.shape) != 2 for one in pair.values())
            or pair["A"].shape[0] != pair["B"].shape[1]
        ):
            shapes = ", ".join(f"lora_{letter} {list(one.shape)}" for letter, one in sorted(pair.items()))
            raise BadData(f"{weights}: {module}: {shapes}: not two matrices of one rank", "copy the adapter again")
        stored_rank = pair["A"].shape[0]
        module_alpha = patterns.find(module, alpha)
        scale = module_alpha / (math.sqrt(stored_rank) if config.get("use_rslora") else stored_rank)
        # As in PEFT, the kind of the layer decides. fan_in_fan_out in the file is that of the layer that was adapted last.
        is_transposed = module in embeddings or (has_conv1d and module != OUTPUT_WEIGHT.removesuffix(".weight"))
        outer, inner = (pair["A"].transposed(), pair["B"].transposed()) if is_transposed else (pair["B"], pair["A"])
        updates[f"{module}.weight"] = LowRank(outer, inner, scale, module in embeddings)
    return Adapter(directory, updates, replaced, str(config.get("base_model_name_or_path") or ""), frozenset(trained))


class AlphaPatterns:
    """Find the lora_alpha of modules by alpha_pattern, whose keys are regular expressions that match the end of a module's name.

    PEFT takes the first key that matches, in the order of the file. Most keys are names of modules, in which a dot stands for any
    character. These keys are looked up by the places of their dots and by their other characters, so that the cost does not grow
    with the product of keys and modules.
    """

    def __init__(self, alphas: Mapping[str, float], config_path: str):
        self._alphas = list(alphas.values())
        self._expressions: dict[int, re.Pattern[str]] = {}
        # The first key by its other characters, by length and places of dots.
        self._names: dict[int, dict[tuple[int, ...], dict[str, int]]] = {}
        for number, key in enumerate(alphas):
            if _NAME.fullmatch(key):
                dots = tuple(place for place, character in enumerate(key) if character == ".")
                self._names.setdefault(len(key), {}).setdefault(dots, {}).setdefault(key.replace(".", ""), number)
            else:
                self._expressions[number] = _pattern(key, config_path)
        if len(self._expressions) > _MAXIMUM_EXPRESSIONS or sum(map(len, self._names.values())) > _MAXIMUM_SHAPES:
            raise BadData(f"{config_path}: alpha_pattern: too many different expressions", "name the modules instead")
        self._config_path = config_path

    def find(self, module: str, otherwise: float) -> float:
        """Return the value of the first key that matches `module`. Raises BadData for a name that is too long to be matched."""
        if self._alphas and len(module) > _LONGEST_MODULE:
            raise BadData(
                f"{self._config_path}: alpha_pattern: the name of a module is too long: {module:.80}", "merge it with PEFT"
            )
        first = len(self._alphas)
        for start in (0, *(match.end() for match in re.finditer(r"\.", module))):
            for dots, numbers in self._names.get(len(module) - start, {}).items():
                characters = list(module[start:])
                for place in reversed(dots):
                    del characters[place]
                first = min(first, numbers.get("".join(characters), first))
        for number, expression in self._expressions.items():
            if number < first and expression.match(module):
                first = number
        return self._alphas[first] if first < len(self._alphas) else otherwise


def _pattern(key: str, config_path: str) -> re.Pattern[str]:
    """Compile a key of alpha_pattern as PEFT does. Raises BadData for an expression that may take too long to match."""
    if _REPEATED_GROUP.search(key) or len(_REPETITION.findall(key)) > _MAXIMUM_REPETITIONS:
        raise BadData(f"{config_path}: alpha_pattern: {key!r:.80}: too many repetitions", "name the modules instead")
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except re.error as error:
        raise BadData(f"{config_path}: alpha_pattern: {key!r:.80}: not a regular expression: {error}") from None
