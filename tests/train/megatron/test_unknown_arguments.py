"""Every function of megatron-core and torch that lt-train replaces refuses an argument that it does not know, by its name.

The functions are those of docs/megatron-core.md. Values there take no arguments: flags, attributes that hold objects, modules and
classes of other packages (test_upstream_signatures.py). Functions of a replaced module are tried, too.
"""

import ast
import contextlib
import importlib
import inspect
import io
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import common
from megatron.core.dist_checkpointing.strategies import filesystem_async as upstream_filesystem_async
from replacement_page import functions, listed, upstreams
from torch.distributed import distributed_c10d as torch_c10d
from torch.distributed.checkpoint import filesystem

from lt_shared.console import BadConfig
from lt_train.megatron import (
    cpu_backend,
    dcp_filesystem,
    dist_checkpointing_serialization,
    distrib_optimizer,
    distributed_c10d,
    filesystem_async,
    fsdp_param_group,
    optimizer_optimizer,
    param_and_grad_buffer,
    strategies_common,
    tensor_parallel_random,
    token_dispatcher,
    torch_compile,
    torch_serialization,
)
from lt_train.megatron.tensor_parallel_layers import WeightGradientExtension
from lt_train.megatron.upstream import Upstream, refuse_unknown
from lt_train.models.mlps.router import Router
from lt_train.parallel.fsdp import FullySharded

UNSET: Any = None


def nothing(*arguments: Any) -> Any:
    """What the replacements call in this test."""


# A replacement with the arguments that it is called with today: all those by position, and none by name.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


def weight_gradients() -> Iterator[dict[str, Call]]:
    extension = WeightGradientExtension(nothing, nothing)
    tensors = torch.zeros(2, 1), torch.zeros(2, 3), torch.zeros(3, 1)
    yield {
        f"fused_weight_gradient_mlp_cuda.{name}": (getattr(extension, name), tensors)
        for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16")
    }


def buffers() -> Iterator[dict[str, Call]]:
    buffer = SimpleNamespace()
    param_and_grad_buffer.replace_reset(buffer, nothing)
    yield {"_ParamAndGradBuffer.reset": (buffer.reset, ())}


def sharded_optimizers() -> Iterator[dict[str, Call]]:
    outer = SimpleNamespace()
    distrib_optimizer.update_by(outer, UNSET, nothing)
    distrib_optimizer.save_local_shards(outer, nothing)
    yield of_object("DistributedOptimizer", outer) | {
        "DistributedOptimizer._copy_model_params_to_main_params": (outer._copy_model_params_to_main_params, (None,)),
        "DistributedOptimizer.sharded_param_state_fully_reshardable": (
            outer.sharded_param_state_fully_reshardable,
            ({}, True, {}),
        ),
        "DistributedOptimizer.load_parameter_state_from_fully_reshardable": (
            outer.load_parameter_state_from_fully_reshardable,
            ({},),
        ),
    }


def optimizers() -> Iterator[dict[str, Call]]:
    outer = SimpleNamespace()
    optimizer_optimizer.update_by(outer, UNSET, nothing, nothing, nothing)
    yield of_object("Float16OptimizerWithFloat16Params", outer) | {
        "Float16OptimizerWithFloat16Params._copy_model_params_to_main_params": (
            outer._copy_model_params_to_main_params,
            (None,),
        ),
        "Float16OptimizerWithFloat16Params.state_dict": (outer.state_dict, (True,)),
        "Float16OptimizerWithFloat16Params.load_state_dict": (outer.load_state_dict, ({},)),
    }


def of_object(owner: str, instance: SimpleNamespace) -> dict[str, Call]:
    return {f"{owner}.{name}": (function, ()) for name, function in vars(instance).items() if callable(function)}


def fsdp_groups() -> Iterator[dict[str, Call]]:
    group = SimpleNamespace()
    fsdp_param_group.replace_gathering(group, nothing, nothing)
    yield {
        "FSDPParamGroup.unshard": (group.unshard, (True,)),
        "FSDPParamGroup.wait_for_unshard": (group.wait_for_unshard, ()),
    }


