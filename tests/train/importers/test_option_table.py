"""What becomes of every option of the trainers that lt-train imports: carried, refused, decided, speed or nothing."""

import collections

import option_table
import pytest

from lt_train.importers.ledger import IS_IMPLIED, IS_OFF, NOT_CARRIED, NOT_SET

TRAINERS = tuple(option_table.BASES)
# What reads the recipes of HyperPod.
ADAPTER = "aws/sagemaker-hyperpod-training-adapter-for-nemo@v1.4.0"
# Reasons that explain no option.
GENERIC = {IS_IMPLIED, IS_OFF, NOT_CARRIED, NOT_SET, "", "lt-train has no such option", "lt-train has no such setting"}
# A value that says what the options beside it say.
SAME = {
    "exp_manager.create_checkpoint_callback",
    "model.tie_word_embeddings",
    "fp8_recipe",
    "parallelism.data_parallel_shard_degree",
    "model.fp8",
    "model.fp8_e4m3",
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_option_becomes_what_the_table_says(trainer: str) -> None:
    """option_table.py writes the table anew; its diff shows what a change of an importer means."""
    rows = [line for line in option_table.TABLE.read_text().splitlines() if line.startswith(f"{trainer}\t")]
    changed = []
    for result, row in zip(option_table.outcomes(trainer), rows, strict=True):
        # An option that lt-train has got since is carried over by its name, or refused for another reason.
        was_refused = row.split("\t")[3] == option_table.REFUSED
        is_alike = was_refused and result.becomes in (option_table.CARRIED, option_table.REFUSED)
        changed += [] if result.row() == row or is_alike else [(result.row(), row)]
    assert not changed, "python tests/train/option_table.py writes the table anew"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_neither_carried_nor_refused_has_a_reason_and_a_line(trainer: str) -> None:
    sources = option_table.upstream(trainer)["sources"]
    for result in option_table.outcomes(trainer):
        source, path, number = result.line.split(":")
        assert source in sources and len(sources[source]) == 40 and path and int(number) > 0, result
        is_lost = result.becomes in (option_table.DECIDED, option_table.SPEED, option_table.NOTHING)
        assert not is_lost or result.reason not in GENERIC, result
        assert result.becomes != option_table.CARRIED or result.reason.startswith("--") or result.option in SAME, result


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_neither_carried_nor_refused_has_a_line_that_reads_it(trainer: str) -> None:
    """upstream_reads.py finds the lines; "nowhere" means that no code of the trainer reads the option."""
    sources = {*option_table.upstream(trainer)["sources"], ADAPTER}
    shown = [result for result in option_table.outcomes(trainer) if result.becomes in option_table.SHOWN]
    lines = {result.option: option_table.reads().get((trainer, result.option)) for result in shown}
    assert None not in lines.values(), "python tests/train/upstream_reads.py MIRRORS writes option_reads.tsv anew"
    read = [line for line in lines.values() if line != "nowhere"]
    assert all(line.count(":") == 2 and line.split(":")[0] in sources and line.endswith(tuple("0123456789")) for line in read)
    assert len(read) > 0.8 * len(shown)


# A recipe of HyperPod has the values of a run, not defaults.
@pytest.mark.parametrize("trainer", [trainer for trainer in TRAINERS if trainer != "hyperpod"])
def test_a_default_is_the_same_run(trainer: str) -> None:
    """An option that is spelled out with its default changes neither the model nor the run."""
    table = option_table.upstream(trainer)
    refused = []
    for key, entry in table["options"].items():
        default = option_table.values_of(trainer, entry)[0]
        is_open = isinstance(default, str) and ("${" in default or default in ("???", "<computed>"))
        if default not in (None, [], {}) and not is_open:
            result = option_table.outcome(trainer, key, default, table["lines"][key])
            refused += [key] if result.becomes == option_table.REFUSED else []
    assert {key for key in refused if not key.startswith("fault_tolerance.")} <= DEFAULTS_THAT_NEED_MORE


# Defaults that lt-train does not have, and options of a section that is refused as soon as it is switched on.
DEFAULTS_THAT_NEED_MORE = {"muon_momentum", "model.flavor", "validation.steps"}


def test_an_option_that_a_start_reads_is_never_only_told() -> None:
    """Pretrained weights, the step, the optimizer and the schedule."""
    starts = {
        "megatron_lm": "load pretrained_checkpoint ckpt_step finetune no_load_optim no_load_rng"
        " use_checkpoint_args use_checkpoint_opt_param_scheduler override_ckpt_iteration moe_use_upcycling",
        "torchtitan": "checkpoint.initial_load_path checkpoint.initial_load_in_hf checkpoint.load_step"
        " checkpoint.exclude_from_loading",
        "nemo": "model.restore_from_path model.restore_from_ckpt model.resume_from_checkpoint",
        "megatron_bridge": "checkpoint.ckpt_step checkpoint.finetune checkpoint.load_optim checkpoint.load_rng"
        " checkpoint.use_checkpoint_args scheduler.use_checkpoint_opt_param_scheduler scheduler.max_steps",
    }
    for trainer, names in starts.items():
        becomes = {result.option: result.becomes for result in option_table.outcomes(trainer)}
        assert {becomes[name] for name in names.split()} <= {option_table.CARRIED, option_table.REFUSED}


def test_the_table_has_few_decisions() -> None:
    """The run that lt-train decides to train in its own way differs by rounding or by the numbers that are drawn."""
    counts = collections.Counter(result.becomes for trainer in TRAINERS for result in option_table.outcomes(trainer))
    assert counts[option_table.DECIDED] < 90 < counts[option_table.CARRIED] < counts[option_table.REFUSED]
