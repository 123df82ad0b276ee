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
from cloudtrain.targets.adoption import Original, Search
from cloudtrain.targets.azureml.adopt.job_files import mapping
from cloudtrain.targets.azureml.fields import (
    DISPLAY_NAME,
    EXPERIMENT,
    JOB_TYPE,
    LITERAL,
    VARIABLES,
    JsonMapping,
    JsonObject,
    duration_seconds,
)
from cloudtrain.targets.azureml.parts import pick, present, without
from cloudtrain.targets.common.compiling import hyperparameter_text


def lifted(properties: JsonMapping) -> JsonObject:
    """Return the body of a sweep with the fields of its trial beside the others."""
    trial = present(mapping(properties.get("trial")))
    return without(properties, ("trial",)) | trial


def with_search(original: Original) -> Original:
    """Return a sweep's trial as a command job, in which the parameters that the sweep searches are
    inputs, with the search if `kind: sweep` can express it. The request holds the body of the sweep
    too. Other jobs stay unchanged."""
    body = original.request["properties"]
    if "searchSpace" not in body:
        return original

    lost = {name: _ONE_TRAINING for name in OF_SEARCH if body.get(name)}
    for name in pick(mapping(body.get("limits")), _LIMITS):
        lost[f"limits.{name}"] = _ONE_TRAINING
    trial = replace(original, request={"properties": _first_trial(body), "sweep": body})
    try:
        search = Search(dict(sweep_fields(original.name, body)), lost)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        lost["searchSpace"] = f"a sweep cannot express the search: {error}"
        return replace(trial, lost={**original.lost, **lost})
    return replace(trial, search=search)


def _first_trial(body: JsonMapping) -> JsonObject:
    """Return the body of a command job with the first value of each parameter."""
    job = without(body, ("limits", *OF_SEARCH))
    command = str(body.get("command") or "")
    inputs = mapping(body.get("inputs"))

    for name, space in body["searchSpace"].items():
        command = command.replace(f"${{{{search_space.{name}}}}}", f"${{{{inputs.{name}}}}}")
        inputs[name] = {"jobInputType": LITERAL, "value": hyperparameter_text(_first_value(space))}

    job |= {JOB_TYPE: "Command", "command": command, "inputs": inputs}
    timeout = mapping(body.get("limits")).get("trialTimeout")
    if timeout:
        job["limits"] = {"jobLimitsType": "Command", "timeout": timeout}
    return job


OF_SEARCH = ("searchSpace", "samplingAlgorithm", "objective", "earlyTermination")
_LIMITS = ("maxTotalTrials", "maxConcurrentTrials", "timeout")
_ONE_TRAINING = "a job is one training"
"""Parts of a sweep that its trial's job lacks."""


def _first_value(space: list[Any]) -> Any:
    """Return the first choice, the lower bound or the mean of a range."""
    first = next(iter(space[1]), 0)
    if isinstance(first, list):
        return first[0]
    return _power(first) if "log" in space[0] else first


def _power(exponent: float) -> float:
    """Return the bound whose natural logarithm Azure ML takes."""
    return float(f"{exp(exponent):.12g}")


