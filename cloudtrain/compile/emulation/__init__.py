"""`emulate` on the local target: the job as a service would run it, on this machine.

The job is compiled for the service, its counts scaled down, and what the service's machines would start runs here.

    scaled     the job that this machine can run
    sagemaker  as the containers of SageMaker run it
    azureml    as the instances of Azure ML run it
"""

from __future__ import annotations

from cloudtrain.job import TrainingJob
from cloudtrain.plans import CompileContext, Plan
from cloudtrain.targets import Local


def compile_emulation(job: TrainingJob, target: Local, context: CompileContext) -> Plan:
    """The plan of a job that runs here as the target's `emulate` says. `context.account` is a `LocalAccount`.

    Raises:
        JobError: the job cannot run on that service, or cannot be emulated here, with the alternative.
    """
    if target.emulate == "azureml":
        from cloudtrain.compile.emulation.azureml import compile_as_azureml

        return compile_as_azureml(job, target, context)
    from cloudtrain.compile.emulation.sagemaker import compile_as_sagemaker

    return compile_as_sagemaker(job, target, context)
