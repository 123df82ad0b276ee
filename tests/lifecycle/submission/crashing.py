"""Submits jobs to a folder, through the public API, in forks that die; see `forking.py`.

python crashing.py                     carries out orders: `source`, and `name` of the job
python crashing.py SOURCE NAME ...     submits a job of each name, all at the same time, and prints the runs' names
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import cloudtrain as ct
import cloudtrain.lifecycle.submission.submit
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.system import plugins as targets
from tests.fakes.file_target import FileService, FileTarget
from tests.lifecycle.submission.forking import around, put_points, serve

assert cloudtrain.lifecycle.submission.submit
targets.LOADED["local"] = FileTarget()


@around
def tell(run: ct.Run) -> None:
    """What the command line does: the name on stdout."""
    os.write(1, f"{run.name} {'adopted' if run.adopted else 'new'}\n".encode())


def submit(order: dict[str, Any]) -> None:
    """One job."""
    job = ct.TrainingJob(
        name=order.get("name", "job"), source_dir=order["source"], entry_point="train.py"
    )
    ct.submit(job, "local", on_run=tell)


def submit_together(source: str, names: list[str]) -> None:
    """In a fork for each name; all of them begin when the last one is there."""
    waits, starts = os.pipe()
    children = []
    for name in names:
        children.append(os.fork())
        if children[-1] == 0:
            os.close(starts)
            os.read(waits, 1)  # until nobody has the other end
            submit({"source": source, "name": name})
            os._exit(0)
    os.close(starts)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(ended), ended


put_points((Store, ("reserve", "advance")), (FileService, ("upload", "has", "submit", "created")))
if len(sys.argv) > 1:
    submit_together(sys.argv[1], sys.argv[2:])
else:
    serve(submit)
