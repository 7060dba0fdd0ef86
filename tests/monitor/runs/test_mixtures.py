"""What lt-train says of a mixture: validation sets, losses of its datasets, samples that were left out."""

import json
from pathlib import Path

import pytest

from lt_monitor.logs import log_files
from lt_monitor.runs import run_loader
from lt_monitor.runs.metrics import curves_of
from lt_monitor.runs.speed import RunFacts
from lt_monitor.runs.summary import summarize
from lt_shared.contracts.run_log import Evaluation, Step
from lt_shared.data.sample_order.log_notes import PhaseBegins, Skipped


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = []
    for step in (1, 2, 3):
        sources = {"web": 4.0 - step, "code": 5.0 - step} if step < 3 else {"web": 0.5}
        lines.append(Step(step, 3, loss=4.5 - step, loss_scale=1.0, source_losses=sources, skipped_steps=0, nan_steps=0).format())
        lines.append(Evaluation(step, 3.5 - step / 2, "validation", "news").format())
        lines.append(Evaluation(step, 4.5 - step / 2, "validation", "math", is_first=False).format())
    lines.append(Skipped(3, 2, 8).format())
    lines[4:4] = [PhaseBegins(2, "annealing: code, maths", 64, {"code": 0.5, "web": 0.5}, 16).format()]
    lines.append(PhaseBegins(4, "never reached", 64, {"web": 1.0}).format())
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_sets_and_sources_are_summarized_and_drawn(log: Path) -> None:
    (run,) = run_loader.read([str(log)])
    summary = summarize(run)
    assert summary.phase == "annealing: code, maths"
    assert summary.validation_losses == {"news": 2.0, "math": 3.0}
    assert (summary.validation_loss, summary.best_validation_loss) == (2.0, 2.0)
    assert summary.source_losses == {"web": 0.5, "code": 3.0}
    drawn = {metric.short: [curve[1].tolist() for curve in curves] for metric, curves in curves_of([run], RunFacts())}
    assert drawn["validation math"] == [[4.0, 3.5, 3.0]]
    assert drawn["loss on web"] == [[3.0, 2.0, 0.5]]
    assert drawn["loss on code"] == [[4.0, 3.0]]
    assert "validation news" not in drawn
    ((metric, curves),) = curves_of([run], RunFacts(), ["Validation_News"])
    assert (metric.short, curves[0][1].tolist()) == ("validation news", [3.0, 2.5, 2.0])


def test_skipped_samples_are_a_note(log: Path) -> None:
    notes = [record for block in log_files.event_blocks(str(log)) for record in block if record["kind"] == "note"]
    records = [record for record in notes if record["note"] != PhaseBegins.NOTE]
    assert notes[0]["fields"] == {"step": 2, "seq_length": 64, "global_batch_size": 16, "name": "annealing: code, maths"}
    assert notes[-1]["fields"] == {"step": 4, "seq_length": 64, "name": "never reached"}
    assert [(record["note"], record["fields"]) for record in records] == [
        ("skipped-samples", {"step": 3, "left_out": 2, "samples": 8})
    ]
    assert json.dumps(records)