def checkpoint_readers() -> Iterator[dict[str, Call]]:
    reader: Any = filesystem.FileSystemReader
    of_reader = SimpleNamespace(create_stream=nothing)
    with dcp_filesystem.read_by(nothing, nothing, nothing), dcp_filesystem.open_by(of_reader, nothing):
        yield {
            "pickle.load": (filesystem.pickle.load, (io.BytesIO(),)),
            "FileSystemReader._slice_file": (partial(reader._slice_file, UNSET), (io.BytesIO(), None)),
            "FileSystemReader.read_data": (partial(reader.read_data, UNSET), (None, None)),
            "FileSystem.create_stream": (of_reader.create_stream, ("path", "rb")),
        }


def torch_load() -> Iterator[dict[str, Call]]:
    with torch_serialization.load_by(nothing):
        yield {"torch.load": (torch.load, (io.BytesIO(), "cpu", None))}


def common_states() -> Iterator[dict[str, Call]]:
    replacements = dist_checkpointing_serialization
    with replacements.load_common_by(nothing), replacements.save_config_by(nothing):
        assert dist_checkpointing.load_common_state_dict is serialization.load_common_state_dict
        yield {
            "serialization.load_common_state_dict": (serialization.load_common_state_dict, ("directory",)),
            "serialization.save_config": (serialization.save_config, (None, "directory")),
        }


def common_files() -> Iterator[dict[str, Call]]:
    """0.19 has no such class."""
    present = getattr(common, "TorchCommonSaveStrategy", None)
    strategy: Any = type("TorchCommonSaveStrategy", (), {"save_common": nothing})
    common.TorchCommonSaveStrategy = strategy
    try:
        with strategies_common.save_common_by(nothing):
            yield {"TorchCommonSaveStrategy.save_common": (strategy().save_common, ({}, "directory"))}
    finally:
        common.TorchCommonSaveStrategy = present
        if present is None:
            del common.TorchCommonSaveStrategy


def checkpoint_writers() -> Iterator[dict[str, Call]]:
    writer: Any = upstream_filesystem_async.FileSystemWriterAsync
    before = {name: vars(writer)[name] for name in ("prepare_write_data", "get_save_function_and_args", "finish")}

    def calls() -> dict[str, Call]:
        return {
            "FileSystemWriterAsync.prepare_write_data": (partial(writer.prepare_write_data, UNSET), (None, None)),
            "FileSystemWriterAsync.get_save_function_and_args": (partial(writer.get_save_function_and_args, UNSET), ()),
            "FileSystemWriterAsync.finish": (partial(writer.finish, UNSET), (None, [])),
        }

    try:
        filesystem_async.write_by(nothing, nothing)
        filesystem_async.finish_by(nothing)
        yield calls()
        with filesystem_async.wrap_finish(nothing):
            yield calls()
    finally:
        for name, function in before.items():
            setattr(writer, name, function)


def compilers() -> Iterator[dict[str, Call]]:
    before = torch.compile
    try:
        torch_compile.leave_uncompiled()
        yield {"torch.compile": (torch.compile, (nothing,))}
        torch_compile.compile_when_called()
        yield {"torch.compile": (torch.compile, (nothing,))}
    finally:
        torch.compile = before  # type: ignore[assignment]


def gloo_groups() -> Iterator[dict[str, Call]]:
    with distributed_c10d.share_devices([]):
        group: Any = torch_c10d.ProcessGroupGloo
        yield {"distributed_c10d.ProcessGroupGloo": (group, (UNSET, 0, 1, UNSET))}


def generators() -> Iterator[dict[str, Call]]:
    read, set_to = tensor_parallel_random._get_cpu_rng_state, tensor_parallel_random._set_cpu_rng_state
    yield {
        "random._get_cuda_rng_state": (read, (-1, True, True)),
        "random._set_cuda_rng_state": (set_to, (torch.get_rng_state(), -1, True)),
    }


