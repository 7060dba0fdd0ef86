"""What is asked of quack, which needs a Hopper GPU: here is another in its place."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lt_train.kernels import gemm_epilogues


@pytest.mark.parametrize(("columns", "expected"), [(384, 192), (512, 128), (128, 128), (128_256, 192), (151_936, 128)])
def test_tiles_are_whole(columns: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the matrix a sum would have the exponentials of zeros."""
    told: dict[str, Any] = {}

    def exponential(rows: torch.Tensor, weight: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
        told.update(options, shapes=(rows.shape, weight.shape))
        return {"D": torch.ones(1), "total": torch.zeros(1)}

    monkeypatch.setattr(gemm_epilogues, "_epilogues", lambda: SimpleNamespace(exponential=exponential))
    monkeypatch.setattr(gemm_epilogues, "configuration", lambda columns: columns)
    offsets = torch.arange(6.0)
    result, total = gemm_epilogues.exponential_gemm(torch.ones(6, 8), torch.ones(columns, 8), offsets)
    assert (result.item(), total.item()) == (1, 0)
    assert told["config"] == expected
    assert columns % told["config"] == 0
    assert told["shapes"] == ((6, 8), (8, columns))
    assert torch.equal(told["offset"], offsets.view(1, 6))


def test_the_exponential(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced: e^logit over 2^offset."""

    def module(name: str, **members: Any) -> None:
        made = ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    def keep(**options: Any) -> Any:
        return lambda function: (function, options)

    cache = SimpleNamespace(CACHE_DIR=None)
    monkeypatch.setenv("QUACK_CACHE_DIR", "/private/quack")
    module("quack", cache=cache)
    module("quack.gemm_runtime", identity=SimpleNamespace(_is_extern_function=lambda function: False))
    module("quack.activation", swiglu=None, dswiglu=None)
    module("quack.epilogue", gemm_epilogue=keep, unpack=None)
    module("quack.epilogue.math", pexp2=lambda value: 2**value)
    module("quack.epilogue.ops", ColVecLoad=lambda name: ("load", name), ColVecReduce=lambda name: ("sum", name))
    function, options = gemm_epilogues._Epilogues().exponential
    assert options == {"ops": {"offset": ("load", "offset")}, "reduces": {"total": ("sum", "total")}}
    result = function(3.0, 5.0)
    assert result["D"] == result["total"] == pytest.approx(torch.tensor(3.0).exp().item() / 32)
    assert cache.CACHE_DIR == "/private/quack"


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """quack's own module, of the version that the extra pins; it imports nothing of the rest."""
    written = tomllib.loads((Path(__file__).parents[3] / "tools/train/pyproject.toml").read_text())
    (pinned,) = (line for line in written["project"]["optional-dependencies"]["flash"] if line.startswith("quack-kernels"))
    target = tmp_path_factory.mktemp("shared")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, pinned.partition(";")[0]]
    subprocess.run(command, check=True, capture_output=True)
    return _loaded("identity", target / "quack/gemm_runtime/identity.py")


def _loaded(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cutlass_may_lie_anywhere(identity: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """quack refuses functions with variables that it cannot hash, unless they lie in site-packages; cutlass has one."""
    source = "import contextvars\nstate = contextvars.ContextVar('state')\ndef multiply(x):\n    return state.get() * x\n"
    functions = []
    for name in ("cutlass", "another"):
        (tmp_path / f"{name}.py").write_text(source)
        functions.append(_loaded(name, tmp_path / f"{name}.py").multiply)
    of_cutlass, of_another = functions
    for function in functions:
        with pytest.raises(TypeError, match="epilogue fn depends on <ContextVar"):
            identity.function_semantic_key(function)
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_runtime", SimpleNamespace(identity=identity))
    for _ in range(2):
        gemm_epilogues._let_cutlass_lie_anywhere()
        assert identity.function_semantic_key(of_cutlass) == ("extern_function", "cutlass", "multiply")
        with pytest.raises(TypeError, match="epilogue fn depends on <ContextVar"):
            identity.function_semantic_key(of_another)
