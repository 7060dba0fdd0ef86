"""The layout that --parallel auto takes, and what `lt-train plan` shows of it for clusters that are not there."""

import dataclasses
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from layouts import assembled, plan_of
from running import train

from lt_shared.console import BadConfig, UsageError
from lt_train.commands.plan_layout import choose, command
from lt_train.config import cluster, kernels
from lt_train.config.checks import problems
from lt_train.config.cluster import GPUS, Cluster
from lt_train.config.run_config import RunConfig
from lt_train.planner import expert_costs, layout_space, measured_speeds, memory_estimate, search
from lt_train.planner.resolve import resolve_run_config
from lt_train.planner.search import ParallelLayout
from lt_train.planner.stage_work import PipelineWork

ROOT = Path(__file__).parents[3]
BF16 = ("--bf16", "--mock-data", "--eval-iters", "0", "--device", "cpu")


def plan(*arguments: str) -> dict[str, Any]:
    result = train("plan", "--json", *arguments)
    assert result.code in (0, 78), result.err
    record: dict[str, Any] = json.loads(result.out)
    assert record["fits"] == (result.code == 0)
    return record


def chosen(model: str, gpu: str, nodes: int, *arguments: str, gpus: int = 8) -> search.Choice:
    from lt_train.cli import command

    words = ["--model", model, *BF16, "--parallel", "auto", *arguments]
    options = command.make_context("lt-train", words).params
    options = {name: value for name, value in options.items() if name not in ("data", "dry_run")}
    cluster = Cluster(GPUS[gpu], nodes, gpus)
    return search.choose(assembled([*words, "--ranks", str(cluster.ranks)]), options, cluster)


def sizes(choice: search.Choice) -> tuple[int, int, int, int]:
    parallel = choice.best.config.parallelism
    return parallel.tensor, parallel.pipeline, parallel.context, parallel.data


def test_a_small_model_is_only_data_parallel() -> None:
    choice = chosen("llama3.2-1b", "h100-80gb", 1, "--global-batch-size", "64")
    assert sizes(choice) == (1, 1, 1, 8)
    assert choice.best.flags == ["--use-distributed-optimizer"]
    assert "a rank holds the whole model" in "; ".join(choice.reasons)


def test_a_larger_model_is_split_within_its_nodes() -> None:
    """Of Llama 3 70B, 141 GB in bf16, each of 64 ranks of 80 GB holds a part; tensor parallelism ends at the node."""
    choice = chosen("llama3.1-70b", "h100-80gb", 8, "--global-batch-size", "1024")
    tensor, pipeline, _, _ = sizes(choice)
    assert (tensor <= 8, tensor * pipeline >= 8) == (True, True)
    assert memory_estimate.estimate(choice.best.config).fullest_rank.total <= search.usable_bytes(choice.cluster)
    assert "--sequence-parallel" in choice.best.flags


def test_the_logits_count_where_they_are_computed() -> None:
    """Llama 3 8B in four stages of eight layers keeps three of them waiting for the last, with its vocabulary of 128k. In two
    stages of 17 and 15 layers the work is equal."""
    choice = chosen("llama3.1-8b", "h200-141gb", 1, "--global-batch-size", "1024", "--seq-length", "8192")
    candidate = {
        (parallel.pipeline, parallel.first_stage_layers, parallel.last_stage_layers): layout.waste
        for layout in (choice.best, *choice.alternatives)
        if (parallel := layout.config.parallelism).tensor * parallel.context == 1 and layout.config.memory.recompute is None
    }
    assert candidate[4, None, None] > candidate[4, None, 5] + 0.1
    assert candidate[2, None, None] > candidate[2, 17, None] + 0.05


