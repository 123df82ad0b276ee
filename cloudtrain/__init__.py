"""One typed distributed training job that runs on this machine, Amazon SageMaker, Azure Machine Learning or Slurm.

`import cloudtrain` imports no other module. Each public name is loaded on first use. `__all__` lists the whole public
API.
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from cloudtrain.adoption.adopt import adopt as adopt
    from cloudtrain.adoption.proof import Adoption as Adoption
    from cloudtrain.api import bundled_job as bundled_job
    from cloudtrain.api import check as check
    from cloudtrain.api import load_job as load_job
    from cloudtrain.api import load_sweep as load_sweep
    from cloudtrain.api import pin as pin
    from cloudtrain.api import plan as plan
    from cloudtrain.api import submit as submit
    from cloudtrain.api import upload as upload
    from cloudtrain.core.data import Checkpoint as Checkpoint
    from cloudtrain.core.data import Input as Input
    from cloudtrain.core.data import Output as Output
    from cloudtrain.core.distribution import MPI as MPI
    from cloudtrain.core.distribution import SMDDP as SMDDP
    from cloudtrain.core.distribution import SMP as SMP
    from cloudtrain.core.distribution import DeepSpeed as DeepSpeed
    from cloudtrain.core.distribution import Horovod as Horovod
    from cloudtrain.core.distribution import NoDistribution as NoDistribution
    from cloudtrain.core.distribution import Ray as Ray
    from cloudtrain.core.distribution import TensorFlow as TensorFlow
    from cloudtrain.core.distribution import Torch as Torch
    from cloudtrain.core.job import Environment as Environment
    from cloudtrain.core.job import Spot as Spot
    from cloudtrain.core.job import TrainingJob as TrainingJob
    from cloudtrain.core.plan import Finding as Finding
    from cloudtrain.core.plan import Level as Level
    from cloudtrain.core.plan import Plan as Plan
    from cloudtrain.core.processing import ProcessingInput as ProcessingInput
    from cloudtrain.core.processing import ProcessingJob as ProcessingJob
    from cloudtrain.core.processing import ProcessingOutput as ProcessingOutput
    from cloudtrain.core.resources import InstanceGroup as InstanceGroup
    from cloudtrain.core.resources import InstancePreference as InstancePreference
    from cloudtrain.core.resources import Resources as Resources
    from cloudtrain.core.search import Range as Range
    from cloudtrain.core.states import LogLine as LogLine
    from cloudtrain.core.states import RunRef as RunRef
    from cloudtrain.core.states import RunState as RunState
    from cloudtrain.core.states import RunStatus as RunStatus
    from cloudtrain.core.sweep import Objective as Objective
    from cloudtrain.core.sweep import StopEarly as StopEarly
    from cloudtrain.core.sweep import Sweep as Sweep
    from cloudtrain.core.trial import Trial as Trial
    from cloudtrain.errors import CloudtrainError as CloudtrainError
    from cloudtrain.errors import JobError as JobError
    from cloudtrain.errors import PreflightError as PreflightError
    from cloudtrain.errors import RunNotFound as RunNotFound
    from cloudtrain.errors import SettingsError as SettingsError
    from cloudtrain.errors import TargetError as TargetError
    from cloudtrain.history import diff as diff
    from cloudtrain.lifecycle.run import Run as Run
    from cloudtrain.lookup import recover as recover
    from cloudtrain.lookup import run as run
    from cloudtrain.lookup import runs as runs
    from cloudtrain.sweeps.sweep_run import SweepRun as SweepRun
    from cloudtrain.targets.azureml.settings import AzureML as AzureML
    from cloudtrain.targets.local.settings import Local as Local
    from cloudtrain.targets.sagemaker.settings import SageMaker as SageMaker
    from cloudtrain.targets.slurm.settings import Slurm as Slurm

__version__ = "0.1.0"

_HOME = {
    "Run": "lifecycle.run",
    "Adoption": "adoption.proof",
    "adopt": "adoption.adopt",
    "bundled_job": "api",
    "check": "api",
    "diff": "history",
    "load_job": "api",
    "load_sweep": "api",
    "pin": "api",
    "plan": "api",
    "recover": "lookup",
    "run": "lookup",
    "runs": "lookup",
    "submit": "api",
    "upload": "api",
    "Checkpoint": "core.data",
    "Input": "core.data",
    "Output": "core.data",
    "MPI": "core.distribution",
    "SMDDP": "core.distribution",
    "SMP": "core.distribution",
    "DeepSpeed": "core.distribution",
    "Horovod": "core.distribution",
    "NoDistribution": "core.distribution",
    "Ray": "core.distribution",
    "TensorFlow": "core.distribution",
    "Torch": "core.distribution",
    "CloudtrainError": "errors",
    "JobError": "errors",
    "PreflightError": "errors",
    "RunNotFound": "errors",
    "SettingsError": "errors",
    "TargetError": "errors",
    "Environment": "core.job",
    "Spot": "core.job",
    "TrainingJob": "core.job",
    "Finding": "core.plan",
    "Level": "core.plan",
    "Plan": "core.plan",
    "ProcessingInput": "core.processing",
    "ProcessingJob": "core.processing",
    "ProcessingOutput": "core.processing",
    "InstanceGroup": "core.resources",
    "InstancePreference": "core.resources",
    "Resources": "core.resources",
    "LogLine": "core.states",
    "RunRef": "core.states",
    "RunState": "core.states",
    "RunStatus": "core.states",
    "Range": "core.search",
    "Objective": "core.sweep",
    "StopEarly": "core.sweep",
    "Sweep": "core.sweep",
    "Trial": "core.trial",
    "SweepRun": "sweeps.sweep_run",
    "AzureML": "targets.azureml.settings",
    "Local": "targets.local.settings",
    "SageMaker": "targets.sagemaker.settings",
}

__all__ = sorted(_HOME)


if not TYPE_CHECKING:  # with this function a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        value = _settings_model(name) if name not in _HOME else None
        if name in _HOME:
            from importlib import import_module

            value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def _settings_model(name: str) -> object:
        """Return the settings class that is called `name`, such as `Slurm`; None if no installed target has it."""
        if not name[:1].isupper():
            return None
        from cloudtrain.core.targets import all_targets

        models = (target.settings_model for target in all_targets())
        return next((model for model in models if model.__name__ == name), None)


def __dir__() -> "list[str]":  # a string annotation, for Python 3.7 and 3.8 in old containers
    return sorted({*globals(), *__all__})
