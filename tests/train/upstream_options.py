"""Write the options of the trainers that lt-train imports, with their defaults and upstream lines.

    python tests/train/upstream_options.py MIRRORS

MIRRORS has a git directory for each repository: MIRRORS/NVIDIA+Megatron-LM/repo and so on. Reads the source of the revisions in
VERSIONS without executing it, and writes tools/train/src/lt_train/importers/upstream/*.json. A newer version of an option
replaces an older one, and options of all versions are kept. Recipes of HyperPod have values of a run, not defaults.
"""

import ast
import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

UPSTREAM = Path(__file__).parents[2] / "tools/train/src/lt_train/importers/upstream"
COMPUTED = "<computed>"
MEGATRON_LM, BRIDGE, TITAN, NEMO = "NVIDIA/Megatron-LM", "NVIDIA-NeMo/Megatron-Bridge", "pytorch/torchtitan", "NVIDIA/NeMo"
MEGATRON_VERSIONS = ("core_v0.5.0", "core_v0.9.0", "core_v0.12.0", "core_v0.14.0", "core_v0.16.1", "core_v0.19.0")
MEGATRON_MAIN = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
BRIDGE_VERSIONS = ("v0.3.0", "v0.6.0", "067f987df03b8355b03192d88d70f1709fedf51a")
# The release of megatron-core that v0.6.0 is installed with; it pins a commit before the release.
BRIDGE_RELEASE_CORE = "core_v0.19.0"
TITAN_VERSIONS = ("v0.1.0", "v0.2.0", "v0.2.2")
NEMO_VERSION = "8cfedd7203462cb251a914e700e5605444277561"
NEMO_FILE = "examples/nlp/language_modeling/conf/megatron_gpt_config.yaml"
# Programs that add options to Megatron-LM's own.
PROGRAMS = ("pretrain_gpt.py", "megatron/post_training/arguments.py")


@dataclasses.dataclass(frozen=True)
class Tree:
    """One revision of a repository."""

    repository: str
    directory: Path
    revision: str
    root: str = ""

    @functools.cached_property
    def commit(self) -> str:
        return self._git("rev-parse", f"{self.revision}^{{commit}}").strip()

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(self._git("ls-tree", "-r", "--name-only", self.revision).splitlines())

    @functools.cache  # noqa: B019
    def text(self, path: str) -> str:
        return self._git("show", f"{self.revision}:{path}")

    @functools.cache  # noqa: B019
    def module(self, path: str) -> ast.Module:
        return ast.parse(self.text(path))

    def module_path(self, name: str) -> str | None:
        base = f"{self.root}{name.replace('.', '/')}"
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self.paths), None)

    def submodule(self, path: str) -> str:
        """Return the commit of a submodule."""
        return self._git("ls-tree", self.revision, path).split()[2]

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", self.directory, *words], capture_output=True, check=True, text=True).stdout


@dataclasses.dataclass(frozen=True)
class Option:
    """`default` is a JSON value, the text of an enum member or a type, or COMPUTED."""

    name: str
    default: Any
    line: str
    kind: str = "value"
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ClassSource:
    tree: Tree
    path: str
    module: str
    node: ast.ClassDef


def find_class(trees: tuple[Tree, ...], module: str, name: str) -> ClassSource | None:
    """Follow imports from `module` to the class `name`."""
    for tree in trees:
        path = tree.module_path(module)
        if path is None:
            continue
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ClassSource(tree, path, module, node)
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
                        base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                        source = ".".join(part for part in (base, node.module or "") if part)
                        return find_class(trees, source, alias.name)
    return None


def dataclass_fields(trees: tuple[Tree, ...], module: str, name: str) -> dict[str, tuple[ast.AnnAssign, ClassSource]]:
    """Map each field of a dataclass, its bases' included, to its node and class."""
    source = find_class(trees, module, name)
    if source is None:
        return {}
    fields: dict[str, tuple[ast.AnnAssign, ClassSource]] = {}
    for base in reversed(source.node.bases):
        node = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(node, ast.Name):
            fields |= dataclass_fields(trees, source.module, node.id)
    for node in source.node.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "ClassVar" not in ast.unparse(node.annotation)
        ):
            fields[node.target.id] = (node, source)
    return fields


def field_arguments(node: ast.AnnAssign) -> dict[str, ast.expr]:
    """The keywords of dataclasses.field, or `default` alone."""
    value = node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        return {keyword.arg or "": keyword.value for keyword in value.keywords}
    return {} if value is None else {"default": value}


def plain(node: ast.expr | None) -> Any:
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        value = arithmetic(node)
    value = list(value) if isinstance(value, tuple | set) else value
    try:
        json.dumps(value)
    except TypeError:
        return COMPUTED
    return value


