"""A run has torch's optimizers, whatever packages are installed."""

import megatron.core.optimizer
import pytest
import torch
from megatron.core.optimizer import distrib_optimizer as upstream_distrib_optimizer

from lt_train.megatron import distrib_optimizer, optimizer


def test_a_run_has_torchs_adam_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron.core.optimizer, "Adam", object)
    monkeypatch.setattr(megatron.core.optimizer, "USING_PYTORCH_OPTIMIZER", False)
    monkeypatch.setattr(upstream_distrib_optimizer, "HAVE_APEX_OR_TE", True)
    monkeypatch.setattr(upstream_distrib_optimizer, "USING_TE_OPTIMIZER", True)
    optimizer.use_torch_optimizers()
    distrib_optimizer.use_torch_optimizers()
    assert megatron.core.optimizer.Adam is torch.optim.AdamW
    assert megatron.core.optimizer.USING_PYTORCH_OPTIMIZER
    assert not upstream_distrib_optimizer.HAVE_APEX_OR_TE
    assert not upstream_distrib_optimizer.USING_TE_OPTIMIZER
