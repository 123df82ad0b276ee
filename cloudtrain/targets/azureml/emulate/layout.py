"""The locations of an emulated job's instances, data and code on this machine."""

from __future__ import annotations

from cloudtrain.targets.azureml.launch.job import Body, JobLayout, addresses, is_literal, mounted_path, service_paths
from cloudtrain.targets.common.this_machine import LocalAccount

LOOPBACK = "127.0.0.1"


def local_layout(body: Body, account: LocalAccount, run_dir: str, run_name: str, workspace: str) -> JobLayout:
    """Return the job's layout inside the run's folder.

    Each instance has a different host address, because some tools count hosts. All processes listen at 127.0.0.1, on
    free ports that are chosen when the job starts.
    """
    data = f"{run_dir}/data"
    paths = service_paths(body, data)
    paths |= {
        f"inputs.{name}": mounted_path(name, item, data) for name, item in body.inputs.items() if not is_literal(item)
    }
    paths |= {f"outputs.{name}": f"{data}/{name}" for name in body.outputs}
    return JobLayout(
        run_name=run_name,
        workspace_id=workspace,
        hosts=addresses("127.0", 1, body.instances),
        listen=lambda instance, port: (LOOPBACK, f"${{{{ports.instance_{instance}_{port}}}}}"),
        data=data,
        code=tuple(f"{run_dir}/instances/{number}/wd" for number in range(body.instances)),
        paths=paths,
        gpus=account.machine.gpus and max(1, account.machine.gpus // body.instances),
    )
