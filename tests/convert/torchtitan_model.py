"""Run TorchTitan's own Llama, optimizer and checkpoint manager on the CPU in processes of its own.

    python torchtitan_model.py JOBS.json RANK WORLD_SIZE RENDEZVOUS_FILE

Each job names an architecture and what to do with it: `load` a checkpoint (`model_only`, or whole but for the data position),
train some `steps`, `save` into a run's folder, and write `logits` of given tokens and the `losses` of the steps. The ranks share
the model by FSDP. TorchTitan's GPU kernels for experts need triton; nothing here calls them, so a stand-in is imported for them.
"""

import dataclasses
import json
import pickle
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from lt_shared.models.architecture import Architecture
from lt_shared.models.rope_scaling import AnyScaling, RopeScaling, YarnScaling

for kernels in ("torchtitan.distributed.minimal_async_ep", "torchtitan.distributed.minimal_async_ep.api"):
    sys.modules[kernels] = MagicMock(__path__=[], __spec__=None)

from torchtitan.components.checkpointer.dcp import CheckpointManager  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # noqa: E402
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # noqa: E402

LEARNING_RATE = 1e-2
WARMUP_STEPS = 2
TOTAL_STEPS = 12

_WEIGHT = {"weight": torch.nn.init.normal_}
_ONES = {"weight": torch.nn.init.ones_}


@dataclasses.dataclass
class Progress(Stateful):
    """What TorchTitan's trainer keeps under `train_state`."""

    step: int = 0
    ntokens_seen: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]


class Batches(Stateful):
    """The position in the data, which TorchTitan pickles for every rank."""

    def state_dict(self) -> dict[str, Any]:
        rank = torch.distributed.get_rank()
        return {f"dp_rank_{rank}": pickle.dumps({"taken": 1}), "world_size": torch.distributed.get_world_size()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("the position in the data was to be left alone")


def configuration(architecture: Architecture, fused: bool) -> Llama3Model.Config:
    hidden, vocabulary = architecture.hidden_size, architecture.vocab_size
    norm = RMSNorm.Config(normalized_shape=hidden, eps=architecture.norm_epsilon, param_init=_ONES)
    layer = Llama3TransformerBlock.Config(
        attention_norm=dataclasses.replace(norm),
        ffn_norm=dataclasses.replace(norm),
        attention=make_gqa_config(
            dim=hidden,
            n_heads=architecture.num_attention_heads,
            n_kv_heads=architecture.num_query_groups,
            head_dim=architecture.kv_channels,
            wqkv_param_init=_WEIGHT,
            wo_param_init=_WEIGHT,
            inner_attention=ScaledDotProductAttention.Config(),
            fuse_qkv=fused,
            rope=rope(architecture),
        ),
        feed_forward=make_ffn_config(
            dim=hidden, hidden_dim=architecture.ffn_hidden_size, w1_param_init=_WEIGHT, w2w3_param_init=_WEIGHT
        ),
    )
    return Llama3Model.Config(
        dim=hidden,
        vocab_size=vocabulary,
        enable_weight_tying=architecture.tie_embeddings,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=hidden, param_init=_WEIGHT),
        norm=norm,
        lm_head=Linear.Config(in_features=hidden, out_features=vocabulary, param_init=_WEIGHT),
        layers=[dataclasses.replace(layer) for _ in range(architecture.num_layers)],
    )


def rope(architecture: Architecture) -> ComplexRoPE.Config:
    """Of the channels that rotate, in the models that pair adjacent ones."""
    return ComplexRoPE.Config(
        dim=architecture.rotary_channels,
        max_seq_len=architecture.max_position_embeddings,
        theta=architecture.rotary_base,
        **scaled(architecture.rope_scaling),
    )


def scaled(scaling: AnyScaling | None) -> dict[str, Any]:
    """What TorchTitan's rotary embeddings are told of a scaling. What YaRN does to attention's temperature is the model's."""
    if isinstance(scaling, YarnScaling):
        return {
            "scaling": "yarn",
            "rope_factor": scaling.factor,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
            "original_seq_len": scaling.original_max_position_embeddings,
        }
    if isinstance(scaling, RopeScaling):
        return {
            "scaling": "llama",
            "scaling_factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    assert scaling is None
    return {}


class Run:
    """A model with what TorchTitan's trainer has around it."""

    def __init__(self, job: dict[str, Any]):
        self.architecture = Architecture.from_record(job["architecture"])
        torch.manual_seed(1)
        self.model = configuration(self.architecture, job.get("fused", True)).build()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.1 + ("norm" in name))
        world_size = torch.distributed.get_world_size()
        if world_size > 1:
            mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
            apply_fsdp_to_decoder(self.model, mesh, torch.float32, torch.float32, pp_enabled=False)
            # gloo cannot scale while it sums.
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
        optimizers = dataclasses.replace(default_adamw(LEARNING_RATE), implementation="for-loop")
        self.optimizers = optimizers.build(model_parts=[self.model])
        schedule = LRSchedulersContainer.Config(warmup_steps=WARMUP_STEPS)
        self.schedulers = schedule.build(optimizers=self.optimizers, training_steps=TOTAL_STEPS)
        self.progress = Progress()
        self.losses: list[float] = []

    def manager(self, **settings: Any) -> CheckpointManager:
        return CheckpointManager(
            CheckpointManager.Config(enable=True, keep_latest_k=0, **settings),
            dataloader=Batches(),
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states={"train_state": self.progress},
            sd_adapter=None,
        )

    def step(self) -> None:
        """One step on a batch that depends on the number of the step alone."""
        generator = torch.Generator().manual_seed(self.progress.step)
        tokens = torch.randint(self.architecture.vocab_size, (2, 17), generator=generator)
        logits = self.model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizers.step()
        self.schedulers.step()
        self.optimizers.zero_grad()
        self.progress.step += 1
        self.progress.ntokens_seen += 32
        self.losses.append(loss.item())


def run(job: dict[str, Any]) -> None:
    state = Run(job)
    if "load" in job:
        settings = {"exclude_from_loading": ["dataloader"], "initial_load_model_only": job.get("model_only", True)}
        assert state.manager(folder=job["folder"], initial_load_path=job["load"], **settings).load()
    for _ in range(job.get("steps", 0)):
        state.step()
    if "save" in job:
        manager = state.manager(folder=job["save"], interval=1, last_save_model_only=job.get("model_only", False))
        manager.save(state.progress.step, last_step=job.get("model_only", False))
    if "logits" in job:
        with torch.no_grad():
            logits = state.model(torch.tensor(job["tokens"])).float().numpy()
        if torch.distributed.get_rank() == 0:
            numpy.save(job["logits"], logits)
    if "losses" in job and torch.distributed.get_rank() == 0:
        record = {"losses": state.losses, "step": state.progress.step, "tokens": state.progress.ntokens_seen}
        Path(job["losses"]).write_text(json.dumps(record | {"rates": state.schedulers.schedulers[0].get_last_lr()}))


def main() -> None:
    jobs, rank, world_size, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=int(world_size))
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
