"""The input of a watcher: the plan to send later, and the runs to wait for.

chain.json     the order, as it was submitted
code.tar.gz    the code, in case the target loses it before the run is sent
sending/       the watcher's own run store, through which it submits the run to the target
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.core.plan import Plan, Upload
from cloudtrain.core.states import RunRef
from cloudtrain.sweeps.folder import DrivenFolder


class ChainFolder(DrivenFolder):
    """The folder of one waiting run: `chains/NAME` in the state folder."""

    kind = "chain"

    @property
    def sending(self) -> Path:
        """The folder of the watcher's own run store. If the folder exists, the run may already have been sent."""
        return self.path / "sending"


@dataclass(frozen=True)
class Order:
    """A request that is sent once the runs in `after` have succeeded."""

    plan: Plan
    bundle: str
    """Hash of the code's bundle."""
    key: str
    submitter: str
    after: tuple[RunRef, ...]

    @property
    def reason(self) -> str:
        """The reason for waiting, as in the run's status: `waits for prepare-5d1f0a37-1`."""
        return f"waits for {' and '.join(ref.name for ref in self.after)}"

    def to_json(self) -> str:
        """Return the order as JSON. Uploads of local data are left out, because they are already done."""
        plan = {name: getattr(self.plan, name) for name in ("target", "run_name", "job_name", "request", "place")}
        uploads = [item._asdict() for item in self.plan.uploads if item.kind != "data"]
        rest = {name: getattr(self, name) for name in ("bundle", "key", "submitter")}
        return json.dumps({"plan": {**plan, "uploads": uploads}, "after": list(map(str, self.after)), **rest})

    @classmethod
    def read(cls, folder: ChainFolder) -> Order:
        """Return the order that `to_json` wrote to the folder."""
        data = json.loads(folder.specification.read_bytes())
        uploads = tuple(Upload(**item) for item in data["plan"].pop("uploads"))
        plan, after = Plan(**data.pop("plan"), uploads=uploads), tuple(map(RunRef.parse, data.pop("after")))
        return cls(plan=plan, after=after, **data)
