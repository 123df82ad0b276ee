"""Launch specifications for tests that need one, and not all of it."""

from __future__ import annotations

from typing import Any

from cloudtrain.targets.common.specification import CodePlace, LaunchSpecification


def specification(**fields: Any) -> LaunchSpecification:
    """These fields, and for the others what a small run has."""
    run_dir = "/state/runs/toy-12ab-1"
    usual: dict[str, Any] = {
        "name": "toy-12ab-1",
        "run_dir": run_dir,
        "code": CodePlace("/state/bundles/ab/sourcedir.tar.gz", "ab", f"{run_dir}/code"),
        "directories": (),
        "launcher": "processes",
        "instances": 1,
        "world_size": 1,
        "ports": (),
        "processes": (),
        "finishes": (),
        "grace_period": 30,
        "max_runtime": None,
    }
    return LaunchSpecification(**{**usual, **fields})
