"""`emulate: azureml`: run the job on this machine as Azure ML would run it.

cloudtrain compiles the job for Azure ML, with its counts scaled down. On Azure ML the service starts a job's processes;
here the supervisor does. Each process has the argv and the environment of `cloudtrain.targets.azureml.launch.job`,
except for:

    paths         inputs and outputs are in `data` of the run's folder; each instance has a copy of the code at
                  `instances/N/wd`, its working directory
    addresses     hosts with a port become 127.0.0.1 and a free port; lists of hosts become 127.0.0.1, 127.0.0.2, ...
    interface     `lo` instead of `eth0`
    interpreter   `python` and `python3` run the local target's interpreter
    requirements  are not installed
    counts        instances, processes and GPUs are this machine's
    mpirun        does not run; the ranks get its variables, and MASTER_PORT is a free port instead of 6105
    added         CLOUDTRAIN_RUN_DIR, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS (each instance's share), PATH,
                  PYTHONUNBUFFERED

    layout        the addresses of the instances, and the paths of data and code, on this machine
    stage         the inputs of an emulation: the job's body, and this machine
    specification the launch specification: folders, files, links, processes
    compiler      combines the parts into the plan
"""

from __future__ import annotations

from cloudtrain.targets.azureml.emulate.compiler import compile_as_azureml

__all__ = ["compile_as_azureml"]
