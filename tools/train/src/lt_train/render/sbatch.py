"""Write a job file for sbatch: all stages in one job, or a job for each stage and a script that submits the jobs in a row.

One task per node starts the ranks of its node, so the file needs neither the number of GPUs nor torchrun. `srun
--kill-on-bad-exit` ends the other nodes if one fails. `process/restart_policy.py` has the meaning of every exit code.

- 75: the run has saved and can resume, so the job is requeued. srun never sees 75, because it would kill nodes that still save;
  the job recognizes it by the missing last line of the manifest.
- A failed attempt, for example after a rank was killed: the nodes are still allocated, so the step restarts within the job.
- 76: the run hangs. srun ends the other nodes, stopped processes too, and the job is requeued.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence

from lt_shared.console import ExitCode, UsageError
from lt_shared.files import storage
from lt_train.process import restart_policy
from lt_train.render import container_paths, sbatch_options, shell
from lt_train.render.job_spec import Job, check_value
from lt_train.render.sbatch_options import NodeEnvironment

# Slurm signals the job this long before the time limit; for a short limit, a fifth of the limit.
SIGNAL_SECONDS = 300
SIGNAL_SHARE = 5
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
TIME_FORMATS = "as of sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]"
UNLIMITED = ("UNLIMITED", "INFINITE")
RESTARTS = 3
JOB, DEPENDENCY = "job", "dependency"
CHAINS = (JOB, DEPENDENCY)
TOOLS = ("lt-preprocess", "lt-train", "lt-convert")

AUTO_RESUME = """\
# SageMaker HyperPod replaces a node that fails, and starts the step again.
auto_resume=()
if [ -d /opt/sagemaker_cluster ]; then
  auto_resume=(--auto-resume=1)
