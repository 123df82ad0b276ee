"""Turn the search of an Azure ML sweep into the fields of a cloudtrain sweep, and its trial into a
command job."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import exp, prod
from typing import Any

from cloudtrain.job.script import job_name_from
from cloudtrain.runtime.azureml_metrics import WANTED
from cloudtrain.targets.adoption import Original, Search
from cloudtrain.targets.azureml.adopt.job_files import mapping
from cloudtrain.targets.azureml.fields import (
    DISPLAY_NAME,
    EXPERIMENT,
    JOB_TYPE,
    VARIABLES,
    duration_seconds,
)
from cloudtrain.targets.azureml.parts import JsonMapping, JsonObject, present
from cloudtrain.targets.common.compiling import hyperparameter_text


def lifted(properties: JsonMapping) -> JsonObject:
    """Return the body of a sweep with the fields of its trial beside the others."""
    body = {key: value for key, value in properties.items() if key != "trial"}
    return body | present(mapping(properties.get("trial")))


def with_search(original: Original) -> Original:
    """Return a sweep's trial as a command job, in which the parameters that the sweep searches are
    inputs, with the search if `kind: sweep` can express it. The request holds the body of the sweep
    too. Other jobs stay unchanged."""
    body = original.request["properties"]
    if "searchSpace" not in body:
        return original
    command, inputs = str(body.get("command") or ""), dict(body.get("inputs") or {})
    for name, space in body["searchSpace"].items():
        command = command.replace(f"${{{{search_space.{name}}}}}", f"${{{{inputs.{name}}}}}")
        inputs[name] = {
            "jobInputType": "literal",
            "value": hyperparameter_text(_first_value(space)),
        }
    timeout = mapping(body.get("limits")).get("trialTimeout")
    job = {key: value for key, value in body.items() if key not in ("limits", *OF_SEARCH)}
    job |= {JOB_TYPE: "Command", "command": command, "inputs": inputs}
    job |= {"limits": {"jobLimitsType": "Command", "timeout": timeout}} if timeout else {}
    lost = dict.fromkeys((name for name in OF_SEARCH if body.get(name)), "a job is one training")
    lost |= {
        f"limits.{name}": "a job is one training"
        for name in mapping(body.get("limits"))
        if name in _LIMITS
    }
    original = replace(original, request={"properties": job, "sweep": body})
    try:
        return replace(original, search=Search(dict(sweep_fields(original.name, body)), lost))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        lost |= {"searchSpace": f"a sweep cannot express the search: {error}"}
        return replace(original, lost={**original.lost, **lost})


OF_SEARCH = ("searchSpace", "samplingAlgorithm", "objective", "earlyTermination")
_LIMITS = ("maxTotalTrials", "maxConcurrentTrials", "timeout")
"""Parts of a sweep that its trial's job lacks."""


def _first_value(space: list[Any]) -> Any:
    """Return the first choice, the lower bound or the mean of a range."""
    first = space[1][0]
    return first[0] if isinstance(first, list) else _power(first) if "log" in space[0] else first


def _power(exponent: float) -> float:
    """Return the bound whose natural logarithm Azure ML takes."""
    return float(f"{exp(exponent):.12g}")


