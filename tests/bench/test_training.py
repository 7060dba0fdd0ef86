"""The parts of the training benchmark that need no GPU: the bare loop's arithmetic, the floor's products, and the tables."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import train
from torch.distributed.run import get_args_parser
from training import floor, lt_train_bench, results, torch_loop
from training.contenders import CONTENDERS, Contender
from training.workload import SHAPES, Workload

WORK = Workload(SHAPES["tiny"], "bf16", 1, "cpu", 1, 2, {"attention": "cudnn"})


def session(**changes: Any) -> dict[str, Any]:
    record = {"contender": "lt-train", "shape": "llama3.2-1b", "gpus": 1, "micro_batch": 4, "precision": "bf16", "parameters": 1}
    record |= {"tokens_per_step": 32768, "step_seconds": [0.5, 0.4, 9.0], "memory_bytes": 3 << 30, "settings": "defaults"}
    found: dict[str, Any] = {"v": 1, "date": "2026-11-22", "device": "NVIDIA H200", "skipped": [], "losses": []}
    floors = {"bf16_seconds": 0.4, "fp8_seconds": 0.3, "square_tflops": 790.0, "copy_tb_per_second": 4.2}
    return found | {
        "floors": {"llama3.2-1b": floors},
        "measurements": [record | {"versions": {"torch": "2.11.0"}} | changes],
    }


def test_a_workload_survives_the_way_to_its_process() -> None:
    assert Workload.from_json(WORK.to_json()) == WORK
    assert (WORK.tokens_per_step, WORK.micro_batches) == (512, 2)


def test_labels_are_the_tokens_that_follow() -> None:
    tokens, labels = next(WORK.batches())
    assert tokens.shape == labels.shape == (2, 128)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])


@pytest.mark.parametrize("shape", ["llama3.2-1b", "llama3-8b-width"])
def test_the_floor_holds_every_product_of_a_step(shape: str) -> None:
    architecture, tokens = results.architecture_of(shape), 8192
    summed = sum(product.flops * product.count for product in floor.products(architecture, tokens))
    attention = 6 * architecture.num_layers * architecture.query_size * tokens
    assert summed == tokens * (architecture.flops_per_token(tokens) - attention)


def test_the_loss_and_its_gradients_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 8, generator=generator, requires_grad=True) for rows in (50, 30))
    labels = torch.randint(30, (50,), generator=generator)
    loss = torch_loop.HeadLoss.apply(hidden, weight, labels, 1 / 50, torch_loop.softmax_loss)
    loss.backward()
    found = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), labels)
    expected.backward()
    torch.testing.assert_close((loss, *found), (expected, hidden.grad, weight.grad))


def test_the_loss_in_several_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels = torch.randn(50, 8), torch.randn(30, 8), torch.randint(30, (50,))
    whole = torch_loop.HeadLoss.apply(hidden, weight, labels, 1.0, torch_loop.softmax_loss)
    monkeypatch.setattr(torch_loop, "LOSS_ROWS", 16)
    torch.testing.assert_close(torch_loop.HeadLoss.apply(hidden, weight, labels, 1.0, torch_loop.softmax_loss), whole)


def test_one_pass_updates_as_torch_does() -> None:
    ours, theirs = ([torch.nn.Parameter(torch.full(size, 0.5)) for size in ((5, 7), (9,))] for _ in range(2))
    kept = {"lr": torch_loop.LEARNING_RATE, "betas": (torch_loop.BETA1, torch_loop.BETA2), "eps": torch_loop.EPSILON}
    groups = [{"params": [theirs[0]], "weight_decay": torch_loop.WEIGHT_DECAY}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, **kept)
    optimizer = torch_loop.AdamW(ours, lambda function, **options: function)
    for step in range(3):
        for parameter, other in zip(ours, theirs, strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            other.grad = parameter.grad.clone()
        torch.nn.utils.clip_grad_norm_(theirs, torch_loop.CLIP)
        optimizer.step()
        reference.step()
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-6, atol=1e-7)


def test_the_bare_loop_trains_the_model_that_was_asked_for() -> None:
    result = torch_loop.run(WORK)
    assert (result.parameters, result.tokens_per_step) == (WORK.architecture.parameters(), 512)
    assert (len(result.step_seconds), len(result.losses)) == (2, 3)
    assert all(7 < loss < 8 for loss in result.losses)


def test_a_table_counts_as_lt_train_does() -> None:
    (table,) = results.tables(session())
    (row,) = table.rows
    flops = results.architecture_of("llama3.2-1b").flops_per_token(8192) * 32768 / 0.5
    mfu = f"{flops / 989e12:.1%}"
    assert row == ["lt-train", "4", "65,536", f"{flops / 1e12:,.1f}", mfu, "3.0", "80.0%"]
    assert "Kernel roofline: 400 ms, with layers in fp8 300 ms" in table.notes[0]
    assert "torch 2.11.0" in table.notes[1]
    assert table.items == ["lt-train: defaults."]


def test_fp8_is_compared_with_its_own_floor() -> None:
    (table,) = results.tables(session(precision="fp8"))
    assert table.rows[0][-1] == "60.0%"


def test_our_fastest_is_compared_with_the_fastest_of_each_other() -> None:
    slower = session(contender="lt-train-less-memory", step_seconds=[0.6])
    others = [session(contender="torchtitan", step_seconds=[0.8]), session(contender="torchtitan-graphs", step_seconds=[0.75])]
    in_fp8 = session(contender="lt-train-fp8", precision="fp8")
    (table,) = results.tables(results.merged([session(), slower, *others, in_fp8]))
    assert "lt-train trains 1.500x torchtitan-graphs." in table.notes
    assert not any("lt-train-fp8 trains" in note for note in table.notes)


def test_several_gpus_are_compared_with_one() -> None:
    two = session(gpus=2, tokens_per_step=65536, step_seconds=[0.625])
    _, table = results.tables(results.merged([session(), two]))
    assert table.rows[0][2] == "52,429"
    assert "lt-train keeps 80.0% of its speed on one GPU." in table.notes


def test_who_cannot_run_says_why() -> None:
    assert CONTENDERS["torchtitan"].obstacle("cpu", 1) == "needs a GPU"
    assert CONTENDERS["torch-loop"].obstacle("cuda", 2) == "is for one GPU"
    assert CONTENDERS["lt-train-fsdp"].obstacle("cuda", 1) == "is for several GPUs"
    assert (
        Contender("torch_loop", "bf16", 1, {}, ("no_such.package",)).obstacle("cuda", 1) == "no_such.package cannot be imported"
    )
    assert CONTENDERS["lt-train"].obstacle("cpu", 1) is None


def test_torchrun_leaves_our_options_alone(tmp_path: Path) -> None:
    work = dataclasses.replace(WORK, gpus=2)
    session = train.Session(argparse.Namespace(device="cpu", logs=tmp_path, options=""))
    command = session.command(train.Task("torchtitan", "", work, 1, print))
    parsed = get_args_parser().parse_args(command[command.index("torch.distributed.run") + 1 :])
    assert (parsed.nproc_per_node, parsed.training_script) == ("2", train.__file__)
    assert parsed.training_script_args == ["--contender", "torchtitan", "--work", work.to_json()]


class Waiting:
    """In the place of a process: writes down what happens to it."""

    log = Path("log")

    def __init__(self, name: str, events: list[str]):
        self.name, self.events = name, events
        events.append(f"{name} gets ready")

    def finish(self, seconds: float) -> tuple[dict[str, Any], str]:
        self.events.append(f"{self.name} goes")
        return {}, "exit code 0"

    def end(self) -> None:
        self.events.append(f"{self.name} is ended")


def test_the_next_gets_ready_while_one_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(train, "device_name", lambda device: "NVIDIA H200")
    chosen = argparse.Namespace(device="cuda", logs=tmp_path, seconds=100, json=None)
    session = train.Session(chosen)
    monkeypatch.setattr(session, "start", lambda task: Waiting(task.name, events))
    seconds = {"one": 10, "long": 1000, "two": 10}
    session.run([train.Task(name, name, WORK, length, lambda found: None) for name, length in seconds.items()])
    assert events == ["one gets ready", "long gets ready", "one goes", "two gets ready", "long is ended", "two goes"]
    assert [entry["what"] for entry in session.found["skipped"]] == ["long"]


def test_what_a_rank_prints_is_read_although_it_keeps_the_descriptor_to_itself(tmp_path: Path) -> None:
    """As lt-train's ranks do: libraries get standard error in its place."""
    before = sys.stdout
    with (tmp_path / "printed").open("w+") as printed:
        with lt_train_bench.output_into(printed):
            data = os.dup(sys.stdout.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            sys.stdout = open(data, "w")
            print("result")
        printed.seek(0)
        assert printed.read() == "result\n"
    assert sys.stdout is before
    print("after")
