"""Turn a request's profiler, debugger and their rules into settings: the inverse of `compile/monitoring`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_RULES = {
    "RuleConfigurationName": "name",
    "RuleEvaluatorImage": "image",
    "RuleParameters": "parameters",
    "InstanceType": "instance_type",
    "LocalPath": "local_path",
    "S3OutputPath": "output",
}


def monitoring_settings(request: Mapping[str, Any], output: str | None) -> dict[str, Any]:
    """Return the settings; None for each setting with its default value. `output` is the S3 folder of the outputs."""
    profiler, hook = request.get("ProfilerConfig") or {}, request.get("DebugHookConfig")
    found: dict[str, Any] = {
        "profiler_rules": [_rule(row) for row in request.get("ProfilerRuleConfigurations") or ()] or None,
        "debug_rules": [_rule(row) for row in request.get("DebugRuleConfigurations") or ()] or None,
    }
    if profiler.get("DisableProfiler") is False:
        place = profiler.get("S3OutputPath")
        found |= {
            "profiler": True,
            "profiler_output": place if place != output else None,
            "profiler_interval": profiler.get("ProfilingIntervalInMilliseconds"),
            "profiler_parameters": profiler.get("ProfilingParameters") or None,
        }
    if hook is not None:
        place = hook.get("S3OutputPath")
        rows = hook.get("CollectionConfigurations") or ()
        found |= {
            "debugger": True,
            "debugger_output": place if place != output else None,
            "debugger_path": hook.get("LocalPath"),
            "debugger_parameters": hook.get("HookParameters") or None,
            "debugger_collections": {
                row["CollectionName"]: row.get("CollectionParameters") or {} for row in rows if "CollectionName" in row
            }
            or None,
        }
    return found


def _rule(row: Mapping[str, Any]) -> dict[str, Any]:
    size = row.get("VolumeSizeInGB")
    rule = {ours: row[theirs] for theirs, ours in _OF_RULES.items() if row.get(theirs)}
    return rule | ({"volume_size": f"{size}g"} if size else {})