def test_layouts_are_put_in_the_order_of_their_measured_speeds() -> None:
    """The waste of each is that of its measurement, and the fastest one is chosen where memory leaves the choice."""
    model = ("--model", "llama3-8b", "--num-layers", "8", "--seq-length", "8192", "--micro-batch-size", "4")
    wastes = {}
    for name, measured in measured_speeds.MEASURED.items():
        words = [*model, "--global-batch-size", "8", *BF16, "--ranks", "2", *measured.options]
        wastes[name] = ParallelLayout(assembled(words), {}, Cluster(None, 1, 2)).waste
        assert 1 / (1 + wastes[name]) == pytest.approx(measured.share, abs=0.02), name
    shares = {name: measured.share for name, measured in measured_speeds.MEASURED.items()}
    without_pipeline = [name for name in wastes if name != "pipeline"]
    assert sorted(without_pipeline, key=wastes.__getitem__) == sorted(without_pipeline, key=lambda name: -shares[name])
    sized = ("--num-layers", "8", "--seq-length", "8192", "--micro-batch-size", "1", "--global-batch-size", "16")
    choice = chosen("llama3-8b", "h200-141gb", 1, *sized, gpus=2)
    layouts = [
        candidate.config.parallelism
        for candidate in (choice.best, *choice.alternatives)
        if candidate.config.memory.recompute is None and candidate.config.parallelism.interleaving is None
    ]
    fastest = max(shares, key=shares.__getitem__)
    assert (fastest, layouts[0].described) == ("data", "tensor 1 x pipeline 1 x data 2")
    # Five layers on the first rank and three with the output layer on the second are faster than four on each.
    assert [(layout.described, layout.first_stage_layers) for layout in layouts[1:]] == [
        ("tensor 2 x pipeline 1 x data 1", None),
        ("tensor 1 x pipeline 1 x context 2 x data 1", None),
        ("tensor 1 x pipeline 2 x data 1", 5),
        ("tensor 1 x pipeline 2 x data 1", None),
    ]


def test_a_deep_pipeline_has_several_stages_per_rank() -> None:
    """126 layers with the embedding and the loss divide among 64 stages of 16 ranks."""
    sized = ("--seq-length", "8192", "--global-batch-size", "512")
    choice = on_gpus("llama3.1-405b", "h100-80gb", 128, 8, *sized)
    parallel = choice.best.config.parallelism
    assert (parallel.pipeline, parallel.interleaving, parallel.stage_layers) == (16, 4, (1, *[2] * 62, 1))
    assert choice.best.pipeline_work.share_left > 0.95
    words = ["--model", "llama3.1-405b", *sized, *BF16, "--ranks", "1024", *choice.best.flags]
    assert assembled(words).parallelism.described == parallel.described


@pytest.mark.parametrize(
    ("model", "gpu", "nodes", "expected"),
    [
        ("llama3.1-8b", "h100-80gb", 1, (2, 1, 1, 4)),
        ("llama3.1-70b", "h100-80gb", 8, (8, 2, 1, 4)),
        ("llama3.1-405b", "h100-80gb", 64, (8, 32, 2, 1)),
        ("gemma2-27b", "a100-40gb", 4, (8, 4, 1, 1)),
        ("gpt3-39.1b", "h100-80gb", 8, (4, 1, 1, 16)),
    ],
)
def test_what_mixtures_cost_changes_no_dense_layout(
    model: str, gpu: str, nodes: int, expected: tuple[int, int, int, int]
) -> None:
    assert sizes(chosen(model, gpu, nodes, "--global-batch-size", str(max(64, 16 * nodes)))) == expected


MIXTURES = {
    "qwen": ("qwen3-30b-a3b", "h200-141gb", 1, 4, "--seq-length", "4096", "--global-batch-size", "8", "--micro-batch-size", "2"),
    "qwen of two nodes": ("qwen3-30b-a3b", "h100-80gb", 2, 8, "--global-batch-size", "64"),
    "mixtral": ("mixtral-8x7b", "h100-80gb", 2, 8, "--seq-length", "4096", "--global-batch-size", "64"),
    "deepseek": ("deepseek-v3", "h100-80gb", 64, 8, "--seq-length", "4096", "--global-batch-size", "1024"),
    "gpt-oss": ("gpt-oss-20b", "h100-80gb", 1, 8, "--seq-length", "4096", "--global-batch-size", "64"),
}


