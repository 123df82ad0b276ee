"""Run one instance of an elastic training on Slurm. Each instance is a separate run; the instances meet through a
folder that all nodes share.

Two instances:
    cloudtrain submit job_elastic_slurm.yaml --target slurm --detach
    cloudtrain submit job_elastic_slurm.yaml --target slurm --detach --set hyperparameters.instance=1

When the node of an instance dies, the others continue without it. Slurm starts the lost run again on a free node,
and it joins: `torchrun --nnodes 1:N`. All meet at instance 0: without it the training ends.
"""

import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from cloudtrain.runtime.atomic import write_file


@dataclass
class Config:
    meeting: str  # a folder that all nodes see, new for each training
    instance: int = 0
    most: int = 2  # instances
    processes: int = 1  # on each instance
    host: str = ""  # of this node, as the others reach it; unless given, its name
    epochs: int = 10
    step_delay: float = 0.0
    report_every: int = 5


AT_LEAST = {
    "instance": 0,
    "most": 1,
    "processes": 1,
    "epochs": 1,
    "step_delay": 0,
    "report_every": 1,
}


def endpoint(folder: Path, host: str, *, is_first: bool) -> str:
    """Return the address at which the agents meet. The first instance writes it into the folder, and the others wait
    for it.
    """
    said = folder / "endpoint"
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        write_file(said, f"{host}:{port}".encode())
    while not said.exists():
        time.sleep(0.5)
    return said.read_text()


config = runtime.arguments(Config, at_least=AT_LEAST)
folder, host = Path(config.meeting), config.host or socket.gethostname()
options = [
    "--nnodes",
    f"1:{config.most}",
    "--nproc-per-node",
    str(config.processes),
    "--max-restarts",
    "9",
]
options += ["--rdzv-backend", "c10d", "--rdzv-id", "digits", "--local-addr", host]
options += ["--rdzv-endpoint", endpoint(folder, host, is_first=config.instance == 0)]
options += ["--rdzv-conf", f"is_host={config.instance == 0}"]
script = ["--epochs", str(config.epochs), "--step_delay", str(config.step_delay)]
script += ["--checkpoint_every", "10", "--report_every", str(config.report_every)]
variables = {
    key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_"))
}
variables |= {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "CLOUDTRAIN_CHECKPOINT_DIR": str(folder / "checkpoint"),
}
agent = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    *options,
    str(Path(__file__).with_name("train.py")),
    *script,
]
# so that SIGTERM reaches the agent
os.execve(sys.executable, agent, {**variables, "CLOUDTRAIN_PATIENCE": "60"})
