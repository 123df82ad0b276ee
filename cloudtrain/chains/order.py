"""What a watcher works from: the plan that is sent later, and the runs that it waits for.

chain.json     the order, as it was submitted
code.tar.gz    the code, in case the target has lost it by then
sending/       a run store of the watcher's own: the submission to the target goes through its stages there
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.core.plan import Plan, Upload
from cloudtrain.core.states import RunRef
from cloudtrain.sweeps.folder import DrivenFolder


class ChainFolder(DrivenFolder):
    """The folder of one run that waits: `chains/NAME` in the state folder."""

    kind = "chain"

    @property
    def sending(self) -> Path:
        """The folder of the watcher's own run store. It exists once something may have been sent."""
        return self.path / "sending"


@dataclass(frozen=True)
class Order:
    """A request to send once some runs have succeeded."""

    plan: Plan
    bundle: str
    """Hash of the code."""
    key: str
    submitter: str
    after: tuple[RunRef, ...]

    @property
    def reason(self) -> str:
        """`waits for prepare-5d1f0a37-1`."""
        return f"waits for {' and '.join(ref.name for ref in self.after)}"

    def to_json(self) -> str:
        """The order as text. Data of this machine is in place already, so it is left out."""
        plan = {name: getattr(self.plan, name) for name in ("target", "run_name", "job_name", "request", "place")}
        uploads = [item._asdict() for item in self.plan.uploads if item.kind != "data"]
        rest = {name: getattr(self, name) for name in ("bundle", "key", "submitter")}
        return json.dumps({"plan": {**plan, "uploads": uploads}, "after": list(map(str, self.after)), **rest})

    @classmethod
    def read(cls, folder: ChainFolder) -> Order:
        """What `to_json` wrote."""
        data = json.loads(folder.specification.read_bytes())
        uploads = tuple(Upload(**item) for item in data["plan"].pop("uploads"))
        plan, after = Plan(**data.pop("plan"), uploads=uploads), tuple(map(RunRef.parse, data.pop("after")))
        return cls(plan=plan, after=after, **data)
