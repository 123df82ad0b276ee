"""What `cloudtrain status` says of a run's progress."""

from __future__ import annotations

from cloudtrain.plans.document import to_text
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import metrics_text, progress_text, run_document

HALF = {"step": 230.0, "total": 460.0, "loss": 0.25, "seconds_left": 90.0}


def test_a_run_that_reports_its_total_shows_percent_and_time_left() -> None:
    """And the metrics line keeps what was measured."""
    status = RunStatus(RunState.RUNNING, metrics=HALF)
    assert progress_text(status) == "50%, step 230 of 460, 1m30s left"
    assert metrics_text(HALF) == "loss 0.25 (step 230)"
    text = to_text(run_document("job-1", "local://here/job-1", status))
    assert "50%, step 230 of 460, 1m30s left" in text


def test_a_run_that_ended_has_no_time_left() -> None:
    """Whatever the last line said."""
    assert progress_text(RunStatus(RunState.STOPPED, metrics=HALF)) == "50%, step 230 of 460"


def test_without_a_total_there_is_no_progress() -> None:
    """As for scripts that do not say where they end."""
    assert progress_text(RunStatus(RunState.RUNNING, metrics={"step": 3.0, "loss": 1.0})) == ""
