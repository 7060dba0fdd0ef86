"""TorchTitan's own trainer on made-up tokens, with the settings that are fastest where they run.

Its Llama 3 from its own building blocks, its FSDP2 (which on one GPU only casts weights to bf16), its compiled layers and loss,
its fused AdamW; no activation checkpointing. `settings` say what is tried: `attention` sdpa, flex, flex_flash or varlen,
`cuda_graphs`, `fused_swiglu`, `real_rope`, whether FSDP2 `keeps_gathered` weights for the backward pass, and for fp8 the recipe
of torchao.

TorchTitan 0.3 is written for a newer torch than its wheel asks for. What torch 2.11 lacks is made good here and said in the
settings of the result; with a newer torch nothing of it happens.
"""

import dataclasses
import importlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed.fsdp
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.varlen import varlen_attn

from training.workload import Result, StepClock, Workload, peak_memory, say

LEARNING_RATE = 1e-4
# torch 2.11 lacks what TorchTitan's default back end needs, and its FSDP2 cannot sum the gradients of the chunked loss.
IS_TORCH_NEW = hasattr(torch.distributed.fsdp, "DataParallelMeshDims")
NEVER = 1_000_000


def prepare(work: Workload) -> None:
    leave_out_data_loading()
    adapt_to_torch()
    names = ["torchtitan.trainer", "torchtitan.models.llama3", "torch._inductor.compile_fx"]
    names += ["torchtitan.components.quantization"] if work.precision == "fp8" else []
    names += ["flash_attn.cute.interface"] if work.settings["attention"] == "flex_flash" else []
    for name in names:
        importlib.import_module(name)


def run(work: Workload) -> Result:
    notes = adapt_to_torch()
    from torchtitan.trainer import Trainer

    notes += adapt_attention(work.settings["attention"])
    clock = StepClock(work)
    losses: list[Tensor] = []

    class TimedTrainer(Trainer):
        """Marks the end of every step; keeps the losses without waiting for them."""

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            clock.mark()

        def forward_backward_step(self, **inputs: Any) -> Tensor:
            loss = super().forward_backward_step(**inputs)
            losses.append(loss.detach().clone())
            return loss

    with tempfile.TemporaryDirectory() as place:
        trainer = TimedTrainer(configuration(work, place))
        count = sum(parameter.numel() for parameter in trainer.model_parts[0].parameters())
        clock.mark()
        try:
            trainer.train()
        finally:
            trainer.close()
    # A rank has its share of the sum over all tokens; ranks that share layers or samples go through all micro batches together.
    replicas = 1 if work.settings.get("shared") else work.gpus
    count_of_step = work.micro_batches * work.gpus // replicas
    steps = [torch.stack(losses[start : start + count_of_step]).sum() for start in range(0, len(losses), count_of_step)]
    values = [float(loss) * replicas for loss in steps]
    say(f"losses {values[0]:.4f} to {values[-1]:.4f}")
    versions = {name: metadata.version(name) for name in ("torch", "torchtitan")}
    if work.precision == "fp8":
        versions["torchao"] = metadata.version("torchao")
    described = ", ".join([*described_settings(work), *notes])
    return Result(count, work.tokens_per_step * work.gpus, clock.seconds(), peak_memory(work.device), values, described, versions)


def described_settings(work: Workload) -> list[str]:
    settings = work.settings
    graphs = "on" if settings.get("cuda_graphs") else "off"
    parts = [f"{settings['attention']} attention, compiled layers and loss, no checkpointing, CUDA graphs {graphs}"]
    if settings.get("fused_swiglu"):
        parts.append("its fused SwiGLU")
    if settings.get("real_rope"):
        parts.append("its rotary embedding without complex numbers")
    if settings.get("shared"):
        parts.append(
            {"tensor": "asynchronous tensor parallelism", "context": "FSDP2 and context parallelism"}[settings["shared"]]
        )
    elif work.gpus > 1:
        parts.append("FSDP2, gradients summed in float32")
    if settings.get("keeps_gathered"):
        parts.append("weights kept gathered between passes")
    if work.precision == "fp8":
        parts.append(f"torchao float8 {settings['recipe']}")
    return parts


def configuration(work: Workload, place: str) -> Any:
    """TorchTitan's Trainer.Config."""
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.config.configs import DebugConfig
    from torchtitan.config.override import OverrideConfig
    from torchtitan.trainer import Trainer

    class MadeUpTokens(BaseDataLoader):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, *, dp_rank: int, **unused: Any):
            self.batches = work.batches(seed=dp_rank)

        def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
            positions = torch.arange(work.shape.sequence_length).expand(work.shape.micro_batch, -1).contiguous()
            for tokens, labels in self.batches:
                yield {"input": tokens, "positions": positions}, labels

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    class NoTokenizer(BaseTokenizer):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **unused: Any):
            super().__init__()

        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            raise NotImplementedError

        def decode(self, *args: Any, **kwargs: Any) -> str:
            raise NotImplementedError

        def get_vocab_size(self) -> int:
            return work.architecture.vocab_size

    loss = CrossEntropyLoss.Config(global_vocab_size=work.architecture.vocab_size)
    imports = ["torchtitan.overrides.fused_swiglu.fused_swiglu"] if work.settings.get("fused_swiglu") else []
    return Trainer.Config(
        model_spec=model_spec(work),
        dump_folder=place,
        tokenizer=NoTokenizer.Config(),
        dataloader=MadeUpTokens.Config(),
        loss=ChunkedLossWrapper.Config(loss_fn=loss) if IS_TORCH_NEW else loss,
        optimizer=default_adamw(lr=LEARNING_RATE),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        metrics=MetricsProcessor.Config(log_freq=NEVER),
        training=TrainingConfig(
            local_batch_size=work.shape.micro_batch,
            global_batch_size=work.shape.samples * work.gpus,
            seq_len=work.shape.sequence_length,
            steps=work.warmup_steps + work.steps,
            disable_cuda_graphs=not work.settings.get("cuda_graphs"),
        ),
        parallelism=ParallelismConfig(
            spmd_backend="spmd_types" if IS_TORCH_NEW else "partial_dtensor",
            fsdp_reshard_after_forward="never" if work.settings.get("keeps_gathered") else "default",
            tensor_parallel_degree=work.gpus if work.settings.get("shared") == "tensor" else 1,
            context_parallel_degree=work.gpus if work.settings.get("shared") == "context" else 1,
        ),
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint=None,
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=work.settings.get("shared") == "tensor"),
        debug=DebugConfig(enable_structured_logging=False),
        override=OverrideConfig(imports=imports),
    )


