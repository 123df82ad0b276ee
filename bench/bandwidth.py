"""The bandwidth script's all-reduce beside one timed by hand: two processes here, two nodes of a real Slurm cluster.

    python bench/bandwidth.py [local|slurm ...]        both unless given; the cluster is started on this machine

The script takes both in turn, five times, and compares the best of each. Exit code 1 when they differ by over 10%.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = ROOT / "tools" / "slurm_cluster.py"
LIMIT = 10.0
PARAMETERS = {"check": "true", "largest": 1 << 24, "smallest": 1 << 20, "width": 64, "rounds": 2}
COMPARISON = re.compile(r"an all-reduce of .* timed by hand: .*; ours ([+-][\d.]+)%")


def difference(name: str, *options: str, folder: Path, **variables: str) -> float:
    """Percent, of a job that is submitted and followed."""
    sets = [f"--set=hyperparameters.{key}={value}" for key, value in PARAMETERS.items()]
    job = ROOT / "training_scripts" / "bandwidth" / "job.yaml"
    command = [sys.executable, "-m", "cloudtrain", "submit", str(job), *sets, *options]
    home = {"CLOUDTRAIN_STATE_DIR": str(folder / "state")}
    found = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **home, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    match = COMPARISON.search(found.stdout)
    if match is None:
        sys.exit(f"{found.stdout}\n{found.stderr}")
    print(f"{name:<18} {match[0]}", flush=True)
    return abs(float(match[1]))


def main() -> int:
    """Measure, print, judge."""
    wanted = sys.argv[1:] or ["local", "slurm"]
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="bandwidth-") as name:
        folder = Path(name)
        if "local" in wanted:
            worst = difference("two processes", "--processes-per-instance=2", folder=folder)
        if "slurm" in wanted:
            settings = {
                "shared_dir": f"{name}/shared",
                "python": sys.executable,
                "rendezvous_host": "127.0.0.1",
            }
            lines = [f'{key} = "{value}"' for key, value in settings.items()]
            (folder / "cloudtrain.toml").write_text("\n".join(["[slurm]", *lines, ""]))
            cluster = folder / "cluster"
            subprocess.run(
                [sys.executable, str(CLUSTER), "start", str(cluster), "2"],
                check=True,
                capture_output=True,
            )
            try:
                options = ["--target=slurm", "--set=resources.instance_count=2"]
                conf = f"{cluster}/slurm.conf"
                worst = max(
                    worst, difference("two Slurm nodes", *options, folder=folder, SLURM_CONF=conf)
                )
            finally:
                subprocess.run(
                    [sys.executable, str(CLUSTER), "stop", str(cluster)],
                    check=False,
                    capture_output=True,
                )
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
