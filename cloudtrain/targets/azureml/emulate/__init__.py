"""`emulate: azureml`: the job as Azure ML would run it, on this machine.

The job is compiled for Azure ML, its counts scaled down. Azure ML starts the processes of a job itself, so the
supervisor does: each with the argv and the environment of `cloudtrain.targets.azureml.launch.job`. What differs, and
nothing else:

    paths         inputs and outputs are in `data` of the run's folder, and each instance has its copy of the code, its
                  working directory, at `instances/N/wd`
    addresses     where a port is meant, loopback and a free port; in lists of hosts, 127.0.0.1, 127.0.0.2, ...
    interface     `lo` instead of `eth0`
    interpreter   `python` and `python3` are the local target's
    requirements  are not installed
    counts        instances, processes and GPUs are this machine's
    mpirun        is not run: the ranks have the variables that it gives, and MASTER_PORT, a free port in the place of
                  6105
    our own       CLOUDTRAIN_RUN_DIR, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS (each instance's share), PATH,
                  PYTHONUNBUFFERED

    layout        where the instances, their data and their code are here
    stage         the body of the job, and this machine
    specification the launch specification: folders, files, links, processes
    compiler      all of it together: the plan
"""

from __future__ import annotations

from cloudtrain.targets.azureml.emulate.compiler import compile_as_azureml

__all__ = ["compile_as_azureml"]