def dispatchers() -> Iterator[dict[str, Call]]:
    dispatcher = SimpleNamespace(input_splits=None, output_splits=None)
    count = partial(token_dispatcher._counts_as_arrays, dispatcher)
    yield {"MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize": (count, ("before_permutation_1", None))}


def cuda_functions() -> Iterator[dict[str, Call]]:
    given: dict[str, tuple[Any, ...]] = dict.fromkeys(cpu_backend.CUDA_FUNCTIONS, (0,))
    given |= {"current_device": (), "empty_cache": (), "Stream": (0, 0)}
    yield {f"cuda.{name}": (function, given[name]) for name, function in cpu_backend.CUDA_FUNCTIONS.items()} | {
        "Tensor.cuda": (partial(cpu_backend._stay, torch.zeros(1)), (0, True)),
        "Tensor.type": (partial(cpu_backend._type_under_cuda_name(torch.Tensor.type, "cuda"), torch.zeros(1)), (None, True)),
    }


FILES: dict[str, Callable[[], Iterator[dict[str, Call]]]] = {
    "megatron/cpu_backend.py": cuda_functions,
    "megatron/dcp_filesystem.py": checkpoint_readers,
    "megatron/dist_checkpointing_serialization.py": common_states,
    "megatron/distrib_optimizer.py": sharded_optimizers,
    "megatron/distributed_c10d.py": gloo_groups,
    "megatron/filesystem_async.py": checkpoint_writers,
    "megatron/fsdp_param_group.py": fsdp_groups,
    "megatron/optimizer_optimizer.py": optimizers,
    "megatron/param_and_grad_buffer.py": buffers,
    "megatron/strategies_common.py": common_files,
    "megatron/tensor_parallel_layers.py": weight_gradients,
    "megatron/tensor_parallel_random.py": generators,
    "megatron/token_dispatcher.py": dispatchers,
    "megatron/torch_compile.py": compilers,
    "megatron/torch_serialization.py": torch_load,
}
SIZES: dict[str, tuple[Any, ...]] = {"full": ((1,), 1)} | dict.fromkeys(
    ("empty_like", "zeros_like", "ones_like"), (torch.zeros(1),)
)
# Replacements that pass all arguments on to torch, which refuses them.
PASSED_ON: dict[str, Call] = {
    f"torch.{name}": (cpu_backend._on_cpu(getattr(torch, name), "cuda"), SIZES.get(name, (1,))) for name in cpu_backend.FACTORIES
} | {
    f"Optimizer.{name}": (partial(getattr(torch.optim.Optimizer, name), torch.optim.SGD([torch.zeros(1)])), arguments)
    for name, arguments in {"add_param_group": ({},), "load_state_dict": ({},), "state_dict": (), "zero_grad": ()}.items()
}
FUNCTIONS = functions()
LISTED = {name for names in listed().values() for name in names}
REFUSED_HERE = sorted(LISTED & set(FUNCTIONS) - set(PASSED_ON))


@contextlib.contextmanager
def calls_of(name: str) -> Iterator[Iterator[Call]]:
    """Every replacement of the function `name`, installed while it is called."""
    states = FILES[FUNCTIONS[name][0]]()
    try:
        yield (state[name] for state in states)
    finally:
        # Puts upstream's functions back.
        states.close()  # type: ignore[attr-defined]


