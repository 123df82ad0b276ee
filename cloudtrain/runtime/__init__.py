"""Functions for training scripts: `from cloudtrain import runtime`.

They return the rank, the device, the folders for data and checkpoints, and whether the job is being
stopped. They work the same under torchrun, on SageMaker and on Azure ML. Every bundle contains this
package, so it imports only the standard library; torch, numpy and tensorflow are imported inside
the functions that work with them. Each function is loaded on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from .accelerator import has_bf16 as has_bf16
    from .accelerator import has_float8 as has_float8
    from .accelerator import use_determinism as use_determinism
    from .accelerator import use_tf32 as use_tf32
    from .atomic import prepared as prepared
    from .checkpoints import Checkpoints as Checkpoints
    from .directories import checkpoint_dir as checkpoint_dir
    from .directories import input_dir as input_dir
    from .directories import model_dir as model_dir
    from .directories import output_dir as output_dir
    from .directories import run_dir as run_dir
    from .environment import Environment as Environment
    from .environment import detect_environment as detect_environment
    from .environment import notice as notice
    from .errors import SetupError as SetupError
    from .hyperparameters import arguments as arguments
    from .metrics import check_finite as check_finite
    from .metrics import format_metrics as format_metrics
    from .metrics import parse_metrics as parse_metrics
    from .metrics import report as report
    from .notices import alert as alert
    from .observing import StepProfile as StepProfile
    from .observing import diagnostics_dir as diagnostics_dir
    from .process_group import ProcessGroup as ProcessGroup
    from .process_group import destroy_process_group as destroy_process_group
    from .process_group import init_process_group as init_process_group
    from .randomness import random_states as random_states
    from .randomness import restore_random_states as restore_random_states
    from .secret_values import load_secrets as load_secrets
    from .stopping import exit_preempted as exit_preempted
    from .stopping import leave_stops_to_the_parent as leave_stops_to_the_parent
    from .stopping import should_stop as should_stop
    from .stopping import watch_for_stop as watch_for_stop
    from .tf_config import apply_tf_config as apply_tf_config
    from .tf_config import read_tf_config as read_tf_config

# No name here may equal the name of a file in this folder: importing the file would replace the
# name.
_NAMES = {
    "accelerator": "has_bf16 has_float8 use_determinism use_tf32",
    "atomic": "prepared",
    "checkpoints": "Checkpoints",
    "directories": "checkpoint_dir input_dir model_dir output_dir run_dir",
    "environment": "Environment detect_environment notice",
    "errors": "SetupError",
    "hyperparameters": "arguments",
    "metrics": "check_finite format_metrics parse_metrics report",
    "notices": "alert",
    "observing": "StepProfile diagnostics_dir",
    "process_group": "ProcessGroup destroy_process_group init_process_group",
    "randomness": "random_states restore_random_states",
    "secret_values": "load_secrets",
    "stopping": "exit_preempted leave_stops_to_the_parent should_stop watch_for_stop",
    "tf_config": "apply_tf_config read_tf_config",
}
"""Maps modules to the names in them, separated by spaces."""

__all__ = sorted(" ".join(_NAMES.values()).split())


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names.split():
            from importlib import import_module

            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            import_module(f"{__name__}.taking_part").take_part()
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
