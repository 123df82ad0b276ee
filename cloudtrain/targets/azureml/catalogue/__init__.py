"""VM sizes and curated environments of Azure ML. `tools/gen_azureml_instances.py` generates the table of sizes."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.catalogue.instances import InstanceTable

DATA = Path(__file__).with_name("data")


def _explain_unknown(name: str) -> str | None:
    """Return a sentence about the properties that an unknown size's name suggests; None if it suggests none."""
    from cloudtrain.targets.azureml.catalogue.vm_names import guess

    guessed = guess(name)
    return None if guessed is None else guessed.text


TABLE = InstanceTable(
    DATA / "instances.csv", prefix="Standard_", any_case=True, fabric="infiniband", explain_unknown=_explain_unknown
)