def model_spec(work: Workload) -> Any:
    """The architecture put together as TorchTitan's registry does for the sizes that it names; equal to its 1B and 8B."""
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.model import Llama3Model

    architecture, name = work.architecture, work.settings["attention"]
    hidden = architecture.hidden_size
    scaling = {}
    # The other kind has no such scaling, which changes the numbers and not the work.
    if architecture.rope_scaling and not work.settings.get("real_rope"):
        scaling = {"scaling": "llama", "scaling_factor": architecture.rope_scaling.factor}
    kind = CosSinRoPE if work.settings.get("real_rope") else ComplexRoPE
    rope = kind.Config(
        dim=architecture.kv_channels,
        max_seq_len=architecture.max_position_embeddings,
        theta=architecture.rotary_base,
        **scaling,
    )
    layers = llama3._build_llama3_layers(
        n_layers=architecture.num_layers,
        dim=hidden,
        n_heads=architecture.num_attention_heads,
        n_kv_heads=architecture.num_query_groups,
        hidden_dim=architecture.ffn_hidden_size,
        rope=rope,
        attn_backend="flex" if name == "sdpa" else name,
    )
    if name == "sdpa":
        for layer in layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
    embedding_init = llama3._EMBEDDING_SKIP_INIT if architecture.tie_embeddings else llama3._EMBEDDING_INIT
    config = Llama3Model.Config(
        dim=hidden,
        vocab_size=architecture.vocab_size,
        enable_weight_tying=architecture.tie_embeddings,
        tok_embeddings=Embedding.Config(num_embeddings=architecture.vocab_size, embedding_dim=hidden, param_init=embedding_init),
        norm=RMSNorm.Config(normalized_shape=hidden, eps=architecture.norm_epsilon, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=hidden, out_features=architecture.vocab_size, param_init=llama3._output_linear_init(hidden)
        ),
        layers=layers,
    )
    spec = llama3.model_registry("debugmodel", attn_backend="flex")
    if work.precision == "fp8":
        from torchtitan.components.quantization import Float8LinearConverter

        converter = Float8LinearConverter.Config(
            recipe_name=work.settings["recipe"], filter_fqns=["lm_head"], model_compile_enabled=True
        )
        config = converter.build().convert(config)
    return dataclasses.replace(spec, flavor=work.shape.model, model=config)


def adapt_to_torch() -> list[str]:
    """Before TorchTitan is imported: names that it imports and torch lacks. Returns what was done."""
    # Set by torchrun for several GPUs.
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    if IS_TORCH_NEW:
        return []
    # Only its other back ends make one.
    torch.distributed.fsdp.DataParallelMeshDims = object
    # It shortens the time-outs after the first step.
    torch.distributed.set_timeout = lambda timeout, group: None
    return ["for torch 2.11 partial_dtensor and the loss in one chunk"]


def leave_out_data_loading() -> None:
    """Before TorchTitan is imported: stand-ins for the packages that read its datasets, which take seconds to import."""
    for package in ("datasets", "datasets.distributed", "torchdata", "torchdata.stateful_dataloader"):
        sys.modules.setdefault(package, MagicMock(__path__=[], __spec__=None))
    sys.modules["torchdata.stateful_dataloader"].StatefulDataLoader = type("StatefulDataLoader", (), {})


def adapt_attention(name: str) -> list[str]:
    """Before the model is built: attention with the arguments that this torch knows, varlen without flash-attn-3 if need be."""
    from torchtitan.models.common import attention

    attention._compiled_create_block_mask = _with_known_options(attention._compiled_create_block_mask, create_block_mask)
    attention.varlen_attn = _with_known_options(attention.varlen_attn, varlen_attn)
    if name != "varlen":
        return []
    from torchtitan.tools import utils

    wanted = utils.get_cuda_flash_attention_impl()
    try:
        if wanted:
            activate_flash_attention_impl(wanted)
    except (ImportError, RuntimeError, ValueError):
        utils.get_cuda_flash_attention_impl = lambda: None
        return [f"by torch's own kernel, for {wanted} is not installed"]
    return []


def _with_known_options(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    known = inspect.signature(original).parameters
    return lambda *args, **options: function(*args, **{name: value for name, value in options.items() if name in known})