def on_gpus(model: str, gpu: str, nodes: int, gpus: int, *arguments: str) -> search.Choice:
    """As `lt-train plan` chooses."""
    words = ["--model", model, "--bf16", "--gpu", gpu, "--nodes", str(nodes), "--gpus-per-node", str(gpus), *arguments]
    options = command.make_context("plan", words).params
    del options["as_json"]
    return choose(options.pop("ranks"), options)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_divided_where_a_rank_cannot_hold_them_all(name: str) -> None:
    choice = on_gpus(*MIXTURES[name])
    model, parallel = choice.best.config.architecture, choice.best.config.parallelism
    assert model.num_experts
    assert parallel.expert > 1
    assert not kernels.runs_experts_one_by_one(choice.best.config)
    assert f"--expert-model-parallel-size {parallel.expert}" in " ".join(choice.best.flags)
    assert f"expert parallel {parallel.expert}: {model.num_experts // parallel.expert} of" in "; ".join(choice.reasons)
    for candidate in (choice.best, *choice.alternatives):
        layout = candidate.config.parallelism
        assert (model.num_experts % layout.expert, layout.data * layout.context % layout.expert) == (0, 0)
        assert not list(problems(candidate.config))


def test_experts_stay_whole_where_a_rank_holds_them_all() -> None:
    """Two H200 hold four layers of Qwen3-30B-A3B twice. Tensor parallelism would compute their experts one after another."""
    sized = ("--num-layers", "4", "--seq-length", "4096", "--micro-batch-size", "4", "--global-batch-size", "8")
    choice = on_gpus("qwen3-30b-a3b", "h200-141gb", 1, 2, *sized)
    wastes = {
        candidate.config.parallelism.described: candidate.waste for candidate in reversed((choice.best, *choice.alternatives))
    }
    assert list(wastes)[-2:] == ["tensor 1 x pipeline 1 x data 2, experts on 2", "tensor 1 x pipeline 1 x data 2"]
    assert wastes["tensor 2 x pipeline 1 x data 1"] > 3


def test_a_small_mixture_with_few_samples_has_no_experts_one_after_another() -> None:
    choice = chosen("tiny-mixtral", "l4-24gb", 1, "--num-layers", "2", "--global-batch-size", "2", gpus=4)
    assert not kernels.runs_experts_one_by_one(choice.best.config)
    assert any(kernels.runs_experts_one_by_one(candidate.config) for candidate in choice.alternatives)
    # gloo gathers equal parts only.
    assert not [
        layout for layout in choice.alternatives if layout.config.parallelism.expert > 1 < layout.config.parallelism.tensor
    ]


def expert_share(config: RunConfig, ranks_per_node: int) -> float:
    runs_one_by_one = kernels.runs_experts_one_by_one(config)
    return expert_costs.overhead_share(config.architecture, config.batches, config.parallelism, runs_one_by_one, ranks_per_node)


def test_the_costs_of_experts_are_those_that_were_measured() -> None:
    """Of the mixture that was measured; tensor-parallel ranks have half of the work and all experts of a layer."""
    measured = ("--model", "qwen3-30b-a3b", "--num-layers", "4", "--seq-length", "4096", "--micro-batch-size", "4", *BF16)
    two = (*measured, "--ranks", "2", "--global-batch-size", "8")
    divided = assembled([*two, "--expert-model-parallel-size", "2", "--use-distributed-optimizer"])
    assert 1 / (1 + ParallelLayout(divided, {}, Cluster(None, 1, 2)).waste) == pytest.approx(121_080 / 127_190, abs=1e-3)
    split = assembled([*two, "--tensor-model-parallel-size", "2", "--sequence-parallel"])
    assert 1 / (1 + expert_share(split, 2) / 2) == pytest.approx(26_566 / 124_713)
    assert expert_share(assembled([*two, "--use-distributed-optimizer"]), 2) == 0