def sweep_fields(name: str, body: JsonMapping) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a sweep except its job. Raises an error if a sweep cannot express the
    search."""
    algorithm = present(body["samplingAlgorithm"])
    strategy = algorithm.pop("samplingAlgorithmType").lower()
    seed = algorithm.pop("seed", None)
    if strategy not in ("random", "grid", "bayesian") or algorithm not in ({}, {"rule": "random"}):
        raise ValueError(f"it has no such sampling as `{json.dumps(body['samplingAlgorithm'])}`")
    if _script_in(str(body.get("command"))) is None:
        raise ValueError("its command names no script in Python")
    objective = body["objective"]
    limits = _limits(body)

    title = name or body.get(DISPLAY_NAME) or body.get(EXPERIMENT) or "sweep"
    yield "name", job_name_from(str(title))
    spaces = body["searchSpace"]
    yield "search", {key: _range(key, *space) for key, space in spaces.items()}
    yield "objective", {objective["goal"].lower(): objective["primaryMetric"]}
    yield "strategy", strategy
    yield "trials", limits["maxTotalTrials"]
    yield "parallel", limits["maxConcurrentTrials"]
    if policy := _policy(body):
        yield "stop_early", _stop_early(policy)
    if seed is not None:
        yield "seed", seed
    if limits.get("timeout"):
        yield "max_runtime", duration_seconds(limits["timeout"])
    yield "driver", "service"


def _script_in(command: str) -> str | None:
    """Return the first word of a command that names a file of Python."""
    return next((word for word in command.split() if word.endswith(".py")), None)


def _range(name: str, kind: str, arguments: list[Any]) -> Any:
    """Return a range as a sweep file writes it. Raises `ValueError` for a kind that it lacks."""
    if kind == "choice":
        return arguments[0]
    if kind == "uniform":
        return {"uniform": arguments}
    if kind == "loguniform":
        return {"log": [_power(bound) for bound in arguments]}
    raise ValueError(f"it has no range `{kind}`, as `{name}` has")


def _stop_early(policy: JsonMapping) -> JsonObject:
    """Return a policy as a sweep file writes it. Raises `ValueError` for one that it lacks."""
    after = {"after": policy["delayEvaluation"]}
    if policy["evaluationInterval"] == 1:
        if "slackFactor" in policy:
            return {"bandit": {"slack": policy["slackFactor"], **after}}
        if policy["policyType"] == "MedianStopping":
            return {"median": after}
    raise ValueError(f"it has no such early stopping as `{json.dumps(policy)}`")


def _limits(body: JsonMapping) -> JsonObject:
    """Return the limits of a sweep with the service's defaults (reference of the sweep job's
    schema). A grid runs each combination once."""
    given = present(mapping(body.get("limits")))
    total = given.get("maxTotalTrials", 1000)
    if body["samplingAlgorithm"]["samplingAlgorithmType"].lower() == "grid":
        choices = [space[1][0] for space in body["searchSpace"].values() if space[0] == "choice"]
        total = min(total, prod(map(len, choices)))
    parallel = min(given.get("maxConcurrentTrials", total), total)
    given |= {"maxConcurrentTrials": parallel, "maxTotalTrials": total, "jobLimitsType": "Sweep"}
    return given


def _policy(body: JsonMapping) -> JsonObject:
    """Return the early stopping of a sweep with the service's defaults; empty without one."""
    given = present(mapping(body.get("earlyTermination")))
    if not given:
        return {}
    return {"evaluationInterval": 1, "delayEvaluation": 0, **given}


def canonical(sweep: JsonMapping) -> JsonObject:
    """Return the lifted body of a sweep in a form in which equal sweeps compare equal."""
    body = dict(sweep)
    body[JOB_TYPE] = "Sweep"

    # the order of the options means nothing
    options = _options(str(sweep.get("command")))
    if options:
        body["command"] = " --".join(map(" ".join, options.items()))
    body[VARIABLES] = mapping(sweep.get(VARIABLES))

    body["searchSpace"] = {}
    for name, (kind, arguments) in sweep["searchSpace"].items():
        # A sweep names the exponentials of these bounds, so their last digits may change.
        if kind == "loguniform":
            arguments = [float(f"{bound:.9g}") for bound in arguments]
        body["searchSpace"][name] = [kind, arguments]

    body["samplingAlgorithm"] = dict(sweep["samplingAlgorithm"])
    if body["samplingAlgorithm"].get("rule") == "random":
        del body["samplingAlgorithm"]["rule"]
    objective = sweep["objective"]
    body["objective"] = {**objective, "goal": objective["goal"].lower()}
    body["earlyTermination"] = _policy(sweep)
    body["limits"] = _limits(sweep)
    return body


def start_of_trials(command: str, searched: Collection[str]) -> JsonObject:
    """Return the fields of a job that start the trials' command: its script, with the options as
    hyperparameters if the command is `python SCRIPT --NAME VALUE ...`. Any other command stays in
    the overrides."""
    options = _options(command)
    if options is None:
        return {"entry_point": _script_in(command)}

    start: JsonObject = {"entry_point": options.pop("python")}
    own = {name: value for name, value in options.items() if "search_space." not in value}
    ranges = {name: f"${{{{search_space.{name}}}}}" for name in searched}
    # cloudtrain would write the option of a name with one letter with one dash
    if own and own | ranges == options and min(map(len, options)) > 1:
        start["hyperparameters"] = own
    return start


def _options(command: str) -> dict[str, str] | None:
    """Return the options of `python SCRIPT --NAME VALUE ...` by their names, in alphabetical order,
    after `python` with the script; None for any other command."""
    words = command.split()
    is_plain = all(map(_PLAIN.fullmatch, words))
    if not is_plain or words[:1] != ["python"] or len(words) % 2:
        return None

    options: dict[str, str] = {}
    for name, value in zip(words[2::2], words[3::2], strict=True):
        if name in options or not name.startswith("--"):
            return None
        options[name] = value
    sorted_options = {name[2:]: options[name] for name in sorted(options)}
    return {"python": words[1], **sorted_options}


_PLAIN = re.compile(r"[\w@%+=:,./-]+|\$\{\{[\w.]+\}\}")
"""A word that every shell leaves unchanged, or a reference that the service replaces."""
