"""Check the configuration: divisibility, contradictions, memory, and sizes that resemble a known model's but differ."""

from collections.abc import Iterator

from lt_shared.models import presets
from lt_train.config.checks import draft_problems, missing_packages, problems_here, problems_on
from lt_train.config.settings import parallelism
from lt_train.planner import memory_estimate, search
from lt_train.planner.memory_advice import MemoryAdvice
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, error_finding, warning

FAST_HEAD_MULTIPLE = 8


def settings(situation: Situation) -> Iterator[Finding]:
    """Run the configuration's own checks (divisibility, batches, schedule, split, precision) on the resolved settings groups."""
    for problem in draft_problems(situation.draft):
        yield error_finding(problem, "options")
    if situation.is_elsewhere:
        for problem in missing_packages(situation.draft.parts):
            yield warning(f"{problem} on this machine", "options", f"install it there: {problem.hint}")
    else:
        for problem in problems_here(situation.draft.parts):
            yield error_finding(problem, "options")


def head_size(situation: Situation) -> Iterator[Finding]:
    model = situation.need_config().architecture
    if model.kv_channels % FAST_HEAD_MULTIPLE:
        yield warning(
            f"heads of {model.kv_channels}, no multiple of {FAST_HEAD_MULTIPLE}: fused attention is slow for them, or absent",
            "--num-attention-heads",
            f"choose heads so that {model.hidden_size} / heads is a multiple of {FAST_HEAD_MULTIPLE}, better 64 or 128",
        )


def feed_forward(situation: Situation) -> Iterator[Finding]:
    """Compare the feed-forward size with a preset of equal sizes: Megatron's default makes Llama 2 70B a model of 55 billion."""
    model = situation.need_config().architecture
    if model.name in presets.PRESETS:
        return
    for preset in presets.PRESETS.values():
        sizes = ("family", "num_layers", "hidden_size", "num_attention_heads", "num_query_groups")
        if all(getattr(model, size) == getattr(preset, size) for size in sizes) and model.num_experts == preset.num_experts:
            if model.ffn_hidden_size != preset.ffn_hidden_size:
                yield warning(
                    f"layers, width and heads are those of {preset.name}, but its feed-forward size is {preset.ffn_hidden_size},"
                    f" not {model.ffn_hidden_size}",
                    "--ffn-hidden-size",
                    f"pass --model {preset.name}, or --ffn-hidden-size {preset.ffn_hidden_size}",
                )
            return


def vocabulary(situation: Situation) -> Iterator[Finding]:
    """Warn of a vocabulary that exceeds the data's tokenizer by more than padding explains: some embedding rows are unused."""
    config = situation.need_config()
    sizes = {dataset.vocab_size for dataset in config.data.all_datasets if dataset.vocab_size}
    if sizes and config.architecture.vocab_size > 1.1 * max(sizes):
        yield warning(
            f"the model's vocabulary is {config.architecture.vocab_size}, that of the data's tokenizer {max(sizes)}",
            "--vocab-size",
            "leave it out to take the data's, or tokenize with the model's tokenizer",
        )


def capability(situation: Situation) -> Iterator[Finding]:
    """Check fp8, bfloat16 and recomputation against a planned cluster's GPUs; `settings` checks this machine's GPUs."""
    situation.need("precision")
    if situation.is_elsewhere and situation.cluster and situation.cluster.gpu:
        for problem in problems_on(situation.cluster.gpu.capability, situation.draft.parts):
            yield error_finding(problem, situation.cluster.gpu.name)


def fits(situation: Situation) -> Iterator[Finding]:
    """Check the fullest rank's estimated memory. Weights, gradients and optimizer state are exact, activations are estimated."""
    config = situation.need_config()
    if situation.cluster is None or situation.cluster.gpu is None:
        raise NotChecked("the memory of the GPUs is not known")
    if any(parallelism.check(config.parallelism, config.architecture, config.batches.seq_length)):
        raise NotChecked("the layout does not divide the model and the ranks")
    if shortage := search.memory_shortage(memory_estimate.estimate(config).fullest_rank, situation.cluster):
        report = error if shortage.is_certain else warning
        yield report(shortage.reason, situation.cluster.gpu.name, MemoryAdvice(config).text(shortage.is_certain))