def sweep_fields(name: str, body: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a sweep except its job. Raises an error if a sweep cannot express the
    search."""
    objective, limits, policy = body["objective"], _limits(body), _policy(body)
    algorithm = present(body["samplingAlgorithm"])
    strategy = algorithm.pop("samplingAlgorithmType").lower()
    seed = algorithm.pop("seed", None)
    if strategy not in ("random", "grid", "bayesian") or algorithm not in ({}, {"rule": "random"}):
        raise ValueError(f"it has no such sampling as `{json.dumps(body['samplingAlgorithm'])}`")
    if not any(word.endswith(".py") for word in str(body.get("command")).split()):
        raise ValueError("its command names no script in Python")
    yield (
        "name",
        job_name_from(str(name or body.get(DISPLAY_NAME) or body.get(EXPERIMENT) or "sweep")),
    )
    yield "search", {key: _range(key, *space) for key, space in body["searchSpace"].items()}
    yield "objective", {objective["goal"].lower(): objective["primaryMetric"]}
    yield "strategy", strategy
    yield "trials", limits["maxTotalTrials"]
    yield "parallel", limits["maxConcurrentTrials"]
    if policy:
        if policy["evaluationInterval"] != 1 or not (
            "slackFactor" in policy or policy["policyType"] == "MedianStopping"
        ):
            raise ValueError(f"it has no such early stopping as `{json.dumps(policy)}`")
        slack = {"slack": policy["slackFactor"]} if "slackFactor" in policy else {}
        yield (
            "stop_early",
            {"bandit" if slack else "median": {**slack, "after": policy["delayEvaluation"]}},
        )
    yield from (("seed", seed),) if seed is not None else ()
    if limits.get("timeout"):
        yield "max_runtime", duration_seconds(limits["timeout"])
    yield "driver", "service"


def _range(name: str, kind: str, arguments: list[Any]) -> Any:
    if kind not in ("choice", "uniform", "loguniform"):
        raise ValueError(f"it has no range `{kind}`, as `{name}` has")
    ranges: JsonObject = {"choice": arguments[0], "uniform": {"uniform": arguments}}
    return ranges[kind] if kind in ranges else {"log": [*map(_power, arguments)]}


def _limits(body: JsonMapping) -> JsonObject:
    """Return the limits of a sweep with the service's defaults (reference of the sweep job's
    schema). A grid runs each combination once."""
    given = present(mapping(body.get("limits")))
    total = given.get("maxTotalTrials", 1000)
    if body["samplingAlgorithm"]["samplingAlgorithmType"].lower() == "grid":
        total = min(
            total,
            prod(
                len(space[1][0]) for space in body["searchSpace"].values() if space[0] == "choice"
            ),
        )
    together = min(given.get("maxConcurrentTrials", total), total)
    return {
        **given,
        "maxConcurrentTrials": together,
        "maxTotalTrials": total,
        "jobLimitsType": "Sweep",
    }


def _policy(body: JsonMapping) -> JsonObject:
    given = present(mapping(body.get("earlyTermination")))
    return {"evaluationInterval": 1, "delayEvaluation": 0, **given} if given else {}


def canonical(sweep: JsonMapping) -> JsonObject:
    """Return the lifted body of a sweep in a form in which equal sweeps compare equal."""
    algorithm = {
        key: value
        for key, value in sweep["samplingAlgorithm"].items()
        if (key, value) != ("rule", "random")
    }
    spaces = {name: [kind, arguments] for name, (kind, arguments) in sweep["searchSpace"].items()}
    for space in spaces.values():
        if space[0] == "loguniform":  # whose bounds a sweep names by their exponentials
            space[1] = [float(f"{bound:.9g}") for bound in space[1]]
    options = _options(str(sweep.get("command")))
    return {
        **sweep,
        JOB_TYPE: "Sweep",
        "command": " --".join(map(" ".join, options.items())) if options else sweep.get("command"),
        VARIABLES: {k: v for k, v in mapping(sweep.get(VARIABLES)).items() if k != WANTED},
        "searchSpace": spaces,
        "samplingAlgorithm": algorithm,
        "objective": {**sweep["objective"], "goal": sweep["objective"]["goal"].lower()},
        "earlyTermination": _policy(sweep),
        "limits": _limits(sweep),
    }


def start_of_trials(command: str, searched: Collection[str]) -> JsonObject:
    """Return the fields of a job that start the trials' command: its script, with the options as
    hyperparameters if the command is `python SCRIPT --NAME VALUE ...`. Any other command stays in
    the overrides."""
    options = _options(command)
    if options is None:
        return {"entry_point": next(word for word in command.split() if word.endswith(".py"))}
    script = {"entry_point": options.pop("python")}
    own = {name: value for name, value in options.items() if "search_space." not in value}
    ranges = {name: f"${{{{search_space.{name}}}}}" for name in searched}
    if {**own, **ranges}.keys() != options.keys() or not ranges.items() <= options.items():
        return script
    return script | (
        {"hyperparameters": own} if own and all(len(name) > 1 for name in options) else {}
    )


def _options(command: str) -> dict[str, str] | None:
    """Return the options of `python SCRIPT --NAME VALUE ...` by their names, in alphabetical order,
    after `python` with the script; None for any other command."""
    words = command.split()
    names, values = words[2::2], words[3::2]
    is_plain = all(map(_PLAIN.fullmatch, words)) and all(name.startswith("--") for name in names)
    if words[:1] != ["python"] or len(words) % 2 or len({*names}) < len(names) or not is_plain:
        return None
    return {"python": words[1]} | dict(
        sorted((name[2:], value) for name, value in zip(names, values, strict=True))
    )


_PLAIN = re.compile(r"[\w@%+=:,./-]+|\$\{\{[\w.]+\}\}")
"""A word that every shell leaves unchanged, or a reference that the service replaces."""
