"""One typed distributed training job that runs on this machine, Amazon SageMaker, Azure Machine
Learning or Slurm.

`import cloudtrain` imports no other module. Each public name is loaded on first use. `__all__`
lists the whole public API.
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from cloudtrain.adoption.adopt import adopt as adopt
    from cloudtrain.adoption.proof import Adoption as Adoption
    from cloudtrain.api import bundled_job as bundled_job
    from cloudtrain.api import check as check
    from cloudtrain.api import diff as diff
    from cloudtrain.api import fit as fit
    from cloudtrain.api import load_job as load_job
    from cloudtrain.api import load_sweep as load_sweep
    from cloudtrain.api import pin as pin
    from cloudtrain.api import plan as plan
    from cloudtrain.api import submit as submit
    from cloudtrain.api import upload as upload
    from cloudtrain.errors import CloudtrainError as CloudtrainError
    from cloudtrain.errors import JobError as JobError
    from cloudtrain.errors import PersonNeeded as PersonNeeded
    from cloudtrain.errors import PlanDiffers as PlanDiffers
    from cloudtrain.errors import PreflightError as PreflightError
    from cloudtrain.errors import RunNotFound as RunNotFound
    from cloudtrain.errors import SettingsError as SettingsError
    from cloudtrain.errors import TargetError as TargetError
    from cloudtrain.estimate.report import FitReport as FitReport
    from cloudtrain.job.data import Checkpoint as Checkpoint
    from cloudtrain.job.data import Input as Input
    from cloudtrain.job.data import Output as Output
    from cloudtrain.job.distribution import MPI as MPI
    from cloudtrain.job.distribution import SMDDP as SMDDP
    from cloudtrain.job.distribution import SMP as SMP
    from cloudtrain.job.distribution import DeepSpeed as DeepSpeed
    from cloudtrain.job.distribution import Horovod as Horovod
    from cloudtrain.job.distribution import NoDistribution as NoDistribution
    from cloudtrain.job.distribution import Ray as Ray
    from cloudtrain.job.distribution import TensorFlow as TensorFlow
    from cloudtrain.job.distribution import Torch as Torch
    from cloudtrain.job.processing import ProcessingInput as ProcessingInput
    from cloudtrain.job.processing import ProcessingJob as ProcessingJob
    from cloudtrain.job.processing import ProcessingOutput as ProcessingOutput
    from cloudtrain.job.sweep import Objective as Objective
    from cloudtrain.job.sweep import Range as Range
    from cloudtrain.job.sweep import StopEarly as StopEarly
    from cloudtrain.job.sweep import Sweep as Sweep
    from cloudtrain.job.training import Environment as Environment
    from cloudtrain.job.training import InstanceGroup as InstanceGroup
    from cloudtrain.job.training import InstancePreference as InstancePreference
    from cloudtrain.job.training import Resources as Resources
    from cloudtrain.job.training import Spot as Spot
    from cloudtrain.job.training import TrainingJob as TrainingJob
    from cloudtrain.lifecycle.runs.compare import compare as compare
    from cloudtrain.lifecycle.runs.find import recover as recover
    from cloudtrain.lifecycle.runs.find import run as run
    from cloudtrain.lifecycle.runs.find import runs as runs
    from cloudtrain.lifecycle.runs.run import Run as Run
    from cloudtrain.lifecycle.runs.sweep import SweepRun as SweepRun
    from cloudtrain.page.notebook import ui as ui
    from cloudtrain.plans.plan import Finding as Finding
    from cloudtrain.plans.plan import Level as Level
    from cloudtrain.plans.plan import Plan as Plan
    from cloudtrain.plans.progress import LogLine as LogLine
    from cloudtrain.plans.progress import RunStatus as RunStatus
    from cloudtrain.plans.progress import Trial as Trial
    from cloudtrain.plans.states import RunRef as RunRef
    from cloudtrain.plans.states import RunState as RunState
    from cloudtrain.targets.azureml.settings import AzureML as AzureML
    from cloudtrain.targets.local.settings import Local as Local
    from cloudtrain.targets.sagemaker.settings import SageMaker as SageMaker
    from cloudtrain.targets.slurm.settings import Slurm as Slurm
    from cloudtrain.version import __version__ as __version__

_NAMES = {
    "adoption.adopt": "adopt",
    "adoption.proof": "Adoption",
    "api": "bundled_job check diff fit load_job load_sweep pin plan submit upload",
    "errors": "CloudtrainError JobError PersonNeeded PlanDiffers PreflightError RunNotFound"
    " SettingsError TargetError",
    "estimate.report": "FitReport",
    "job.data": "Checkpoint Input Output",
    "job.distribution": "DeepSpeed Horovod MPI NoDistribution Ray SMDDP SMP TensorFlow Torch",
    "job.processing": "ProcessingInput ProcessingJob ProcessingOutput",
    "job.sweep": "Objective Range StopEarly Sweep",
    "job.training": "Environment InstanceGroup InstancePreference Resources Spot TrainingJob",
    "lifecycle.runs.compare": "compare",
    "lifecycle.runs.find": "recover run runs",
    "lifecycle.runs.run": "Run",
    "lifecycle.runs.sweep": "SweepRun",
    "plans.plan": "Finding Level Plan",
    "plans.progress": "LogLine RunStatus Trial",
    "plans.states": "RunRef RunState",
    "targets.azureml.settings": "AzureML",
    "targets.local.settings": "Local",
    "targets.sagemaker.settings": "SageMaker",
    "page.notebook": "ui",
    "version": "__version__",
}
"""Maps modules to the public names in them."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME.keys() - {"__version__"})


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
        """Return the settings class that is called `name`, such as `Slurm`; None if no installed
        target has it."""
        if not name[:1].isupper():
            return None
        from cloudtrain.system.plugins import all_targets

        models = (target.settings for target in all_targets())
        return next((model for model in models if model.__name__ == name), None)


def __dir__() -> "list[str]":  # a string annotation, for Python 3.7 and 3.8 in old containers
    return sorted({*globals(), *_HOME})
