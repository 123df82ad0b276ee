"""Jobs as users write them, checked by mypy (not run): every field keeps its type, and a wrong one is seen.

Each `type: ignore` is a mistake that mypy must find; with `warn_unused_ignores` an unneeded one is an error.
"""

from __future__ import annotations

import cloudtrain as ct

job = ct.TrainingJob(
    name="a",
    entry_point="train.py",
    hyperparameters={"epochs": 10, "layers": [1, 2]},
    distribution=ct.Torch(processes_per_instance=8),
    resources=ct.Resources(instance_count=2, gpu="A100-40GB"),
    inputs={"train": ct.Input(local="data")},
    max_runtime=7200,
)
count: int = job.resources.instance_count
processes: int | None = ct.Torch().processes_per_instance
place: str | None = job.inputs["train"].of("local")
runtime: int | None = job.max_runtime

ct.Resources(instance_cout=2)  # type: ignore[call-arg]
count = "two"  # type: ignore[assignment]
ct.SMP()  # type: ignore[call-arg]
job.name = "b"  # type: ignore[misc]
text: str = job.resources.instance_count  # type: ignore[assignment]