fi"""

FINISH = """\
# End the job with the status of a stage. 75 says that the same job resumes from its checkpoint, and so does a stage
# that the signal before the time limit has ended (138), or one that did not move (76). lt-monitor, where it is, says
# why in this log, and which node to leave out. Slurm changes that of a job in the queue only, and ends this script
# when the job goes there.
finish() {
  local status=$1 job='' log='' excluded='' before=''
  case "$status" in 76 | 138) status=75 ;; esac
  if command -v lt-monitor > /dev/null; then
    job=$(scontrol show job "$SLURM_JOB_ID") || true
    log=$(sed -n 's/^ *StdOut=//p' <<< "$job")
    before=$(sed -n 's/.* ExcNodeList=\\([^( ]\\{1,\\}\\).*/\\1,/p' <<< "$job")
    echo "lt-monitor: $(lt-monitor tail-cause "$log")" >&2 || true
    excluded=$(lt-monitor tail-cause --exclude-node "$log") || true
  fi
  if [ "$status" -eq 75 ]; then
    trap '' TERM
    scontrol requeue "$SLURM_JOB_ID"
    if [ -n "$excluded" ]; then scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$before${excluded#--exclude=}" || true; fi
  fi
  exit "$status"
}"""

# Without a task plugin that binds, srun warns about every --cpu-bind.
CPU_BIND = """\
# A task has all cores of its node.
cpu_bind=()
case "$(scontrol show config)" in *task/affinity*) cpu_bind=(--cpu-bind=none) ;; esac"""

PROFILING = """\
# DCGM's counters slow kernels down: they stop on the nodes that have them while the job runs.
profiling() {
  srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
    bash -c 'if command -v dcgmi > /dev/null; then dcgmi profile "$1"; fi' profiling "$1" || true
}"""

# The shell of a task traps signals without effect and waits for lt-train, which handles them. srun's status is the largest of
# its tasks, and tasks that srun kills after a failure have 143. So codes that must not restart within the job become larger
# than 143.
PERMANENT = 170
PERMANENT_CODES = (*restart_policy.NEVER, ExitCode.NO_PROGRESS)
AGAIN_CODES = (*restart_policy.FAILED, *(restart_policy.SIGNALLED + number for number in restart_policy.CRASHES))
TASK = (
    f'trap : TERM USR1; lt-train "$@" || {{ status=$?; case "$status" in {ExitCode.TRY_AGAIN:d}) ;;'
    f' {shell.pattern(PERMANENT_CODES)}) exit $((status + {PERMANENT})) ;; *) exit "$status" ;; esac; }}'
)

# Whether a manifest has its last line.
ENDED = """grep -q '"kind":"end"'"""
LOST_NODE = """\
  # Slurm gives another node in the place of one that is lost to a job in the queue only.
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "${cpu_bind[@]}" true || finish 75"""


@dataclasses.dataclass(frozen=True)
class SbatchOptions:
    """Options of Slurm: the time limit, pyxis's mounts, and the GPUs per node if Slurm manages GPUs.

    `named` are options of sbatch that are options here, `more` the options that --sbatch-option gives.
    """

    time_limit: str | None
    mounts: str
    gpus_per_node: int | None
    named: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    more: tuple[str, ...] = ()
    environment: NodeEnvironment = dataclasses.field(default_factory=NodeEnvironment)


def render(job: Job, chain: str, sbatch: SbatchOptions) -> str:
    """Write the job file, or with `chain` DEPENDENCY a script that submits one per stage. Raises UsageError for no time limit."""
    check_value(sbatch.mounts, "--container-mounts")
    if job.image is not None:
        job = _in_container(job, sbatch.mounts)
    sbatch.environment.check(job)
    is_array = sbatch.named.get("array") is not None
    _check_array(job, is_array)
    directives = sbatch_options.directives(sbatch.named, sbatch.more, is_array and not shell.has_task_number(job))
    job = dataclasses.replace(job, is_array=is_array)
    stages = [
        *([("preprocess", "1", _preprocess(job))] if job.preprocess else []),
        ("train", _nodes(job), _train(job)),
        *([("convert", "1", _convert(job))] if job.convert else []),
    ]
    if chain == JOB:
        return _script(job, job.name, _nodes(job), "\n\n".join(text for _, _, text in stages), sbatch, directives)
    lines = [
        "#!/bin/bash",
        "# Submits a job for each stage; one starts when the one before it has succeeded.",
        "set -euo pipefail",
        "",
    ]
    previous = ""
    for name, nodes, text in stages:
        script = _script(job, f"{job.name}-{name}", nodes, text, sbatch, directives)
        dependency = f' --dependency="afterok:${{{previous}%%;*}}" --kill-on-invalid-dep=yes' if previous else ""
        end = f"END_OF_{name.upper()}"
        lines += [
            f"{name}=$(sbatch --parsable{dependency} << '{end}'",
            script.rstrip("\n"),
            end,
            ")",
            f'echo "{name} ${{{name}%%;*}}"',
            "",
        ]
        previous = name
    return "\n".join(lines)


def _check_array(job: Job, is_array: bool) -> None:
    """Raise UsageError for stages that the tasks of an array would all run at the same time, or in the wrong place."""
    if is_array and job.preprocess:
        raise UsageError("--array and --preprocess: each task would tokenize the data", "make the data first, and pass @FILE")
    writes_apart = any(shell.TASK_NUMBER in word for word in job.convert or ())
    if is_array and shell.has_task_number(job) and job.convert and not writes_apart:
        hint = f"add {shell.TASK_NUMBER} to the directory after -o"
        raise UsageError("--array and --convert: all tasks would write to one directory", hint)


def _in_container(job: Job, mounts: str) -> Job:
    """Return the job with its manifest directory. Raises UsageError if files that must be kept would be inside the container.

    The script and lt-train both write to SAVE, one outside and one inside, so that its path must be the same on both sides.
    """
    pairs = [(source, target.partition(":")[0] or source) for source, _, target in map(_partition, mounts.split(","))]
    targets = [target for _, target in pairs]
    container_paths.check(job, targets, f"a directory of --container-mounts {mounts}")
    same = [target for source, target in pairs if source == target]
    if not storage.is_remote(job.save):
        container_paths.check_path("--save", job.save, same, f"a directory that --container-mounts {mounts} has under one path")
    return dataclasses.replace(job, manifests=same[0] if same else None)


def _partition(mount: str) -> tuple[str, str, str]:
    """Split a mount, SOURCE[:TARGET[:FLAGS]], at the first colon."""
    return mount.strip().partition(":")


def _nodes(job: Job) -> str:
    """Return the nodes as sbatch takes them: a number, or the least and the largest number."""
    return f"{job.node_counts[0]}-{job.nodes}" if job.node_counts else f"{job.nodes}"


def _script(job: Job, name: str, nodes: str, stages: str, sbatch: SbatchOptions, directives: Mapping[str, str | None]) -> str:
    blocks = [
        _header(name, nodes, bool(job.spare_nodes) and nodes == _nodes(job), sbatch, directives),
        "# Dollar signs in single quotes are meant.\n# shellcheck disable=SC2016",
        "set -euo pipefail",
        sbatch.environment.shell(job, [tool for tool in TOOLS if tool in stages]),
        f"# {job.instance.described}\n{shell.exports(job.environment)}" if job.instance else "",
        _container(job, sbatch),
        AUTO_RESUME if "auto_resume" in stages else "",
        CPU_BIND,
        FINISH,
        PROFILING if "profiling" in stages else "",
        stages,
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _header(name: str, nodes: str, keeps_nodes: bool, sbatch: SbatchOptions, directives: Mapping[str, str | None]) -> str:
    options = {
        "job-name": name,
        "nodes": nodes,
        # With a range of nodes and this option, Slurm would allocate the least number.
        **({} if "-" in nodes else {"ntasks-per-node": 1}),
        "exclusive": None,
        "mem": 0,
        "wait-all-nodes": 1,
        "requeue": None,
        "open-mode": "append",
        # Slurm would end the job with the first node that fails.
        **({"no-kill": None} if keeps_nodes else {}),
        "signal": f"USR1@{_signal_seconds(sbatch.time_limit)}",
        **({"gpus-per-node": sbatch.gpus_per_node} if sbatch.gpus_per_node else {}),
        **({"time": sbatch.time_limit} if sbatch.time_limit else {}),
        # Another value for `mem` or `exclusive` takes the place of the one above.
        **directives,
    }
    return "\n".join(["#!/bin/bash", *(sbatch_options.line(option, value) for option, value in options.items())])


def _signal_seconds(limit: str | None) -> int:
    """Return how many seconds before the time limit Slurm signals the job.

    `limit` has one of sbatch's formats: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s.
    """
    if limit is None or limit.upper() in UNLIMITED:
        return SIGNAL_SECONDS
    if not TIME.fullmatch(limit):
        raise UsageError(f"--time {limit!r}", TIME_FORMATS)
    days, _, clock = limit.rpartition("-")
    fields = [int(field) for field in clock.split(":")]
    omitted_fields = 0 if days or len(fields) == 3 else 1
    hours, minutes, seconds = ([0] * omitted_fields + fields + [0, 0])[:3]
    # sbatch accepts 90 minutes in h:m:s and carries over; here it is an error, because it is usually a typing error.
    if (days and hours > 23) or (not omitted_fields and minutes > 59) or seconds > 59:
        raise UsageError(f"--time {limit!r}: a number behind the first is too large", TIME_FORMATS)
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    # Zero means no limit in Slurm.
    return min(SIGNAL_SECONDS, total // SIGNAL_SHARE) or SIGNAL_SECONDS


def _container(job: Job, sbatch: SbatchOptions) -> str:
    """Write pyxis's arguments, and a check that an image file exists: enroot's message would come from every node."""
    if job.image is None:
        return "container=()"
    lines = [f"IMAGE=${{IMAGE:-{shlex.quote(job.image)}}}"]
    if job.image.startswith(("/", "./")) or job.image.endswith(".sqsh"):
        lines += [
            'if [ ! -e "$IMAGE" ]; then',
            '  echo "no container image $IMAGE: make it with enroot import -o $IMAGE dockerd://NAME" >&2',
            "  exit 78",
            "fi",
        ]
    lines += [
        f"FSX_MOUNT=${{FSX_MOUNT:-{shlex.quote(sbatch.mounts)}}}",
        'container=(--container-image="$IMAGE" --container-mounts="$FSX_MOUNT")',
    ]
    return "\n".join(lines)


def _preprocess(job: Job) -> str:
    assert job.preprocess
    data = shell.quote(job, job.beside("data.manifest"))
    lines = [
        'srun --nodes=1 --ntasks=1 "${cpu_bind[@]}" "${container[@]}" \\',
        f"  lt-preprocess {shell.command(job.preprocess)} \\",
        f"  > {data}.part || finish $?",
        f"mv {data}.part {data}",
    ]
    return "\n".join([*_directory(job), *lines])


def _train(job: Job) -> str:
    checkpoints = shell.quote(job, job.beside("checkpoints.manifest"))
    nodes = '--nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 ' if job.node_counts else ""
    losses = "--kill-on-bad-exit=0 --no-kill " if job.spare_nodes else "--kill-on-bad-exit=1 "
    resume = "" if job.spare_nodes else '"${auto_resume[@]}" '
    lines = [
        shell.array("train", shell.training_words(job), job),
        shell.sizes_from_environment(job),
        "",
        *([] if job.preprocess else _directory(job)),
        *(_choose_nodes(job.node_counts) if job.node_counts else []),
        "profiling --pause",
        f"# After a rank was killed, or failed as it need not again, all start from what is saved, {RESTARTS} times at most.",
        "# srun ends the other nodes with SIGTERM then, and its status is the largest: 143.",
        f"for _ in {{0..{RESTARTS}}}; do",
        "  status=0",
        f'  srun {losses}{nodes}"${{cpu_bind[@]}}" {resume}"${{container[@]}}" \\',
        f'    bash -c {shlex.quote(TASK)} lt-train "${{train[@]}}" \\',
        f"    > {checkpoints} || status=$?",
        *([f"  if {ENDED} {checkpoints}; then status=0; fi"] if job.spare_nodes else []),
        f'  case "$status" in {shell.pattern(AGAIN_CODES)}) ;; *) break ;; esac',
        *([LOST_NODE] if job.spare_nodes else []),
        "done",
        f'if [ "$status" -gt {PERMANENT} ]; then status=$((status - {PERMANENT})); fi',
        "profiling --resume",
        'if [ "$status" -ne 0 ]; then finish "$status"; fi',
        "# Without its last line the run was ended early, and has saved.",
        f"{ENDED} {checkpoints} || finish 75",
    ]
    return "\n".join(lines)


def _choose_nodes(counts: Sequence[int]) -> list[str]:
    return [
        "# Of the nodes that Slurm has given, the most that the global batch divides among.",
        f"for count in {' '.join(map(str, counts))}; do",
        '  if [ "$count" -le "$SLURM_JOB_NUM_NODES" ]; then nodes=$count; fi',
        "done",
        'echo "lt-train: on $nodes of $SLURM_JOB_NUM_NODES node(s)" >&2',
    ]


def _convert(job: Job) -> str:
    assert job.convert
    checkpoints = shell.quote(job, f"@{job.beside('checkpoints.manifest')}")
    words = " ".join(shell.quote(job, word) for word in job.convert)
    return "\n".join(
        [
            'srun --nodes=1 --ntasks=1 "${cpu_bind[@]}" "${container[@]}" \\',
            f"  lt-convert {words} {checkpoints} || finish $?",
        ]
    )


def _directory(job: Job) -> list[str]:
    """Write the command that creates the directory of the manifests."""
    directory, _, _ = job.beside("x").rpartition("/")
    return [f"mkdir -p {shell.quote(job, directory)}"] if directory else []
