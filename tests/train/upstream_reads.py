"""Write the line of each trainer's source that reads an option which lt-train does not carry over.

    python tests/train/upstream_reads.py MIRRORS

MIRRORS has a git directory for each repository, as for upstream_options.py. Reads the revision that declares the option, without
executing it, and writes option_reads.tsv: trainer, option, and the line, or NOWHERE if no code of the trainer reads the option.
Of several lines, the one counts that names the option's section, then the one outside of checks and copies of arguments.
"""

import ast
import collections
import dataclasses
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import option_table
from upstream_options import BRIDGE, MEGATRON_LM, NEMO, TITAN, Tree

NOWHERE = "nowhere"
ADAPTER, ADAPTER_VERSION = "aws/sagemaker-hyperpod-training-adapter-for-nemo", "v1.4.0"
# The Megatron-LM that a revision of Megatron-Bridge has as its submodule, or is installed with.
CORES = {
    "b0cc2706ddc60d2aefd5fff346445b5c013036a8": "v0.3.0",
    "cd4afffa648426a959dc7cb1e24b5ce7d0c3ff54": "v0.6.0",
    "core_v0.19.0": "v0.6.0",
    "2a75ac12c54ba6a42b34024756820bf819a2e25f": "067f987df03b8355b03192d88d70f1709fedf51a",
}
SOURCES = {
    MEGATRON_LM: re.compile(
        r"(megatron/(core|training|inference|legacy|post_training)/.*|(pretrain_gpt|\w+_builders?)|tools/.*)\.py"
    ),
    BRIDGE: re.compile(
        r"src/megatron/bridge/(training|models/[^/]+\.py|models/gpt/|data|peft|utils|recipes/utils).*\.py|src/.*_spec\.py"
    ),
    TITAN: re.compile(r"torchtitan/(?!experiments|.*flux).*\.py"),
    NEMO: re.compile(
        r"(nemo/(core|utils|collections/(nlp|common))|examples/nlp/language_modeling)/(?!.*(bert|t5|retr|multimodal)).*\.py"
    ),
    ADAPTER: re.compile(r"(src|examples)/.*\.py"),
}
# Files that declare, check or copy options, and programs beside the training.
LESS = (
    (re.compile(r"tools/|post_training|/export/|resharding|examples/|recipes|mlm_compat|yaml_arguments|theoretical"), 4),
    (re.compile(r"text_generation_(utils|strategy)"), 4),
    (re.compile(r"arguments?\.py|argument_utils|config_manager|config_schemas|(^|/)config(s|uration)?\.py"), 2),
    (re.compile(r"_config\.py|legacy"), 1),
)
BASE_MODEL = "nemo/collections/nlp/models/language_modeling/megatron_base_model.py"
BUILDER = "nemo/collections/nlp/parts/megatron_trainer_builder.py"
TEXTS = "torchtitan/hf_datasets/text_datasets.py"
# Options that are passed on by the name of their section, or whose names a program puts together.
BY_SECTION = {
    ("nemo", "trainer."): (NEMO, BUILDER, r"\*\*self\.cfg\.trainer"),
    ("nemo", "exp_manager.name"): (NEMO, "nemo/utils/exp_manager.py", r"name=cfg\.name"),
    ("nemo", "exp_manager.neptune_logger_kwargs."): (NEMO, "nemo/utils/exp_manager.py", r"NeptuneLogger\(\*\*"),
    ("nemo", "model.megatron_timer_kwargs."): (NEMO, BASE_MODEL, r"megatron_timer_kwargs"),
    **{
        ("nemo", f"model.{name}"): (NEMO, BASE_MODEL, r"if field\.name in cfg:")
        for name in ("cpu_offloading", "overlap_p2p_comm", "batch_p2p_comm")
    },
    ("torchtitan", "training.dataloader."): (TITAN, TEXTS, r"asdict\(job_config\.training\.dataloader\)"),
    ("torchtitan", "validation.dataloader."): (TITAN, TEXTS, r"asdict\(job_config\.validation\.dataloader\)"),
    **dict.fromkeys(
        (
            ("megatron_lm", "muon_"),
            ("megatron_bridge", "optimizer.muon_"),
            ("megatron_bridge", "optimizer.adaptive_muon_"),
            ("megatron_bridge", "optimizer.soap_"),
        ),
        (MEGATRON_LM, "megatron/core/optimizer/emerging_optimizers.py", r"getattr\(config, prefixed\)"),
    ),
}
# Keys of Hydra, which composes the file.
OF_HYDRA = {("nemo", "name"), ("nemo", "defaults")}
# A name that stands in more lines than these is read there alone where the section is named.
COMMON, FAR = 40, 2


@dataclasses.dataclass(frozen=True)
class Read:
    """A line that reads a name: `expression` is an attribute with its object, or a call or a key with the name as a text."""

    path: str
    line: int
    expression: str


