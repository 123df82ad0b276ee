"""Turn a request's debugger, profiler and TensorBoard fields into arguments of SDK version 2's estimators."""

from __future__ import annotations

from typing import Any

from cloudtrain.targets.common.export.calls import Call
from cloudtrain.targets.common.export.fields import Fields

HOOK = "DebugHookConfig"
PROFILER = "ProfilerConfig"
TENSORBOARD = "TensorBoardOutputConfig"
DEBUG_RULES = "DebugRuleConfigurations"
PROFILER_RULES = "ProfilerRuleConfigurations"

_OF_RULES = {
    "RuleConfigurationName": "name",
    "RuleEvaluatorImage": "image_uri",
    "InstanceType": "instance_type",
    "LocalPath": "container_local_output_path",
    "S3OutputPath": "s3_output_path",
    "VolumeSizeInGB": "volume_size_in_gb",
}


def monitoring_arguments(fields: Fields, output: str) -> dict[str, Any]:
    """Return the estimator's arguments for these fields. Fields that no argument can express stay in `fields`.

    `output` is the S3 folder that the SDK uses by default.
    """
    rows = fields.take(DEBUG_RULES, ())
    if any("action_json" in row.get("RuleParameters", {}) for row in rows):  # the SDK drops it from a plain rule
        fields.put_back(DEBUG_RULES, rows)
        rows = ()
    rules = [_rule("Rule", row) for row in rows]
    if fields.take_if(f"{PROFILER}.DisableProfiler", False):  # the SDK refuses profiler rules if the profiler is off
        rules += [_rule("ProfilerRule", row) for row in fields.take(PROFILER_RULES, ())]
    arguments = _hook(fields.take(HOOK), output) | ({"rules": rules} if rules else {})
    board = fields.take(TENSORBOARD)
    if board is not None:
        arguments["tensorboard_output_config"] = Call("sagemaker.debugger.TensorBoardOutputConfig", _places(board))
    return arguments | _profiler(fields, output)


def _rule(kind: str, rule: dict[str, Any]) -> Call:
    arguments = {argument: rule.get(name) for name, argument in _OF_RULES.items()}
    arguments["rule_parameters"] = dict(rule.get("RuleParameters", {}))
    if kind == "Rule":
        arguments["collections_to_save"] = []
    return Call(f"sagemaker.debugger.{kind}", arguments)


def _hook(hook: dict[str, Any] | None, output: str) -> dict[str, Any]:
    if hook is None:
        return {"debugger_hook_config": False}
    if hook == {"S3OutputPath": output, "CollectionConfigurations": []}:
        return {}
    arguments = _places(hook)
    if "HookParameters" in hook:
        arguments["hook_parameters"] = hook["HookParameters"]
    arguments["collection_configs"] = [_collection(one) for one in hook.get("CollectionConfigurations", ())]
    return {"debugger_hook_config": Call("sagemaker.debugger.DebuggerHookConfig", arguments)}


def _collection(collection: dict[str, Any]) -> Call:
    arguments = {"name": collection["CollectionName"]}
    if "CollectionParameters" in collection:
        arguments["parameters"] = collection["CollectionParameters"]
    return Call("sagemaker.debugger.CollectionConfig", arguments)


def _places(config: dict[str, Any]) -> dict[str, Any]:
    places = {"s3_output_path": config["S3OutputPath"], "container_local_output_path": config.get("LocalPath")}
    return {name: place for name, place in places.items() if place is not None}


def _profiler(fields: Fields, output: str) -> dict[str, Any]:
    if fields.take_if(f"{PROFILER}.DisableProfiler", True):
        return {"disable_profiler": True}
    fields.take(f"{PROFILER}.DisableProfiler")
    place = fields.take(f"{PROFILER}.S3OutputPath")
    interval = fields.take(f"{PROFILER}.ProfilingIntervalInMilliseconds")
    if place == output and interval is None:
        return {}
    arguments = {"s3_output_path": place} | ({"system_monitor_interval_millis": interval} if interval else {})
    return {"profiler_config": Call("sagemaker.debugger.ProfilerConfig", arguments)}