def test_experts_on_several_nodes_wait_for_the_links_between_them() -> None:
    words = ["--model", "deepseek-v3", *BF16, "--seq-length", "4096", "--ranks", "16"]
    config = assembled([*words, "--expert-model-parallel-size", "16"])
    within, between = (expert_share(config, ranks_per_node) for ranks_per_node in (16, 8))
    assert [expert_costs.count_nodes(config.architecture, config.parallelism, ranks) for ranks in (16, 8)] == [1, 2]
    # Of 15 others 8 are on the other node.
    assert between / within == pytest.approx((7 + 8 * 9) / 15)


def test_replicas_of_the_optimizer_have_all_experts() -> None:
    sized = ("--seq-length", "4096", "--global-batch-size", "64", "--use-distributed-optimizer")
    choice = on_gpus("gpt-oss-20b", "h100-80gb", 2, 8, *sized, "--num-distributed-optimizer-instances", "4")
    layouts = [candidate.config.parallelism for candidate in (choice.best, *choice.alternatives)]
    assert all(layout.data * layout.context * layout.tensor // layout.expert % 4 == 0 for layout in layouts)
    assert max(layout.expert for layout in layouts) > 1


def test_a_given_expert_parallel_size_is_kept() -> None:
    sized = ("--seq-length", "4096", "--global-batch-size", "64")
    choice = on_gpus("qwen3-30b-a3b", "h100-80gb", 1, 8, *sized, "--expert-model-parallel-size", "8")
    assert {candidate.config.parallelism.expert for candidate in (choice.best, *choice.alternatives)} == {8}
    assert "--expert-model-parallel-size 8" in " ".join(choice.best.flags)


def test_options_are_complete_where_sharding_was_asked_for() -> None:
    sized = ("--num-layers", "8", "--seq-length", "8192", "--micro-batch-size", "1", "--global-batch-size", "16")
    replicated = ("--use-torch-fsdp2", "--num-distributed-optimizer-instances", "2")
    assert chosen("llama3-8b", "h200-141gb", 1, *sized, *replicated, gpus=4).best.flags[:3] == list(replicated)
    assert chosen("llama3-8b", "h200-141gb", 1, *sized, "--use-distributed-optimizer", gpus=2).best.flags == [
        "--use-distributed-optimizer"
    ]


@pytest.mark.parametrize(
    ("layers", "ranks", "expected"),
    [
        (8, 2, (5, None)),
        (32, 2, (17, None)),
        (32, 4, (None, 5)),
        (126, 16, (None, 6)),
        (4, 1, (None, None)),
        (3, 3, (None, None)),
    ],
)
def test_the_most_equal_split(layers: int, ranks: int, expected: tuple[int | None, int | None]) -> None:
    """Of all that give the ranks between as many layers each, found by trying them."""
    words = ["--model", "llama3-8b", "--num-layers", str(layers), *BF16, "--seq-length", "8192", "--ranks", str(ranks)]
    config = assembled(words)
    piped = dataclasses.replace(config, parallelism=dataclasses.replace(config.parallelism, pipeline=ranks))
    work = PipelineWork.from_config(piped)
    split = work.model.most_equal_split(ranks)
    assert split == expected
    fullest = max(work.with_ends(split).rank_shares)
    for first in range(1, layers):
        for last in range(1, layers - first):
            if ranks > 2 and (layers - first - last) % (ranks - 2) == 0:
                assert fullest <= max(work.with_ends((first, last)).rank_shares) + 1e-9


def test_the_work_of_all_stages_is_that_of_a_token() -> None:
    for model in ("llama3-8b", "mixtral-8x7b", "tiny-gemma2", "deepseek-v3", "gpt3-1.7b"):
        config = assembled(["--model", model, *BF16, "--seq-length", "1024"])
        whole = sum(stage.whole for stage in PipelineWork.from_config(config).stages)
        assert whole == pytest.approx(config.architecture.flops_per_token(1024), rel=1e-9), model


def test_a_bubble_that_a_larger_batch_would_shrink_is_said() -> None:
    few = chosen("llama3.1-405b", "h100-80gb", 64, "--global-batch-size", "16")
    many = chosen("llama3.1-405b", "h100-80gb", 64, "--global-batch-size", "2048")
    hint = "a larger --global-batch-size makes it smaller"
    assert [hint in "; ".join(choice.reasons) for choice in (few, many)] == [True, False]


def test_the_rest_of_the_layers_goes_to_the_ends_of_the_pipeline() -> None:
    """126 layers have no even pipeline of 4, 8 or 16."""
    choice = chosen("llama3.1-405b", "h100-80gb", 64, "--global-batch-size", "1024")
    parallel = choice.best.config.parallelism
    assert 126 % parallel.pipeline
    assert parallel.first_stage_layers is not None
    assert sum(parallel.layers_of(rank, 126) for rank in range(parallel.pipeline)) == 126


def test_recomputation_is_the_price_of_little_memory() -> None:
    rich = chosen("llama3.1-8b", "h200-141gb", 1, "--global-batch-size", "64")
    poor = chosen("llama3.1-8b", "a10g-24gb", 1, "--global-batch-size", "64")
    assert rich.best.config.memory.recompute is None
    assert poor.best.config.memory.recompute is not None
    assert rich.best.waste < poor.best.waste


def test_order_is_by_waste_and_everything_offered_runs_and_fits() -> None:
    choice = chosen("llama2-13b", "a100-40gb", 2, "--global-batch-size", "128")
    offered = [choice.best, *choice.alternatives]
    assert len(offered) > 3
    assert [candidate.waste for candidate in offered] == sorted(candidate.waste for candidate in offered)
    for candidate in offered:
        assert candidate.fits
        assert not list(problems(candidate.config))


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_flags_make_the_same_layout(schedule: str) -> None:
    batch = ("--global-batch-size", "1024")
    choice = chosen("llama3.1-405b", "h100-80gb", 64, *batch, "--pipeline-schedule", schedule)
    same = plan_of(["--model", "llama3.1-405b", *BF16, *batch, "--ranks", "512", *choice.best.flags])
    assert memory_estimate.estimate(same).fullest_rank == choice.best.estimate
    assert same.parallelism.described == choice.best.config.parallelism.described
    assert same.parallelism.pipeline_schedule == schedule


def test_nothing_fits() -> None:
    choice = chosen("llama3.1-70b", "t4-16gb", 1, "--global-batch-size", "8")
    assert not choice.best.fits
    with pytest.raises(BadConfig, match=r"of 12\.6 per rank") as caught:
        search.require_fitting(choice)
    assert "more nodes" in str(caught.value.hint)


def test_sizes_beside_auto_and_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="--tensor-model-parallel-size"):
        chosen("llama3.1-8b", "h100-80gb", 1, "--tensor-model-parallel-size", "2")
    with pytest.raises(BadConfig, match=r"no layout divides .* 7 is not a multiple"):
        chosen("llama3.1-8b", "h100-80gb", 1, "--global-batch-size", "7", "--micro-batch-size", "4")
    with pytest.raises(BadConfig, match="do not divide into 3 replicas"):
        chosen("llama3.1-8b", "h100-80gb", 1, "--use-distributed-optimizer", "--num-distributed-optimizer-instances", "3")