def refuses(call: Call, name: str, upstream: Upstream) -> None:
    function, arguments = call
    with pytest.raises(BadConfig, match="the argument later_feature, which lt-train's replacement") as caught:
        function(*arguments, later_feature=True)
    assert name in str(caught.value)
    assert metadata.version(upstream.package) in str(caught.value)
    assert caught.value.hint == f"install {upstream.package} {' or '.join(upstream.versions)}"
    with pytest.raises(BadConfig, match="the argument number 1, which"):
        function(*arguments, True)


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_an_unknown_argument_is_refused_by_name(name: str) -> None:
    _, upstream, _ = FUNCTIONS[name]
    with calls_of(name) as calls:
        replacements = [refuses(call, name, upstream) for call in calls]
        assert replacements


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("megatron/tensor_parallel_layers.py", "fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32"),
        ("megatron/tensor_parallel_layers.py", "fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp16"),
        ("megatron/dcp_filesystem.py", "pickle.load"),
    ],
)
def test_functions_of_a_replaced_module_refuse_it_too(file: str, name: str) -> None:
    (upstream,) = upstreams()[file]
    for state in FILES[file]():
        refuses(state[name], name, upstream)


@pytest.mark.parametrize("name", PASSED_ON)
def test_what_is_passed_on_is_refused_by_torch(name: str) -> None:
    assert name in FUNCTIONS
    function, arguments = PASSED_ON[name]
    with pytest.raises(TypeError, match="later_feature"):
        function(*arguments, later_feature=True)


@pytest.mark.parametrize("name", sorted(set(REFUSED_HERE) - {"distributed_c10d.ProcessGroupGloo"}))
def test_what_it_is_called_with_today_and_none_are_taken(name: str) -> None:
    """A gloo group would need a store."""
    with calls_of(name) as calls, torch.random.fork_rng(devices=[]):
        for function, arguments in calls:
            function(*arguments)
            function(*arguments, later_feature=None)


@pytest.mark.parametrize("name", [name for name in REFUSED_HERE if isinstance(FUNCTIONS[name][2], str)])
def test_the_calls_of_this_test_have_all_arguments_by_position(name: str) -> None:
    signature = eval(f"inspect.signature(lambda {str(FUNCTIONS[name][2])[1:-1]}: None)", {"inspect": inspect})
    kinds = [each.kind for each in signature.parameters.values() if each.name != "self"]
    with calls_of(name) as calls:
        assert {len(arguments) for _, arguments in calls} == {kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)}


# Methods of lt-train's own classes in the place of their bases'.
OVERRIDES: dict[str, Callable[..., Any]] = {
    "TopKRouter.routing": partial(Router.routing, SimpleNamespace(by_kernel=True), torch.zeros(1, 2)),  # type: ignore[arg-type]
    "DistributedDataParallel.finish_grad_sync": partial(FullySharded.finish_grad_sync, UNSET),
    "Module.named_parameters": partial(FullySharded.named_parameters, UNSET),
    "MegatronModule.sharded_state_dict": partial(FullySharded.sharded_state_dict, UNSET, metadata={}),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_refuses_it_too(name: str) -> None:
    with pytest.raises(BadConfig, match=rf"passes {name} the argument later_feature, which lt-train's replacement") as caught:
        OVERRIDES[name](later_feature=True)
    assert caught.value.hint == "install megatron-core 0.16.1 or 0.19.2"
    with pytest.raises(BadConfig, match="the argument number 1"):
        OVERRIDES[name](object())


def test_what_changes_nothing_is_taken() -> None:
    refuse_unknown("f", (None, None), {"a": None, "b": 3, "c": 1}, accepted=("b",), neutral={"c": 1})
    with pytest.raises(BadConfig, match="the argument c"):
        refuse_unknown("f", (), {"c": 2}, neutral={"c": 1})


def test_no_replacement_has_unused_arguments_that_it_does_not_look_at() -> None:
    """Each function that swallows arguments calls the check."""
    package = importlib.import_module("lt_train").__file__
    assert package
    unchecked = []
    for path in Path(package).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = {each.arg for each in (node.args.vararg, node.args.kwarg) if each}
            swallowed = names & {"unused", "unknown", "unknown_named", "_", "ignored"}
            calls = {ast.unparse(call.func).rpartition(".")[2] for call in ast.walk(node) if isinstance(call, ast.Call)}
            if swallowed and "refuse_unknown" not in calls:
                unchecked.append(f"{path.name}: {node.name}")
    assert not unchecked
