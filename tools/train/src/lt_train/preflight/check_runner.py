"""The table of checks, the checks that every start runs, and the result as findings and as a JSON record."""

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lt_shared.console import BadConfig, ToolError, note
from lt_train.config import cluster
from lt_train.config.draft import Draft, draft
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.data import training_datasets
from lt_train.config.settings.parallelism import AUTO
from lt_train.planner import search
from lt_train.preflight import dataset_checks, job_checks, machine_checks, model_checks, network_checks, save_checks
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error_finding
from lt_train.process import rank_environment

Check = Callable[[Situation], Iterator[Finding]]


def _group(name: str, *checks: Check) -> dict[str, Check]:
    """Map report names to checks. A report name is the group's name and the function's name."""
    return {f"{name}.{check.__name__}": check for check in checks}


CHECKS: dict[str, Check] = {
    **_group("model", model_checks.settings, model_checks.head_size, model_checks.feed_forward, model_checks.vocabulary),
    **_group("model", model_checks.capability, model_checks.fits),
    **_group("data", dataset_checks.files, dataset_checks.tokenizers, dataset_checks.checksums),
    **_group("saving", save_checks.is_set, save_checks.writable, save_checks.space),
    **_group("saving", save_checks.shared, save_checks.load),
    **_group("network", network_checks.gpus, network_checks.efa_devices, network_checks.efa_used),
    **_group("network", network_checks.interfaces, network_checks.deprecated_variables),
    **_group("machine", machine_checks.open_files, machine_checks.shared_memory, machine_checks.rendezvous_port),
    **_group("machine", machine_checks.clock, machine_checks.preloaded_libraries),
    **_group("machine", machine_checks.bytecode),
    **_group("job", job_checks.image, job_checks.unknown_variables, job_checks.slurm_nodes, job_checks.auto_resume),
    **_group("job", job_checks.wandb_key, job_checks.trainium),
}
# These checks read a few small files. Every start checks the options and the data anyhow.
CHECKS_AT_START: dict[str, Check] = {
    name: CHECKS[name]
    for name in (
        *("model.feed_forward", "model.fits", "saving.writable", "saving.space", "saving.shared"),
        *("network.deprecated_variables", "network.interfaces", "job.unknown_variables"),
        *("machine.open_files", "machine.shared_memory", "machine.preloaded_libraries", "machine.bytecode"),
    )
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The findings. `checked` are names of `CHECKS`; `not_checked` maps the checks that did not apply to the reason.

    `nodes` are the checked nodes, empty for this machine alone.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: dict[str, str]
    nodes: tuple[str, ...] = ()

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_error]

    def with_findings(self, check: str, more: Sequence[Finding]) -> "Result":
        return dataclasses.replace(self, findings=(*self.findings, *more), checked=(*self.checked, check))

    def record(self) -> dict[str, Any]:
        """Return the JSON object of `lt-train preflight --json`."""
        host = socket.gethostname()
        nodes = list(self.nodes) or [host]
        findings = [
            {"level": "error" if finding.is_error else "warning"}
            | {"what": finding.what, "where": finding.where, "remedy": finding.remedy}
            | {"nodes": list(finding.nodes) or nodes}
            for finding in self.findings
        ]
        return {
            "v": 1,
            "kind": "preflight",
            "host": host,
            "nodes": nodes,
            "findings": findings,
            "checked": list(self.checked),
            "not_checked": self.not_checked,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Result":
        """Rebuild a node's result from its `record`. Raises KeyError or TypeError for a malformed record."""
        findings = tuple(
            Finding(finding["level"] == "error", str(finding["what"]), str(finding["where"]), str(finding["remedy"]))
            for finding in record["findings"]
        )
        return cls(findings, tuple(record["checked"]), dict(record["not_checked"]))


def run_checks(checks: Mapping[str, Check], situation: Situation) -> Result:
    """Run every check and collect the findings; an exception of a check becomes an error."""
    findings: list[Finding] = []
    checked: list[str] = []
    not_checked: dict[str, str] = {}
    for name, check in checks.items():
        try:
            for finding in check(situation):
                findings.append(finding)
            checked.append(name)
        except NotChecked as reason:
            not_checked[name] = str(reason)
        except ToolError as problem:
            findings.append(error_finding(problem, name))
    return Result(tuple(findings), tuple(checked), not_checked)


def check_options(
    options: dict[str, Any],
    words: tuple[str, ...],
    planned: cluster.Cluster | None,
    image: str | None,
    verifies_data: bool = False,
) -> Result:
    """Run all checks on a command line. `planned` is the cluster of a run that starts elsewhere, None for this machine."""
    resolved, problems, lacks_data = _resolve_draft(options, words, planned)
    parallelism = resolved.parts.get("parallelism")
    target = planned or (cluster.local_cluster(parallelism.device, parallelism.world_size) if parallelism else None)
    is_elsewhere = planned is not None
    situation = Situation(resolved, target, os.environ, is_elsewhere, image, lacks_data=lacks_data, verifies_data=verifies_data)
    result = run_checks(CHECKS, situation)
    return dataclasses.replace(result, findings=(*problems, *result.findings))


def _resolve_draft(
    options: dict[str, Any], words: tuple[str, ...], planned: cluster.Cluster | None
) -> tuple[Draft, list[Finding], bool]:
    """Resolve the options; return the draft, the findings about settings that failed, and whether mock data replaces the data."""
    problems: list[Finding] = []
    lacks_data = False
    try:
        datasets = training_datasets(words, options)
    except ToolError as problem:
        problems.append(error_finding(problem, "DATA"))
        lacks_data = True
        options, datasets = options | {"mock_data": True, "valid_data_path": (), "test_data_path": ()}, ()
    resolved = draft(options, datasets, planned)
    problems += [error_finding(problem, "options") for problem in resolved.failures]
    config = resolved.config
    if config and options["parallel"] == AUTO:
        target = planned or cluster.local_cluster(config.parallelism.device, config.parallelism.world_size)
        try:
            choice = search.choose(config, options, target)
            resolved = Draft(vars(choice.best.config))
            search.require_fitting(choice)
        except ToolError as problem:
            problems.append(error_finding(problem, "options"))
    return resolved, problems, lacks_data


def check_at_start(config: RunConfig) -> None:
    """Run the cheap checks on every rank, because ranks may be on different machines. Rank 0 prints all findings, others errors.

    Raises BadConfig if there are errors.
    """
    machines = cluster.local_cluster(config.parallelism.device, config.parallelism.world_size)
    result = run_checks(CHECKS_AT_START, Situation(Draft(vars(config)), machines, os.environ))
    rank_env, node = rank_environment.find(), rank_environment.find_node()
    is_first = not (rank_env.rank if rank_env else node.node_rank if node else 0)
    for finding in result.findings if is_first else result.errors:
        note(str(finding))
    if result.errors:
        raise BadConfig(f"{len(result.errors)} mistake(s) that would stop the run", "lt-train preflight makes all checks")