def test_plan_of_a_cluster_elsewhere() -> None:
    arguments = ("--model", "llama3.1-70b", "--bf16", "--gpu", "h100-80gb", "--nodes", "8", "--global-batch-size", "1024")
    record = plan(*arguments)
    assert (record["model"], record["nodes"] * record["gpus_per_node"]) == ("llama3.1-70b", 64)
    assert record["rank_memory_bytes"]["total"] == max(record["ranks_memory_bytes"]) <= record["usable_bytes"]
    assert len(record["ranks_memory_bytes"]) == record["pipeline"]
    assert (record["pipeline_share_left"] < 1, sum(record["rank_work_shares"])) == (True, pytest.approx(1))
    stated = plan(*arguments, "--tensor-model-parallel-size", "2")
    assert (stated["tensor"], stated["fits"], stated["others"]) == (2, False, [])
    assert plan(*arguments[:-4], "--nodes", "4", "--ranks", "4", *arguments[-2:])["gpus_per_node"] == 4
    table = train("plan", *arguments)
    assert "why " in table.out
    assert " ".join(record["options"]) in table.out


def test_plan_refuses_what_the_gpu_cannot_compute() -> None:
    for gpu, options, reason in (
        ("v100-32gb", ("--bf16",), "cannot multiply in bfloat16"),
        ("a100-80gb", ("--bf16", "--fp8-format", "hybrid"), "cannot multiply in fp8"),
    ):
        result = train("plan", "--model", "tiny", "--gpu", gpu, *options)
        assert (result.code, reason in result.err) == (78, True), result.err
    assert train("plan", "--model", "tiny").code == 2