def arithmetic(node: ast.expr) -> Any:
    """A product of numbers, the argument of float("inf"), the name of an enum member or function, a type, or COMPUTED."""
    if isinstance(node, ast.BinOp) and all(isinstance(part, ast.Constant | ast.BinOp | ast.operator) for part in ast.walk(node)):
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "float":
        return plain(node.args[0])
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node)
        return name if name.startswith("torch.") else node.attr
    return node.id if isinstance(node, ast.Name) else COMPUTED


def field_default(node: ast.AnnAssign) -> Any:
    arguments = field_arguments(node)
    if "default" in arguments:
        return plain(arguments["default"])
    factory = arguments.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return plain(factory.body)
    empty = {"list": [], "dict": {}, "set": []}
    return None if factory is None else empty.get(ast.unparse(factory), COMPUTED)


def line(tree: Tree, path: str, node: ast.AST) -> str:
    return f"{tree.repository}@{tree.revision}:{path}:{getattr(node, 'lineno', 1)}"


# Megatron-LM


def megatron_options(trees: tuple[Tree, ...]) -> Iterator[Option]:
    tree = trees[0]
    for path in ("megatron/training/arguments.py", *PROGRAMS):
        if path not in tree.paths:
            continue
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                yield from argument(tree, path, node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ArgumentGroupFactory"):
                yield from group(trees, path, node)


def argument(tree: Tree, path: str, node: ast.Call) -> Iterator[Option]:
    keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
    names = [plain(word) for word in node.args]
    for name in names:
        if isinstance(name, str) and name.startswith("--"):
            yield from spelled(name, keywords, line(tree, path, node))


def spelled(name: str, keywords: dict[str, ast.expr], position: str) -> Iterator[Option]:
    action = plain(keywords.get("action")) if "action" in keywords else ""
    choices = plain(keywords.get("choices"))
    default = plain(keywords.get("default"))
    names = [name.lstrip("-").replace("-", "_")]
    if action == "BooleanOptionalAction":
        names.append(f"no_{names[0]}")
    is_switch = action in ("store_true", "store_false", "store_const", "BooleanOptionalAction")
    nargs = plain(keywords.get("nargs"))
    kind = "switch" if is_switch else "list" if nargs in ("*", "+") or isinstance(nargs, int) else "value"
    for spelling in names:
        words = tuple(map(str, choices)) if isinstance(choices, list) else ()
        yield Option(spelling, None if is_switch else default, position, kind, words)


def group(trees: tuple[Tree, ...], path: str, node: ast.Call) -> Iterator[Option]:
    """The options that ArgumentGroupFactory makes of a dataclass."""
    name = ast.unparse(node.args[0])
    excluded = next((keyword.value for keyword in node.keywords if keyword.arg == "exclude"), None)
    names = set(plain(excluded) or ()) if not isinstance(excluded, ast.Name) else excluded_names(trees[0], path, excluded.id)
    module = path.removesuffix(".py").replace("/", ".")
    for key, (field, source) in dataclass_fields(trees, module, name).items():
        arguments = field_arguments(field)
        if key in names or plain(arguments.get("init")) is False:
            continue
        members = enum_members(trees, source, ast.unparse(field.annotation))
        if members:
            arguments = arguments | {"choices": ast.Constant(members)}
        yield from field_options(key, field, arguments, line(source.tree, source.path, field))


def enum_members(trees: tuple[Tree, ...], source: ClassSource, annotation: str) -> tuple[str, ...]:
    enum = find_class(trees, source.module, annotation) if annotation.isidentifier() else None
    if enum is None or not any(ast.unparse(base).rpartition(".")[2].endswith("Enum") for base in enum.node.bases):
        return ()
    targets = [node.targets[0] for node in enum.node.body if isinstance(node, ast.Assign)]
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def field_options(key: str, field: ast.AnnAssign, arguments: dict[str, ast.expr], position: str) -> Iterator[Option]:
    annotation, default = ast.unparse(field.annotation), field_default(field)
    metadata = argparse_metadata(arguments.get("metadata"))
    keywords = dict(metadata)
    spellings = plain(keywords.pop("arg_names", None)) or [f"--{key}"]
    if re.sub(r"Optional\[(\w+)\]|\s*\|\s*None", r"\1", annotation) == "bool" and "type" not in keywords:
        keywords.setdefault("action", ast.Constant("store_true" if not default else "store_false"))
        if default and "arg_names" not in metadata:
            spellings = [f"--no-{key}", f"--disable-{key}"]
    elif "list" in annotation.lower():
        keywords.setdefault("nargs", ast.Constant("+"))
    if "choices" in arguments:
        keywords["choices"] = arguments["choices"]
    literal = re.search(r"Literal\[(.*?)\]", annotation)
    if literal:
        keywords.setdefault("choices", ast.parse(f"[{literal[1]}]", mode="eval").body)
    keywords.setdefault("default", ast.Constant(default))
    for name in spellings:
        yield from spelled(name, keywords, position)


def argparse_metadata(node: ast.expr | None) -> dict[str, ast.expr]:
    if not isinstance(node, ast.Dict):
        return {}
    tables = {plain(key): value for key, value in zip(node.keys, node.values, strict=True)}
    table = tables.get("argparse_meta")
    if not isinstance(table, ast.Dict):
        return {}
    return {plain(key): value for key, value in zip(table.keys, table.values, strict=True) if key}


def excluded_names(tree: Tree, path: str, variable: str) -> set[str]:
    """The values of a list that a variable holds; those that comments describe included."""
    names: set[str] = set()
    for node in ast.walk(tree.module(path)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable and isinstance(node.value, ast.List):
            names |= {plain(entry) for entry in node.value.elts}
    return names


# Megatron-Bridge

# Classes of `model`. The first one's defaults count.
MODELS = (
    ("megatron.bridge.models.gpt_provider", "GPTModelProvider"),
    ("megatron.bridge.models.mla_provider", "MLAModelProvider"),
    ("megatron.bridge.models.deepseek.deepseek_provider", "DeepSeekModelProvider"),
    ("megatron.bridge.models.llama.llama_provider", "Llama3ModelProvider"),
    ("megatron.bridge.models.llama.llama_provider", "Llama31ModelProvider"),
    ("megatron.bridge.models.gpt.gpt_builder", "GPTModelConfig"),
)
SECTIONS = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "dataset": "GPTDatasetConfig",
    "ddp": "DistributedDataParallelConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "dist": "DistributedInitConfig",
    "rng": "RNGConfig",
    "rerun_state_machine": "RerunStateMachineConfig",
    "ft": "FaultToleranceConfig",
    "straggler": "StragglerDetectionConfig",
    "nvrx_straggler": "NVRxStragglerDetectionConfig",
    "profiling": "ProfilingConfig",
    "comm_overlap": "CommOverlapConfig",
    "mixed_precision": "MixedPrecisionConfig",
    "tensor_inspect": "TensorInspectConfig",
    "inprocess_restart": "InProcessRestartConfig",
}
CONTAINER = "megatron.bridge.training.config"
ADAPTERS = (
    ("megatron.bridge.peft.lora", "LoRA"),
    ("megatron.bridge.peft.dora", "DoRA"),
    ("megatron.bridge.peft.canonical_lora", "CanonicalLoRA"),
)


def bridge_options(trees: tuple[Tree, ...]) -> Iterator[Option]:
    for module, name in reversed(MODELS):
        yield from section_options(trees, "model", module, name)
    for section, name in SECTIONS.items():
        yield from section_options(trees, section, CONTAINER, name)
    for module, name in ADAPTERS:
        yield from section_options(trees, "peft", module, name)
    for key, (field, source) in dataclass_fields(trees, CONTAINER, "ConfigContainer").items():
        if not key.startswith("_") and "Config" not in ast.unparse(field.annotation) and key not in ("model", "peft"):
            yield Option(key, field_default(field), line(source.tree, source.path, field))


def section_options(trees: tuple[Tree, ...], section: str, module: str, name: str) -> Iterator[Option]:
    for key, (field, source) in dataclass_fields(trees, module, name).items():
        if not key.startswith("_"):
            yield Option(f"{section}.{key}", field_default(field), line(source.tree, source.path, field))


def bridge_providers(trees: tuple[Tree, ...]) -> Iterator[Option]:
    """The classes of `model` with the defaults in which they differ from GPTModelProvider's."""
    bridge = trees[0]
    base = {key: field_default(field) for key, (field, _) in dataclass_fields(trees, *MODELS[0]).items()}
    for path in sorted(path for path in bridge.paths if path.startswith("src/megatron/bridge/models/") and path.endswith(".py")):
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        for node in ast.walk(bridge.module(path)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Provider"):
                fields = {key: field_default(field) for key, (field, _) in dataclass_fields(trees, module, node.name).items()}
                if base.keys() <= fields.keys() and "vision_config" not in fields:
                    own = {key: value for key, value in fields.items() if value != base.get(key, COMPUTED) and value != COMPUTED}
                    yield Option(node.name, own, line(bridge, path, node))


# TorchTitan


def titan_options(trees: tuple[Tree, ...]) -> Iterator[Option]:
    (tree,) = trees
    path = next(path for path in ("torchtitan/config/job_config.py", "torchtitan/config_manager.py") if path in tree.paths)
    module = path.removesuffix(".py").replace("/", ".")
    yield from titan_section(trees, module, "JobConfig", "")


def titan_section(trees: tuple[Tree, ...], module: str, name: str, prefix: str) -> Iterator[Option]:
    for key, (field, source) in dataclass_fields(trees, module, name).items():
        below = ast.unparse(field.annotation)
        if dataclass_fields(trees, module, below):
            yield from titan_section(trees, module, below, f"{prefix}{key}.")
        else:
            yield Option(f"{prefix}{key}", field_default(field), line(source.tree, source.path, field))


# NeMo


def nemo_options(tree: Tree) -> Iterator[Option]:
    yield from yaml_options(tree, NEMO_FILE, yaml.compose(tree.text(NEMO_FILE)), "")


def yaml_options(tree: Tree, path: str, node: yaml.Node, prefix: str) -> Iterator[Option]:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from yaml_options(tree, path, value, f"{name}.")
        else:
            position = f"{tree.repository}@{tree.revision}:{path}:{key.start_mark.line + 1}"
            yield Option(name, yaml.safe_load(yaml.serialize(value)), position)


# HyperPod's recipes

RECIPES, RECIPES_VERSION = "aws/sagemaker-hyperpod-recipes", "v1.3.3"
# Recipes for models of Hugging Face on GPUs, the ones that lt-train imports.
RECIPE = re.compile(r"recipes_collection/recipes/(training|fine-tuning)/(llama|mistral|mixtral)/hf_.*_gpu_.*\.yaml")


def recipe_options(tree: Tree) -> Iterator[Option]:
    for path in sorted(path for path in tree.paths if RECIPE.fullmatch(path)):
        yield from yaml_options(tree, path, yaml.compose(tree.text(path)), "")


def merged(by_version: list[list[Option]]) -> dict[str, Option]:
    """Options of all versions; the last version of each."""
    return {option.name: option for options in by_version for option in options}


def write(name: str, trees: list[Tree], options: dict[str, Option], values: dict[str, Any]) -> None:
    record = {
        "sources": {f"{tree.repository}@{tree.revision}": tree.commit for tree in trees},
        "options": dict(sorted(values.items())),
        "lines": {key: options[key].line for key in sorted(options)},
    }
    path = UPSTREAM / f"{name}.json"
    parts = []
    for key, table in record.items():
        entries = ",\n".join(f"  {json.dumps(entry)}: {json.dumps(value)}" for entry, value in table.items())
        parts.append(f' "{key}": {{\n{entries}}}')
    path.write_text("{" + ",\n".join(parts).lstrip() + "}\n")
    print(f"{name}: {len(options)} options")


def main(mirrors: Path) -> None:
    def tree(repository: str, revision: str, root: str = "") -> Tree:
        return Tree(repository, mirrors / repository.replace("/", "+") / "repo", revision, root)

    trees = [tree(MEGATRON_LM, revision) for revision in (*MEGATRON_VERSIONS, MEGATRON_MAIN)]
    options = merged([list(megatron_options((version,))) for version in trees])
    values = {
        key: [option.kind, option.default, *([list(option.choices)] if option.choices else [])] for key, option in options.items()
    }
    write("megatron_lm", trees, options, values)
    pairs = []
    for revision in BRIDGE_VERSIONS:
        bridge = tree(BRIDGE, revision, "src/")
        pairs.append((bridge, tree(MEGATRON_LM, bridge.submodule("3rdparty/Megatron-LM"))))
    pairs.insert(-1, (pairs[-2][0], tree(MEGATRON_LM, BRIDGE_RELEASE_CORE)))
    options = merged([list(bridge_options(pair)) for pair in pairs])
    write(
        "megatron_bridge",
        [part for pair in pairs for part in pair],
        options,
        {key: option.default for key, option in options.items()},
    )
    options = merged([list(bridge_providers(pair)) for pair in pairs])
    trees = [part for pair in pairs for part in pair]
    write("megatron_bridge_providers", trees, options, {key: option.default for key, option in options.items()})
    trees = [tree(TITAN, revision) for revision in TITAN_VERSIONS]
    options = merged([list(titan_options((version,))) for version in trees])
    write("torchtitan", trees, options, {key: option.default for key, option in options.items()})
    nemo = tree(NEMO, NEMO_VERSION)
    options = merged([list(nemo_options(nemo))])
    recipes = tree(RECIPES, RECIPES_VERSION)
    recipe_keys = merged([list(recipe_options(recipes))])
    write("hyperpod", [recipes], recipe_keys, {key: option.default for key, option in recipe_keys.items()})
    write("nemo", [nemo], options, {key: option.default for key, option in options.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
