"""docs/megatron-core.md lists every function of megatron-core and torch that lt-train replaces, in source and in a process that
trains, and the room `megatron` alone replaces them."""

import ast
import functools
import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import nursery
import pytest
from replacement_page import ROOT, listed, rows
from running import environment

SOURCE = ROOT / "tools/train/src/lt_train"
ROOM = "megatron/"
# An object's own attributes, and those of a context of torch.autograd: state, not code.
STATE = {"self", "ctx"}
# What megatron-core asks of a parameter; 0.19 has a function of that name besides.
OF_PARAMETERS = {"allreduce"}
# megatron-core binds it to torch.compile in every module that uses it.
FOLLOWS_FROM_TORCH = "jit_fuser"
# torch's settings, which are there to be set.
SETTINGS = {"fill_uninitialized_memory", "recompile_limit"}


@functools.cache
def names_of_megatron() -> set[str]:
    """Functions, methods and module attributes of the installed megatron-core, read without importing it."""
    spec = importlib.util.find_spec("megatron.core")
    assert spec and spec.origin
    found: set[str] = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for statement in tree.body:
            for node in ast.walk(statement) if isinstance(statement, ast.Try | ast.If | ast.Assign) else ():
                if isinstance(node, ast.Assign):
                    found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    found |= {alias.asname or alias.name for alias in node.names}
    return found


@functools.cache
def source_trees() -> dict[str, ast.Module]:
    """The syntax tree of each file of lt-train, by its path in the package."""
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def assigned(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are set on objects: by assignment, by `setattr`, or in the dictionary of `vars`."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        elif is_call_of(node, "setattr") and isinstance(node.args[1], ast.Constant):
            yield str(node.args[1].value)
        for target in targets:
            yield from _attributes(target)


def is_call_of(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _attributes(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _attributes(element)
    elif isinstance(target, ast.Attribute) and ast.unparse(target.value) not in STATE:
        yield target.attr
    elif isinstance(target, ast.Subscript) and re.match(r"vars\(|.*\.__dict__$", ast.unparse(target.value)):
        yield str(getattr(target.slice, "value", ""))


def replaced() -> set[tuple[str, str]]:
    names = names_of_megatron() - OF_PARAMETERS
    return {(file, name) for file, tree in source_trees().items() for name in assigned(tree) if name in names}


def upstream_owners(tree: ast.AST) -> set[str]:
    """Names under which a file has modules and classes of torch and megatron-core."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names if is_upstream(alias.name)}
        elif isinstance(node, ast.ImportFrom) and is_upstream(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def is_upstream(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "megatron")


def set_on_upstream(tree: ast.AST) -> Iterator[str]:
    """Attributes of imported modules and classes of torch and megatron-core that a file sets, "owner.name"."""
    owners = upstream_owners(tree)
    for node in ast.walk(tree):
        targets: list[tuple[ast.expr, str]] = []
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                    if isinstance(each, ast.Attribute):
                        targets.append((each.value, each.attr))
        elif is_call_of(node, "setattr", "replace_within"):
            targets.append((node.args[0], ast.unparse(node.args[1])))
        for owner, name in targets:
            if ast.unparse(owner).partition(".")[0] in owners:
                yield f"{ast.unparse(owner)}.{name}"


def test_every_replacement_in_the_source_is_listed() -> None:
    names = {file: {name.rpartition(".")[2] for name in names} for file, names in listed().items()}
    found = replaced()
    assert len(found) > 15
    assert {(file, name) for file, name in found if name not in names.get(file, set())} == set()


def test_no_other_room_replaces_anything() -> None:
    assert {file for file, _ in replaced() if not file.startswith(ROOM)} == set()
    found = {
        f"{file}: {name}"
        for file, tree in source_trees().items()
        for name in set_on_upstream(tree)
        if name.rpartition(".")[2] not in SETTINGS
    }
    assert len(found) > 20
    assert {name for name in found if not name.startswith(ROOM)} == set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from torch.distributed.checkpoint import filesystem as f\nf.pickle = 1", ["f.pickle"]),
        ("import torch\nsetattr(torch.Tensor, 'type', f)", ["torch.Tensor.'type'"]),
        ("import megatron.core.optimizer\nmegatron.core.optimizer.Adam, x = f", ["megatron.core.optimizer.Adam"]),
        ("import torch\nmodel = torch.nn.Module()\nmodel.forward = f", []),
        ("import json\njson.load = f", []),
    ],
)
def test_the_search_sees_what_is_set_on_modules_and_classes(line: str, expected: list[str]) -> None:
    assert list(set_on_upstream(ast.parse(line))) == expected


def test_every_function_of_the_room_is_called() -> None:
    """Else nothing is replaced by it any more: it goes, and its names in the room and on the page."""
    words = {file: set(re.findall(r"\w+", (SOURCE / file).read_text())) for file in source_trees()}
    for path in SOURCE.glob(f"{ROOM}*.py"):
        file = str(path.relative_to(SOURCE))
        for node in source_trees()[file].body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                callers = [other for other in words if other != file and node.name in words[other]]
                assert callers, f"{path.name}: nobody calls {node.name}"


def test_no_row_is_out_of_date() -> None:
    for file, names in listed().items():
        tree = source_trees()[file]
        code = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        code |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        for name in names:
            assert name.rpartition(".")[2] in {part.rpartition(".")[2] for part in code}, f"{file} does not replace {name}"


def test_every_row_says_why_and_until_when() -> None:
    assert len(rows()) > 15
    for row in rows():
        assert len(row) == 4 and all(row), row


def test_the_page_is_short() -> None:
    """One row a file, and no more of them than a reader keeps in mind."""
    assert len({row[0] for row in rows()}) == len(rows()) <= 18


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model.decoder.forward = partial(f, 1)", ["forward"]),
        ("outer.state_dict, outer.load_state_dict = a, b", ["state_dict", "load_state_dict"]),
        ("self.forward = f", []),
        ("ctx.forward = f", []),
        ("self.model.decoder.forward = f", ["forward"]),
        ("layer.forward: Any = f", ["forward"]),
        ("setattr(TransformerBlock, 'forward', f)", ["forward"]),
        ("vars(parallel_state)['is_pipeline_last_stage'] = f", ["is_pipeline_last_stage"]),
        ("module.__dict__['forward'] = f", ["forward"]),
    ],
)
def test_the_search_sees_assignments(line: str, expected: list[str]) -> None:
    assert list(assigned(ast.parse(line))) == expected


def test_every_replacement_in_a_process_that_trains_is_listed(tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "replacements.py")
    done = subprocess.run(
        [nursery.python(), program, str(tmp_path)], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert not done.returncode, done.stderr
    found = set(json.loads(done.stdout.splitlines()[-1]))
    # The search finds what it is made for: methods of objects, module attributes, class members.
    assert {"layers.fused_weight_gradient_mlp_cuda", "_ParamAndGradBuffer.reset"} <= found
    assert "MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize" in found
    names = set().union(*listed().values())
    assert {name for name in found - names if not name.endswith(f".{FOLLOWS_FROM_TORCH}")} == set()
