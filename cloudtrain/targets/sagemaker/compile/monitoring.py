"""Write the request's monitoring fields: profiler, debugger, their rules, TensorBoard and MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from cloudtrain.targets.sagemaker.settings import MonitoringRule, SageMaker


def monitoring(target: SageMaker, output: str) -> dict[str, Any]:
    """Return the monitoring fields of a request.

    Profiler and debugger are off by default, unlike in the SDK. If they are on, they write to `output`, unless the
    settings name another folder. `DisableProfiler` is written because the service profiles by default.
    """
    profiler: dict[str, Any] = {"DisableProfiler": True}
    if target.profiler:
        profiler = {
            "S3OutputPath": target.profiler_output or output,
            "DisableProfiler": False,
            "ProfilingIntervalInMilliseconds": target.profiler_interval,
            "ProfilingParameters": dict(target.profiler_parameters),
        }
    mlflow = {
        "MlflowResourceArn": target.mlflow,
        "MlflowExperimentName": target.mlflow_experiment,
        "MlflowRunName": target.mlflow_run,
    }
    board = {"S3OutputPath": target.tensorboard, "LocalPath": target.tensorboard_path} if target.tensorboard else {}
    return {
        "ProfilerConfig": _written(profiler),
        "ProfilerRuleConfigurations": [_rule(rule) for rule in target.profiler_rules],
        "DebugHookConfig": _hook(target, output) if target.debugger else None,
        "DebugRuleConfigurations": [_rule(rule) for rule in target.debug_rules],
        "TensorBoardOutputConfig": _written(board),
        "MlflowConfig": _written(mlflow),
    }


def _hook(target: SageMaker, output: str) -> dict[str, Any]:
    hook = {
        "S3OutputPath": target.debugger_output or output,
        "LocalPath": target.debugger_path,
        "HookParameters": dict(target.debugger_parameters),
    }
    collections = [
        _written({"CollectionName": name, "CollectionParameters": dict(parameters)})
        for name, parameters in target.debugger_collections.items()
    ]
    return _written(hook) | {"CollectionConfigurations": collections}


def _rule(rule: MonitoringRule) -> dict[str, Any]:
    fields = {
        "RuleConfigurationName": rule.name,
        "RuleEvaluatorImage": rule.image,
        "InstanceType": rule.instance_type,
        "VolumeSizeInGB": ceil(rule.volume_size / 2**30) if rule.volume_size else None,
        "LocalPath": rule.local_path,
        "S3OutputPath": rule.output,
        "RuleParameters": dict(rule.parameters),
    }
    return _written(fields)


def _written(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {})}
