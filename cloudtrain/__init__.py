"""One typed distributed training job, run on this machine, on Amazon SageMaker and on Azure Machine Learning.

Importing this package imports nothing else: each public name is loaded on first use, so that `import cloudtrain`
costs what bare Python costs. The table below is the whole public surface.
"""

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from cloudtrain.api import bundled_job as bundled_job
    from cloudtrain.api import load_job as load_job
    from cloudtrain.api import plan as plan
    from cloudtrain.api import run as run
    from cloudtrain.api import runs as runs
    from cloudtrain.api import submit as submit
    from cloudtrain.data import Checkpoint as Checkpoint
    from cloudtrain.data import Input as Input
    from cloudtrain.data import Output as Output
    from cloudtrain.distribution import MPI as MPI
    from cloudtrain.distribution import SMDDP as SMDDP
    from cloudtrain.distribution import SMP as SMP
    from cloudtrain.distribution import DeepSpeed as DeepSpeed
    from cloudtrain.distribution import Horovod as Horovod
    from cloudtrain.distribution import NoDistribution as NoDistribution
    from cloudtrain.distribution import TensorFlow as TensorFlow
    from cloudtrain.distribution import Torch as Torch
    from cloudtrain.errors import CloudtrainError as CloudtrainError
    from cloudtrain.errors import JobError as JobError
    from cloudtrain.errors import PreflightError as PreflightError
    from cloudtrain.errors import RunNotFound as RunNotFound
    from cloudtrain.handle import Run as Run
    from cloudtrain.job import Environment as Environment
    from cloudtrain.job import Spot as Spot
    from cloudtrain.job import TrainingJob as TrainingJob
    from cloudtrain.plans import Finding as Finding
    from cloudtrain.plans import Plan as Plan
    from cloudtrain.processing import ProcessingInput as ProcessingInput
    from cloudtrain.processing import ProcessingJob as ProcessingJob
    from cloudtrain.processing import ProcessingOutput as ProcessingOutput
    from cloudtrain.resources import InstanceGroup as InstanceGroup
    from cloudtrain.resources import Resources as Resources
    from cloudtrain.states import RunRef as RunRef
    from cloudtrain.states import RunState as RunState
    from cloudtrain.targets import AzureML as AzureML
    from cloudtrain.targets import Local as Local
    from cloudtrain.targets import SageMaker as SageMaker

__version__ = "0.1.0"

_HOME = {
    "Run": "handle",
    "bundled_job": "api",
    "load_job": "api",
    "plan": "api",
    "run": "api",
    "runs": "api",
    "submit": "api",
    "Checkpoint": "data",
    "Input": "data",
    "Output": "data",
    "MPI": "distribution",
    "SMDDP": "distribution",
    "SMP": "distribution",
    "DeepSpeed": "distribution",
    "Horovod": "distribution",
    "NoDistribution": "distribution",
    "TensorFlow": "distribution",
    "Torch": "distribution",
    "CloudtrainError": "errors",
    "JobError": "errors",
    "PreflightError": "errors",
    "RunNotFound": "errors",
    "Environment": "job",
    "Spot": "job",
    "TrainingJob": "job",
    "Finding": "plans",
    "Plan": "plans",
    "ProcessingInput": "processing",
    "ProcessingJob": "processing",
    "ProcessingOutput": "processing",
    "InstanceGroup": "resources",
    "Resources": "resources",
    "RunRef": "states",
    "RunState": "states",
    "AzureML": "targets",
    "Local": "targets",
    "SageMaker": "targets",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
