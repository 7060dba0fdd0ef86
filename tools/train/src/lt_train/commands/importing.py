"""`lt-train import`: translate another trainer's configuration into a file for --config."""

from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import BadData, ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lt_shared.models.architecture import Architecture
    from lt_train.importers.ledger import Dropped, Translation

# More dropped keys than this with the same section and reason are reported in one line, so that the other lines stand out.
MOST_ALIKE = 3
# An error names this many keys with their lines; standard error lists all keys before.
MOST_NAMED = 12
LONGEST_NAME = 80
PARTIAL = "--partial writes it nevertheless"

EXAMPLES = """
lt-train import llama3_70b.toml | tee mine.toml
lt-train import 2.distributed-training.sbatch --set NODES=2
lt-train import recipes/llama3.py:llama3_8b_pretrain_config --set train.train_iters=1000
lt-train import -- torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 36 --hidden-size 4096 --num-attention-heads 32 --fp16
"""


@click.command("import", cls=console.Command, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of TOML.")
@click.option("--partial", is_flag=True, help="Write the options even if they describe another model, or no model.")
# click derives LT_TRAIN_IMPORT_GIVEN from the name of this parameter, so renaming it would rename an environment variable.
@click.option(
    "--set", "given", metavar="NAME=VALUE", multiple=True, help="Set a key of FILE or a variable of the script. Repeatable."
)
@click.argument("source", nargs=-1, type=click.UNPROCESSED, metavar="FILE | -- COMMAND LINE")
def command(as_json: bool, partial: bool, given: tuple[str, ...], source: tuple[str, ...]) -> Any:
    """Turn another trainer's configuration into one for --config.

    FILE is a TorchTitan TOML, a HyperPod recipe or NeMo YAML, Megatron-Bridge's run_config.yaml, or a script or Kubernetes
    manifest that starts pretrain_gpt.py. recipe.py:FUNCTION is a configuration in Python, which is read and not executed. The
    options go to standard output as TOML. Dropped keys go to standard error, each with its reason.
    The command prints no options and exits with 65 if FILE has no model, if the result would be another model or run, if no table
    knows a key, if only a run of the script would show a value that decides the model, the start, the batches, the schedule or
    the layout, or if lt-train would refuse the result.
    """
    from lt_train.importers import source as sources

    if not source:
        raise UsageError(
            "no FILE and no command line", "lt-train import FILE, or lt-train import -- torchrun ... pretrain_gpt.py ..."
        )
    if len(source) == 1:
        translation = sources.translate_file(source[0], _parse_overrides(given))
    elif given:
        raise UsageError("--set is for a FILE", "write the values into the command line")
    else:
        translation = sources.translate_command(source)
    _report_dropped(translation)
    problem = _model_problem(translation, source[0] if len(source) == 1 else "")
    if problem and not partial:
        raise problem
    if problem:
        console.warn(f"{problem}; --partial accepts it")
    if as_json:
        console.print_json(translation.record())
    else:
        click.echo(translation.toml(), nl=False)


def _parse_overrides(entries: tuple[str, ...]) -> dict[str, str]:
    for entry in entries:
        if not entry.partition("=")[0] or "=" not in entry:
            raise UsageError(f"--set {entry}: expected NAME=VALUE, e.g. TENSOR_PARALLEL=4")
    return dict(entry.split("=", 1) for entry in entries)


def _report_dropped(translation: "Translation") -> None:
    """Report each dropped key that changes the model, the run or the result, and only the number of other keys without -v."""
    from lt_train.importers.effects import Effect

    more = "" if console.verbosity() == console.Verbosity.VERBOSE else "; -v lists them"
    for effect in Effect:
        lost = translation.lost(effect)
        matters = effect in (Effect.MODEL, Effect.RUN, Effect.RESULT)
        for entries in _group_by_reason(lost):
            together = matters and len(entries) > MOST_ALIKE
            if together:
                section = entries[0].key.rpartition(".")[0]
                console.note(f"not carried over, changes {effect}: {section}, {len(entries)} keys: {entries[0].reason}{more}")
            for entry in entries:
                value = entry.value.replace("\n", "\\n") if isinstance(entry.value, str) else entry.value
                report = console.note if matters and not together else console.detail
                report(f"not carried over, changes {effect}: {entry.key} = {value}: {entry.reason}")
        if lost and not matters:
            console.note(f"not carried over, changes {effect}: {len(lost)} keys{more}")


def _group_by_reason(lost: "Sequence[Dropped]") -> "list[list[Dropped]]":
    """Group dropped keys by their subsection and reason. A key outside of a subsection is a group by itself."""
    groups: dict[tuple[str, str], list[Dropped]] = {}
    for entry in lost:
        part = entry.key.rpartition(".")[0]
        groups.setdefault((part if "." in part else entry.key, entry.reason), []).append(entry)
    return list(groups.values())


def _model_problem(translation: "Translation", path: str) -> ToolError | None:
    """Return the error for a file that describes no run or would train another model. Otherwise report the model's size."""
    from lt_train.config.checks import problems
    from lt_train.importers import imported_run
    from lt_train.importers.effects import Effect
    from lt_train.importers.layer_style import BIASES

    location = f"{path}: " if path else ""
    if translation.unknown_variables:
        unknown = translation.unknown_variables
        named = [name for name in unknown if name.isidentifier() or name.isdigit()]
        remedy = (
            f"give it: {' '.join(f'--set {name}=VALUE' for name in named)}" if named else "pass the command line with its value"
        )
        names = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in unknown)
        return BadData(f"{location}{names}: only a run of the script knows the value", remedy)
    if translation.unknown_values:
        (key, reason), *further_values = translation.unknown_values.items()
        more = f" (and {len(further_values)} more: {', '.join(name for name, _ in further_values[:5])})" if further_values else ""
        return BadData(f"{location}{key}: only a run of the configuration knows the value: {reason}{more}", f"--set {key}=VALUE")
    if not {"model", "num_layers"} & translation.options.keys():
        absent = next((f"lt-train has none for {entry.key} = {entry.value}; " for entry in translation.lost(Effect.MODEL)), "")
        remedy = f"{absent}lt-train models lists the names of --model"
        unknown_keys = _with_lines(dict.fromkeys(entry.key for entry in translation.lost(Effect.RUN) if entry.is_unknown), path)
        beside = f"; no table knows {unknown_keys}" if unknown_keys else ""
        return BadData(f"{location}no model: neither its name nor its layers are known{beside}", remedy)
    # Guides to Llama often forget --disable-bias-linear, so dropped biases alone do not make another model.
    of_model = [entry.key for entry in translation.lost(Effect.MODEL) if entry.reason != BIASES]
    of_run = [entry.key for entry in translation.lost(Effect.RUN)]
    lost = _with_lines(dict.fromkeys(of_model or of_run), path)
    kind = "model" if of_model else "run"
    another = BadData(f"{location}another {kind} would result, without {lost}", PARTIAL) if lost else None
    try:
        config = imported_run.resolve(translation)
        refused = next(problems(config), None)
    except ToolError as error:
        return another or BadData(f"{location}lt-train refuses the result: {error}", error.hint)
    if refused:
        return another or BadData(f"{location}lt-train refuses the result: {refused}", refused.hint)
    console.note(
        _describe_size(config.architecture, imported_run.stated_size(path.rpartition("/")[2], *translation.names), translation)
    )
    return another


def _with_lines(keys: "Iterable[str]", path: str) -> str:
    """Join the keys, each with its line in the file at `path`; the last of many are counted."""
    from lt_train.importers import source as sources

    names = list(keys)
    lines = sources.lines_of(path, names[:MOST_NAMED]) if path else {}
    text = ", ".join(f"{name} (line {lines[name]})" if name in lines else name for name in names[:MOST_NAMED])
    return f"{text} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else text


def _describe_size(model: "Architecture", stated: str | None, translation: "Translation") -> str:
    original_size = f"; the original says {stated}" if stated else ""
    is_known = {"vocab_size", "model"} & translation.options.keys()
    vocabulary = "" if is_known else f" with a vocabulary of {model.vocab_size:,}, which the data decides"
    return f"the model has {model.parameters():,} parameters{vocabulary}{original_size}"
