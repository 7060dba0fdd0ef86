"""What becomes of every field of Megatron's configurations in a conversion, with the upstream lines.

    python tests/shared/models/field_table.py MIRRORS

MIRRORS has a git directory for each repository, as for tests/train/upstream_options.py. Reads the sources without executing them
and writes field_table.tsv: field, programs that have it, fate, reason, the line that declares it, and for a field without effect
the line that reads it. Fields of Megatron-Bridge and NeMo are those of the classes that lt-convert reads.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

import upstream_options as upstream
import upstream_reads
from upstream_options import BRIDGE, MEGATRON_LM, NEMO, Tree

from lt_convert.formats.megatron import provider_config
from lt_shared.console import BadData
from lt_shared.models.megatron_arguments import known_fields

TABLE = Path(__file__).with_suffix(".tsv")
CORE = "megatron.core.transformer.transformer_config"
CORE_VERSIONS = ("core_v0.16.1", "core_v0.19.0", upstream.MEGATRON_MAIN)
CONFIGURATIONS = ("TransformerConfig", "MLATransformerConfig")
# NeMo's last commit runs with this release.
CORE_OF_NEMO = "core_v0.14.0"
# A folder of model classes in each repository, and the words that end their names.
CLASSES = {BRIDGE: ("src/megatron/bridge/models/", ("Provider", "GPTModelConfig")), NEMO: ("nemo/collections/llm/gpt/model/", ())}

Fields = dict[str, tuple[str, Tree]]


def core_fields(tree: Tree) -> Fields:
    """Map the fields of megatron-core's configurations to their lines."""
    tables = [upstream.dataclass_fields((tree,), CORE, name) for name in CONFIGURATIONS]
    return {name: (upstream.line(tree, source.path, node), tree) for table in tables for name, (node, source) in table.items()}


def parser_fields(tree: Tree) -> Fields:
    """Map the names that Megatron-LM's parser stores to the lines that declare them."""
    fields = {}
    for option in upstream.megatron_options((tree,)):
        _, path, number = option.line.split(":")
        fields[stored_name(tree, path, int(number), option.name)] = (option.line, tree)
    return fields


def stored_name(tree: Tree, path: str, number: int, option: str) -> str:
    """The name under which argparse stores the option that is declared at a line."""
    for node in ast.walk(tree.module(path)):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "add_argument"
            and node.lineno <= number <= (node.end_lineno or 0)
        ):
            destination = next((keyword.value for keyword in node.keywords if keyword.arg == "dest"), None)
            if isinstance(destination, ast.Constant):
                return str(destination.value)
            words = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            return next(word for word in words if word.startswith("--")).lstrip("-").replace("-", "_")
        if isinstance(node, ast.AnnAssign) and node.lineno == number and isinstance(node.target, ast.Name):
            return node.target.id
    return option


def class_fields(trees: tuple[Tree, ...]) -> Fields:
    """Map the fields of the model classes that lt-convert reads to their lines."""
    tree, fields = trees[0], {}
    folder, endings = CLASSES[tree.repository]
    for path in sorted(path for path in tree.paths if path.startswith(folder) and path.endswith(".py")):
        module = path.removeprefix(tree.root).removesuffix(".py").replace("/", ".")
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.ClassDef) and node.name.endswith(endings or ("Config",)) and is_read(f"{module}.{node.name}"):
                for name, (field, source) in upstream.dataclass_fields(trees, module, node.name).items():
                    fields[name] = (upstream.line(source.tree, source.path, field), source.tree)
    return fields


def is_read(name: str) -> bool:
    try:
        provider_config._check_class(name, "")
    except BadData:
        return False
    return True


def programs(mirrors: Path) -> Iterator[tuple[str, Fields]]:
    """Every program and version with its fields, older versions first."""

    def tree(repository: str, revision: str, root: str = "") -> Tree:
        return Tree(repository, mirrors / repository.replace("/", "+") / "repo", revision, root)

    for version in (*upstream.MEGATRON_VERSIONS, upstream.MEGATRON_MAIN):
        megatron = tree(MEGATRON_LM, version)
        yield f"Megatron-LM {version[:12]}", parser_fields(megatron)
        if version in CORE_VERSIONS:
            yield f"megatron-core {version[:12]}", core_fields(megatron)
    for version in upstream.BRIDGE_VERSIONS:
        bridge = tree(BRIDGE, version, "src/")
        core = tree(MEGATRON_LM, bridge.submodule("3rdparty/Megatron-LM"))
        yield f"Megatron-Bridge {version[:12]}", class_fields((bridge, core))
    yield "NeMo", class_fields((tree(NEMO, upstream.NEMO_VERSION), tree(MEGATRON_LM, CORE_OF_NEMO)))


def read_line(name: str, tree: Tree) -> str:
    if tree.repository not in upstream_reads.SOURCES:
        return upstream_reads.NOWHERE
    lines = [(upstream_reads.rank(read, ""), read) for read in upstream_reads.index(tree)[name]]
    if not lines:
        return upstream_reads.NOWHERE
    read = min(lines, key=lambda line: line[0])[1]
    return f"{tree.repository}@{tree.revision}:{read.path}:{read.line}"


def main(mirrors: Path) -> None:
    names: dict[str, list[str]] = {}
    lines: Fields = {}
    for program, fields in programs(mirrors):
        for field, line in fields.items():
            names.setdefault(field, []).append(program)
            lines[field] = line
    rows = []
    for field in sorted(names):
        fate = known_fields.fate(field)
        kind, reason = (fate[0].value, fate[1]) if fate else ("unknown", "")
        line, tree = lines[field]
        reader = read_line(field, tree) if fate and fate[0] is known_fields.Fate.WITHOUT_EFFECT else ""
        rows.append("\t".join((field, ", ".join(names[field]), kind, reason, line, reader)))
    TABLE.write_text("# field\tprograms\tfate\treason\tupstream line\tline that reads it\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
