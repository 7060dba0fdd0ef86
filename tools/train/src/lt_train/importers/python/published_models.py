"""Models that a recipe of Megatron-Bridge takes from Hugging Face by name, without asking Hugging Face.

The model's configuration comes from the table of `huggingface_configs`; Megatron-Bridge's own conversion of it is interpreted.
"""

import ast
import itertools
from pathlib import Path
from typing import Any

from lt_train.importers.python.huggingface_configs import config_of
from lt_train.importers.python.interpreter import Interpreter
from lt_train.importers.python.limits import LARGEST_FILE, MOST_FILES
from lt_train.importers.python.values import MISSING, Builtin, Class, External, Instance, Unknown

AUTO_BRIDGE = External("megatron.bridge.AutoBridge")
CONFIG, PRETRAINED = External("transformers.PretrainedConfig"), External("transformers.PreTrainedModel")
# What converters of linear layers do to TorchTitan's model needs torchao; the model's object notes which were asked for.
CONVERTER, CONVERTERS = External("torchtitan.components.quantization.Converter"), "converters"
COMPONENTS = "torchtitan.components."
CONVERSIONS = "megatron/bridge/models"
# Families whose layers Megatron-Bridge changes by code, where the published model stands for all of its sizes.
BY_PRESET = ("gemma2", "gpt_oss")
OTHER_START = "the recipe begins with the weights of {}: convert them with lt-convert, and add --load"


class ModelInterpreter(Interpreter):
    """Interpret configurations that name published models.

    `converted` maps the id of a model's object to lt-train's preset and the values that its conversion gave it.
    """

    def __init__(self, file: Path):
        super().__init__(file)
        self.converted: dict[int, tuple[str, dict[str, Any]]] = {}

    def call_external(self, function: External, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if function.name == f"{AUTO_BRIDGE.name}.from_hf_pretrained" and arguments:
            if isinstance(arguments[0], Unknown):
                return arguments[0]
            return Instance(AUTO_BRIDGE, {"name": arguments[0]}, self.origin)
        return super().call_external(function, arguments, keywords)

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Instance) and value.target is AUTO_BRIDGE and not value.tainted:
            if name == "get_model_config":
                return Builtin(name, lambda **_: self._model(str(value.attributes["name"]), "hf_config_to_model_config"))
            if name == "to_megatron_provider":
                return Builtin(name, lambda load_weights=True, **_: self._provider(str(value.attributes["name"]), load_weights))
        if isinstance(value, Instance) and name == "build" and _is_converter(value.target):
            return Builtin(name, lambda **_: Instance(CONVERTER, {"config": value}, self.origin))
        if isinstance(value, Instance) and value.target is CONVERTER and name == "convert":
            return Builtin(name, lambda model: _note_converter(model, value.attributes["config"]))
        if isinstance(value, Class) and name == "register_bridge":
            return Builtin(name, self._register)
        if isinstance(value, Instance) and value.target in (CONFIG, PRETRAINED):
            return value.attributes.get(name, MISSING)
        return super().attribute(value, name)

    def _register(self, **keywords: Any) -> Builtin:
        """Do as Megatron-Bridge's decorator does to the class of a conversion."""

        def register(owner: Any) -> Any:
            if isinstance(owner, Class) and keywords.get("provider") is not None:
                owner.namespace["PROVIDER_CLASS"] = keywords["provider"]
            return owner

        return Builtin("register_bridge", register)

    def _provider(self, name: str, load_weights: Any) -> Any:
        provider = self._model(name, "provider_bridge")
        if load_weights is not False and isinstance(provider, Instance):
            provider.attributes["perform_initialization"] = self.unknown(OTHER_START.format(name))
        return provider

    def _model(self, name: str, method: str) -> Any:
        values = config_of(name)
        if values is None:
            return self.unknown(f"lt-train has no model {name}: lt-train models lists them")
        architecture = values["architectures"][0]
        conversion = self._conversion(architecture)
        if conversion is None:
            return self.unknown(f"Megatron-Bridge's code for {architecture} is not beside the file: import it in a checkout")
        config = Instance(CONFIG, dict(values), self.origin)
        bridge = Instance(conversion, {"hf_config": config}, self.origin)
        argument = config if method == "hf_config_to_model_config" else Instance(PRETRAINED, {"config": config}, self.origin)
        model = self.call(self.attribute(bridge, method), [argument], {})
        if isinstance(model, Instance) and values["model_type"] in BY_PRESET:
            self.converted[id(model)] = (values["lt_preset"], dict(model.attributes))
        return model

    def _conversion(self, architecture: str) -> Class | None:
        """Find the class that Megatron-Bridge registers for a Hugging Face architecture."""
        for folder in (Path(self.repository.root, base, CONVERSIONS) for base in ("src", "")):
            for file in sorted(itertools.islice(folder.glob("*/*_bridge.py"), MOST_FILES)):
                if (
                    not file.is_file()
                    or file.stat().st_size > LARGEST_FILE
                    or architecture not in file.read_text(errors="replace")
                ):
                    continue
                module = self.repository.module(f"megatron.bridge.models.{file.parent.name}.{file.stem}")
                name = _registered_class(module.tree, architecture) if module else None
                value = self.read_module(module).names.get(name) if module and name else None
                if isinstance(value, Class):
                    return value
        return None


def _is_converter(target: Any) -> bool:
    name = target.qualified_name if isinstance(target, Class) else target.name if isinstance(target, External) else ""
    return name.startswith(COMPONENTS) and name.endswith("Converter.Config")


def _note_converter(model: Any, converter: Instance) -> Any:
    """Note in a model's object that a converter changes its linear layers."""
    if isinstance(model, Instance):
        model.attributes.setdefault(CONVERTERS, []).append(converter)
    return model


def _registered_class(tree: ast.Module, architecture: str) -> str | None:
    """Return the name of the class that a decorator registers for an architecture."""
    for node in tree.body:
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else []:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("register_bridge"):
                sources = [keyword.value for keyword in decorator.keywords if keyword.arg == "source"]
                if any(ast.unparse(source).strip("'\"") == architecture for source in sources):
                    return node.name if isinstance(node, ast.ClassDef) else None
    return None