def test_a_reason_that_all_layouts_have_is_said_as_it_is() -> None:
    with pytest.raises(BadConfig, match="--cross-entropy-impl fused-linear does not support --device cpu"):
        chosen("llama3-8b", "h100-80gb", 1, "--cross-entropy-impl", "fused-linear")


def test_too_few_ranks_and_too_many_nodes() -> None:
    elsewhere = ("plan", "--model", "llama3-8b", "--bf16", "--gpu", "h100-80gb")
    for size in ("tensor", "pipeline"):
        few = train(*elsewhere, f"--{size}-model-parallel-size", "16")
        assert (few.code, "start a multiple of 16 ranks" in few.err) == (78, True), few.err
    assert train(*elsewhere, "--nodes", "99999999").code == 2


def test_divisors() -> None:
    for number in (1, 2, 36, 97, 800_000):
        assert layout_space._divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


def test_plan_needs_none_of_the_packages_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for options in (
        ("--transformer-impl", "te"),
        ("--attention-backend", "flash"),
        ("--swiglu-impl", "gemm-epilogue"),
        ("--cross-entropy-impl", "fused-linear"),
        ("--optimizer", "muon"),
    ):
        words = ["--model", "llama3.2-1b", "--bf16", "--gpu", "h100-80gb", "--seq-length", "2048", *options]
        result = CliRunner().invoke(command, words, standalone_mode=False, catch_exceptions=False)
        assert (result.return_value, "layout" in result.stdout) == (0, True), result.output


def test_auto_on_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks of a machine whose memory holds the model twice, and then one that holds it only when it is split."""
    from lt_train.cli import command

    words = ["--model", "llama3.2-1b", *BF16, "--parallel", "auto", "--ranks", "2", "--seq-length", "512"]
    options = command.make_context("lt-train", words).params
    for memory_gib, data_parallel in ((64, 2), (24, 1)):
        monkeypatch.setattr("lt_train.process.device.host_memory", lambda gib=memory_gib: gib * cluster.GIB)
        assert resolve_run_config(options, ()).parallelism.data == data_parallel
    assert "layout: --tensor-model-parallel-size 2 --sequence-parallel" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["tools/train/README.md", "docs/guides/parallelism.md"])
def test_a_page_shows_a_plan(page: str) -> None:
    text = (ROOT / page).read_text()
    arguments, shown = re.findall(r"^    lt-train (plan [^\n]*)\n\n```\n(.*?)```$", text, re.MULTILINE | re.DOTALL)[0]
    assert train(*shlex.split(arguments)).out == shown


def test_a_run_that_cannot_fit_is_planned_and_refused() -> None:
    """Of 70 billion parameters in float32 weights, gradients and two moments take 16 bytes each."""
    arguments = ("--model", "llama2-70b", "--mock-data", "--device", "cpu", "--ranks", "1")
    planned = train(*arguments, "--dry-run", "--json")
    planned_bytes = json.loads(planned.out)["rank_memory_bytes"]
    parameters = json.loads(planned.out)["parameters"]
    assert planned_bytes["weights"] + planned_bytes["gradients"] + planned_bytes["optimizer"] == pytest.approx(
        16 * parameters, rel=1e-3
    )
    assert planned.code == 78
    assert "error: the plan does not fit: weights, gradients and optimizer alone take 1027.8 GiB of" in planned.err
    started = train(*arguments, "--train-iters", "1")
    assert (started.code, started.out) == (78, "")
    assert "weights, gradients and optimizer alone take 1027.8 GiB of" in started.err