def reads(path: str, module: ast.Module) -> Iterator[tuple[str, Read]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr, Read(path, node.end_lineno or node.lineno, ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            texts = [entry for entry in node.args[:2] if isinstance(entry, ast.Constant) and isinstance(entry.value, str)]
            if name in ("getattr", "get", "hasattr", "pop", "_set_arg"):
                yield from ((text.value, Read(path, text.lineno, ast.unparse(node))) for text in texts)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            yield node.slice.value, Read(path, node.lineno, ast.unparse(node))
        elif isinstance(node, ast.Tuple | ast.List):
            # Names that a loop reads.
            yield from (
                (entry.value, Read(path, entry.lineno, ""))
                for entry in node.elts
                if isinstance(entry, ast.Constant) and isinstance(entry.value, str)
            )


@functools.cache
def index(tree: Tree) -> dict[str, list[Read]]:
    table: dict[str, list[Read]] = collections.defaultdict(list)
    pattern = SOURCES[tree.repository]
    for path in sorted(tree.paths):
        if pattern.fullmatch(path) and "/tests/" not in path:
            for name, read in reads(path, tree.module(path)):
                table[name].append(read)
    return table


def destinations(tree: Tree, path: str, number: int, option: str) -> set[str]:
    """The names under which code reads the option that is declared at a line: its own, or the `dest` of argparse."""
    names = {option}
    for node in ast.walk(tree.module(path)):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "add_argument"
            and node.lineno <= number <= (node.end_lineno or 0)
        ):
            names |= {
                entry.value.value for entry in node.keywords if entry.arg == "dest" and isinstance(entry.value, ast.Constant)
            }
        elif isinstance(node, ast.AnnAssign) and node.lineno == number and isinstance(node.target, ast.Name):
            names |= {node.target.id, *re.findall(r"'dest': '(\w+)'", ast.unparse(node))}
    # argparse.BooleanOptionalAction makes a switch of each name, and fields of dataclasses make one of `disable`.
    names |= {name.removeprefix(prefix) for name in names for prefix in ("no_", "disable_")}
    return {name.removesuffix("_deprecated") for name in names} | names


def rank(read: Read, section: str) -> tuple[int, int, str, int]:
    """Order lines: those that name the section or a word of it, then those outside of declarations and other programs."""
    source = read.expression.rpartition(".")[0]
    words = set(re.split(r"\W|_", section)) - {""}
    if section:
        is_near = words & set(re.split(r"\W|_", source)) or section in read.path
        distance = 0 if section in source else 1 if is_near else FAR
    else:
        distance = 0 if read.expression else FAR
    less = next((number for pattern, number in LESS if pattern.search(read.path)), 0)
    return distance, less, read.path, read.line


def trees_of(trainer: str, source: str, mirrors: Path) -> tuple[Tree, ...]:
    """The revisions in which the option can be read: the one that declares it first, of Megatron-Bridge with its Megatron-LM."""

    def tree(repository: str, revision: str) -> Tree:
        return Tree(repository, mirrors / repository.replace("/", "+") / "repo", revision)

    repository, revision = source.split("@")
    if trainer == "hyperpod":
        return (tree(ADAPTER, ADAPTER_VERSION),)
    if trainer != "megatron_bridge":
        return (tree(repository, revision),)
    bridge = CORES.get(revision, revision)
    core = revision if revision in CORES else next(core for core, other in CORES.items() if other == bridge)
    return tree(BRIDGE, bridge), tree(MEGATRON_LM, core)


tree_cache = functools.cache(trees_of)


def line_of_section(trainer: str, option: str, trees: Iterable[Tree]) -> str | None:
    for (name, prefix), (repository, path, pattern) in BY_SECTION.items():
        tree = next((tree for tree in trees if tree.repository == repository), None)
        if name == trainer and option.startswith(prefix) and tree:
            lines = tree.text(path).splitlines() if path in tree.paths else []
            number = next((number for number, line in enumerate(lines, 1) if re.search(pattern, line)), None)
            return number and f"{repository}@{tree.revision}:{path}:{number}"
    return None


def read_line(result: option_table.Outcome, mirrors: Path) -> str:
    source, path, number = result.line.split(":")
    trees = tree_cache(result.trainer, source, mirrors)
    line = line_of_section(result.trainer, result.option, trees)
    if line or (result.trainer, result.option) in OF_HYDRA:
        return line or NOWHERE
    section, _, option = result.option.rpartition(".")
    # NeMo calls the section `model` cfg.
    section = "" if (result.trainer, section) == ("nemo", "model") else section.rpartition(".")[2]
    names = {option}
    if result.trainer == "megatron_lm":
        names = destinations(trees[0], path, int(number), option)
    lines = []
    for tree in trees:
        candidates = [read for name in names for read in index(tree)[name]]
        if section and len(candidates) > COMMON:
            candidates = [read for read in candidates if rank(read, section)[0] < FAR]
        lines += [(rank(read, section), f"{tree.repository}@{tree.revision}:{read.path}:{read.line}") for read in candidates]
    return min(lines)[1] if lines else NOWHERE


def main(mirrors: Path) -> None:
    rows = [
        f"{result.trainer}\t{result.option}\t{read_line(result, mirrors)}"
        for trainer in option_table.BASES
        for result in option_table.outcomes(trainer)
        if result.becomes in option_table.SHOWN
    ]
    option_table.READS.write_text("# trainer\toption\tupstream line that reads it\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
