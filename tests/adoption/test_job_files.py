"""Job files of `az ml`: read as Azure ML's tools read them, and adopted equal to the body that the SDK makes of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.plans.comparison import paths_that_differ
from cloudtrain.targets.azureml.adopt.job_files import body_of

GOLDEN = Path(__file__).parents[1] / "golden" / "azureml"
FILES = {
    file.name.removesuffix(".job.yml"): file
    for file in sorted(GOLDEN.glob("*.job.yml"))
    if file.with_name(file.name.replace(".job.yml", ".rest.json")).exists()
}

WRITTEN_OTHERWISE = {
    "docker_args_list": {"resources.dockerArgs", "resources.dockerArgsList"},
    "locations_with_docker_list": {
        "resources.dockerArgs", "resources.dockerArgsList", "resources.instanceCount", "resources.locations",
    },
    "no_name": {"displayName", "experimentName"},
    "inputs_all": {"inputs.lit_bool.value", "inputs.uri_folder_rw.jobInputType", "inputs.uri_folder_rw.mode",
                   "inputs.uri_folder_rw.uri", "inputs.uri_folder_rw.value"},
}  # fmt: skip
"""What the SDK prints otherwise than it sends: a list as its text, `True` as 1, an input as a literal; a random name."""

REFUSED: dict[str, set[str]] = {}
"""What the SDK prints and then refuses to read."""


@pytest.mark.parametrize("name", FILES)
def test_the_body_of_a_file_is_the_recorded_one(name: str) -> None:
    """The SDK printed the file and sent the body of the same job."""
    theirs = json.loads(FILES[name].with_name(f"{name}.rest.json").read_text())["properties"]
    ours = body_of(yaml.safe_load(FILES[name].read_text()), str(GOLDEN), {})
    theirs, ours = (
        {k: v for k, v in body.items() if v not in ({}, None, False)} for body in (theirs, ours)
    )
    differing = {".".join(map(str, path)) for path, _, _ in paths_that_differ(theirs, ours)}
    assert differing == WRITTEN_OTHERWISE.get(name, set())


@pytest.mark.parametrize("name", FILES)
def test_every_recorded_file_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, data of the user's machine included. The SDK does not read all that it prints."""
    (tmp_path / "src").mkdir()
    (tmp_path / "job.yml").write_bytes(FILES[name].read_bytes())
    found = ct.adopt(tmp_path / "job.yml")
    assert {item.path for item in found.differences} == REFUSED.get(name, set())


@pytest.fixture
def adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ct.Adoption]:
    """Adopt the text of a job file; with the job file of ours in the same folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()

    def adopt(text: str, **options: Any) -> ct.Adoption:
        (tmp_path / "az.yml").write_text(text)
        return ct.adopt(tmp_path / "az.yml", **{"folder": tmp_path, **options})

    return adopt


JOB = "command: python train.py\nenvironment: azureml:e:1\ncompute: azureml:gpu\ncode: src\n"


def body_sent(found: ct.Adoption) -> dict[str, Any]:
    """What a plan of the adopted job sends."""
    where = {
        "subscription_id": "11111111-2222-3333-4444-555555555555",
        "resource_group": "rg",
        "workspace": "team",
    }
    plan = ct.plan(found.job, ct.AzureML(**{**where, **found.settings}))
    properties: dict[str, Any] = plan.request["properties"]
    return properties


def test_yaml_is_read_as_version_1_1(adopted: Callable[..., ct.Adoption], tmp_path: Path) -> None:
    """What Azure ML's tools make of `yes`, `010` and `1e-4`. An environment variable is a text, as the API asks."""
    found = adopted(
        JOB + "inputs: {flag: yes, n: 010, lr: 1e-4}\nenvironment_variables: {A: 1, B: on, C: x}\n"
    )
    assert found.equal
    sent = body_sent(found)
    assert {name: item["value"] for name, item in sent["inputs"].items()} == {
        "flag": "True",
        "n": "8",
        "lr": "1e-4",
    }
    assert sent["environmentVariables"] == {"A": "1", "B": "true", "C": "x"}


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("inputs: {key: {type: string, path: x}}\n", "inputs.key.type"),
        ("inputs: {key: {type: uri_folder}}\n", "inputs.key.path"),
        ("code: {local_path: src}\n", "code"),
        ("compute: {target: azureml:gpu, instance_count: 1}\n", "compute"),
    ],
)
def test_a_value_that_azure_refuses_is_a_difference(
    more: str, path: str, adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """azure-ai-ml 1.35.2 accepts none of these files; they were forms of its preview, and of components."""
    found = adopted("".join(line for line in JOB.splitlines(True) if line[:5] != more[:5]) + more)
    assert [item.path for item in found.differences] == [path]


FAULTS = """\
$schema: https://azuremlschemas.azureedge.net/latest/sparkJob.schema.json
type: Command
command: python train.py {inputs.flag}
code: src
environment: {image: x:1, conda_file: file:conda.yml, channels: [a]}
description: 5
tags: {a: 1, 2: b, when: 2024-01-01}
properties: {a: null, b: true}
limits: {timout: 60, timeout: "60"}
resources: {instance_count: 2.5, gpus: 1, shm_size: 8, docker_args: [a, 1], locations: eastus}
distribution: {type: PyTorch, process_count_per_instance: 4, node_count: 2}
queue_settings: {job_tier: cheap, prio: high}
identity: {type: managed, msi_resource_id: /x}
services:
  lab: {type: JupyterLab}
  ssh: {type: ssh, nodes: some, log_dir: x}
inputs:
  flag: true
  a-b: 1
  data: {type: uri_folder, path: "azureml:d:1", mode: rw_mount, optional: true}
  table: {type: mltable, mode: eval_mount}
outputs:
  o: {type: Uri_Folder, mode: MOUNT}
  p: {mode: ro_mount, description: x}
limits: {timeout: -1}
"""
SWEEP_FAULTS = """\
$schema: https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json
trial:
  command: python train.py --lr ${{search_space.lr}}
  code: src
  environment: azureml:e:1
  limits: {timeout: 60}
search_space:
  lr: {type: uniform, min_value: 0, max_value: "1", log: true}
  n: {type: choice, values: 3}
  q: {type: triangular}
objective: {goal: most, metric: loss}
sampling_algorithm: {type: random, sede: 3}
early_termination: {type: bandit, slack: 0.1}
limits: {max_trials: 4}
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            FAULTS,
            {
                "type": 2, "environment.conda_file": 5, "environment.channels": 5, "description": 6,
                "tags.a": 7, "tags.2": 7, "tags.when": 7, "properties.b": 8, "limits": 25,
                "limits.timeout": 9, "resources.instance_count": 10, "resources.gpus": 10,
                "resources.shm_size": 10, "resources.docker_args": 10, "resources.locations": 10,
                "distribution.node_count": 11, "queue_settings.job_tier": 12, "queue_settings.prio": 12,
                "identity.msi_resource_id": 13, "services.lab.type": 15, "services.ssh.nodes": 16,
                "services.ssh.log_dir": 16, "inputs.a-b": 19, "inputs.data.mode": 20,
                "inputs.data.optional": 20, "inputs.table.path": 21, "outputs.p.mode": 24,
                "outputs.p.description": 24,
            },
        ),
        (
            SWEEP_FAULTS,
            {
                "type": None, "trial.limits": 6, "search_space.lr.max_value": 8,
                "search_space.lr.log": 8, "search_space.n.values": 9, "search_space.q.type": 10,
                "objective": 11, "objective.goal": 11, "objective.metric": 11, "objective.primary_metric": 11,
                "sampling_algorithm.sede": 12, "early_termination.slack": 13, "limits.max_trials": 14,
                "limits.max_total_trials": 14,
            },
        ),
    ],
)  # fmt: skip
def test_every_key_and_value_that_azure_refuses_has_its_line(
    text: str, lines: dict[str, int | None], adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """At every depth: unknown keys, wrong types, words of another list, names that are none, keys twice."""

    (tmp_path / "conda.yml").write_text("dependencies: [python=3.11]\n")
    found = {}
    for item in adopted(text).differences:
        place = re.match(r".*az\.yml:(\d+):\d+: ", item.reason)
        if place is not None or item.path in lines:
            found[item.path] = int(place[1]) if place is not None else None
    assert found == lines


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ("code: src", "code: nowhere", ["code"]),
        ("code: src", "code: azureml:mine", ["code"]),
        ("azureml:e:1", "e:1", ["environment"]),
        ("azureml:e:1", "{image: x:1, build: {path: src}}", ["environment", "environment.build.path"]),
        ("azureml:e:1", "file:env.yml", ["environment.conda"]),
        ("compute: azureml:gpu", "compute: 5", ["compute"]),
    ],
)  # fmt: skip
def test_what_azure_misses_around_a_file(
    old: str, new: str, paths: list[str], adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """Folders, files and versions that are missing, and keys of a file that the job file names."""
    (tmp_path / "env.yml").write_text("name: x\nimage: x:1\nconda: c.yml\n")
    found = adopted(JOB.replace(old, new))
    assert [item.path for item in found.differences] == paths


def test_an_inline_conda_file_may_hold_a_date(adopted: Callable[..., ct.Adoption]) -> None:
    """YAML reads it as no text, and the written file has its text."""
    conda = "{image: x:1, conda_file: {name: 2024-01-01, 3: a, dependencies: [python=3.11]}}"
    found = adopted(JOB.replace("azureml:e:1", conda))
    assert yaml.safe_load(found.files["conda.yml"])["name"] == "2024-01-01"


def test_what_azure_drops_is_not_sent(adopted: Callable[..., ct.Adoption]) -> None:
    """Where the SDK drops or completes a value, so does the adopted job."""
    found = adopted(
        JOB
        + "properties: {_azureml.ComputeTargetType: amlcompute, mine: a}\n"
        + "resources: {docker_args: [a], locations: [eastus], max_instance_count: 3}\n"
    )
    assert found.equal
    sent = body_sent(found)
    assert "_azureml.ComputeTargetType" not in sent["properties"]
    assert sent["properties"]["mine"] == "a"
    assert not {"locations", "maxInstanceCount"} & sent["resources"].keys()


def test_the_schema_of_another_job_does_not_count(adopted: Callable[..., ct.Adoption]) -> None:
    """azure-ai-ml reads `type`, and without it a command job."""
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json\n"
    assert adopted(schema + JOB).equal


def test_a_reference_to_no_range_is_a_difference(adopted: Callable[..., ct.Adoption]) -> None:
    """azure-ai-ml sends the sweep, and every trial of it fails."""
    found = adopted(SEARCH.replace("COMMAND", "python train.py --lr ${{search_space.rate}}"))
    assert "trial.command" in [item.path for item in found.differences]


def test_a_missing_conda_file_has_a_place(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """An error, because the job could not be written: with the line of the file, and of a sweep's trial."""
    environment = "{image: x:1, conda_file: no.yml}"
    with pytest.raises(ct.JobError) as caught:
        adopted(JOB.replace("azureml:e:1", environment))
    problem = caught.value.problems[0]
    assert (problem.code, problem.line, problem.column) == ("CT981", 2, 27)
    assert problem.path == ("environment", "conda_file")
    with pytest.raises(ct.JobError) as caught:
        adopted(SEARCH.replace("azureml:e:1", environment))
    assert caught.value.problems[0].path == ("trial", "environment", "conda_file")
    assert caught.value.problems[0].line == 2


def test_single_braces_are_references(adopted: Callable[..., ct.Adoption], tmp_path: Path) -> None:
    """The older form, which Azure ML's tools send as the newer one; other braces are the shell's."""
    command = (
        "echo {a,b} ${HOME} && python train.py --lr {inputs.lr} --o {outputs.m} ${{inputs.lr}}"
    )
    found = adopted(
        JOB.replace("python train.py", command) + "inputs: {lr: 0.1}\noutputs: {m: {}}\n"
    )
    assert found.equal
    start = "echo {a,b} ${HOME} && python train.py"
    assert (
        body_sent(found)["command"]
        == f"{start} --lr ${{{{inputs.lr}}}} --o ${{{{outputs.m}}}} ${{{{inputs.lr}}}}"
    )
    assert adopted(
        SEARCH.replace("COMMAND", "python a.py {search_space.lr}").replace("seed: 7", "rule: sobol")
    ).job.command.endswith("${{inputs.lr}}")


def test_the_properties_of_a_virtual_cluster(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """Sent under the service's name, whatever the file calls them."""
    found = adopted(JOB + "resources: {properties: {singularity: {slaTier: Premium}, other: 1}}\n")
    assert found.equal
    assert body_sent(found)["resources"]["properties"] == {
        "AISuperComputer": {"slaTier": "Premium"},
        "other": 1,
    }


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("azureml:gpu", "local", "compute"),
        ("code: src", "code: git+https://github.com/someone/else#folder", "code"),
        (
            "code: src",
            "code: src\ndistribution: {type: tensorflow, worker_count: 2, process_count_per_instance: 2}",
            "distribution.process_count_per_instance",
        ),
        (  # as in Microsoft's TensorFlow example
            "code: src",
            "code: src\ndistribution: {type: tensorflow, worker_count: 2, added_property: 7}",
            "distribution.added_property",
        ),
    ],
)
def test_what_no_job_does_the_same_way(
    old: str, new: str, path: str, adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """Docker on this machine, code that the service clones, a key that Azure ML's tools refuse: not equal."""
    found = adopted(JOB.replace(old, new))
    assert [item.path for item in found.differences] == [path]
    assert "compute" not in found.settings or found.settings["compute"] == "gpu"


def test_versions_and_places_that_azure_reads(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """A version with a colon, and an output in the default datastore below the run's name: nothing to complain of."""
    place = "azureml://datastores/${{default_datastore}}/paths/azureml/${{name}}/o/"
    found = adopted(
        JOB.replace("e:1", "mine:18.04:2022") + f'outputs: {{o: {{path: "{place}"}}}}\n'
    )
    assert found.equal
    sent = body_sent(found)
    assert sent["environmentId"].endswith("/environments/mine/versions/18.04:2022")
    assert sent["outputs"]["o"]["uri"] == place
    where = {
        "subscription_id": "11111111-2222-3333-4444-555555555555",
        "resource_group": "rg",
        "workspace": "team",
    }
    plan = ct.plan(found.job, ct.AzureML(**{**where, **found.settings}))
    assert "AZ507" not in [item.code for item in plan.findings]


def test_a_conda_file_of_a_job_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written beside the new job file, wherever that is."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "env.yml").write_text("name: x\ndependencies: [python=3.11]\n")
    text = JOB.replace("code: src\n", "").replace(
        "azureml:e:1", "{image: x:1, conda_file: env.yml}"
    )
    (tmp_path / "theirs" / "az.yml").write_text(text)
    found = ct.adopt(tmp_path / "theirs" / "az.yml", folder=tmp_path / "ours")
    assert found.equal
    assert found.job.environment.conda_file == "conda.yml"
    assert found.files["conda.yml"].startswith("name: x")


def test_an_environment_in_place(adopted: Callable[..., ct.Adoption], tmp_path: Path) -> None:
    """An image with a conda file that the file names or holds, and a folder with a Dockerfile outside of the code."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "conda.yml").write_text("name: x\ndependencies: [python=3.11]\n")
    (tmp_path / "env" / "Dockerfile.gpu").write_text("FROM x:1\n")
    start = JOB.replace("environment: azureml:e:1\n", "")
    named = adopted(start + "environment: {image: x:1, conda_file: env/conda.yml}\n")
    assert named.equal
    assert named.job.environment.conda_file == "../env/conda.yml"
    held = adopted(
        start + "environment: {image: x:1, conda_file: {name: x, dependencies: [python=3.11]}}\n"
    )
    assert held.equal
    assert held.job.environment.conda_file == "../conda.yml"
    assert yaml.safe_load(held.files["conda.yml"]) == {"name": "x", "dependencies": ["python=3.11"]}
    built = adopted(start + "environment: {build: {path: env, dockerfile_path: Dockerfile.gpu}}\n")
    assert built.equal
    assert (built.job.environment.build, built.job.environment.dockerfile) == (
        "../env",
        "Dockerfile.gpu",
    )


def test_places_follow_the_written_file(tmp_path: Path) -> None:
    """A job file in another folder names the same code."""
    (tmp_path / "theirs" / "src").mkdir(parents=True)
    (tmp_path / "theirs" / "az.yml").write_text(JOB)
    found = ct.adopt(tmp_path / "theirs" / "az.yml", folder=tmp_path / "ours")
    assert found.job.source_dir == "../theirs/src"


def test_a_conda_file_is_found_from_the_code(tmp_path: Path) -> None:
    """It is written beside the job file, and its path starts at the code, which stays elsewhere."""
    (tmp_path / "theirs" / "src").mkdir(parents=True)
    (tmp_path / "theirs" / "src" / "train.py").write_text("print(1)\n")
    conda = "{image: x:1, conda_file: {name: x, dependencies: [python=3.11]}}"
    (tmp_path / "theirs" / "az.yml").write_text(JOB.replace("azureml:e:1", conda))
    found = ct.adopt(tmp_path / "theirs" / "az.yml", folder=tmp_path / "ours")
    assert found.equal
    written = tmp_path / "ours" / str(found.job.source_dir) / str(found.job.environment.conda_file)
    assert os.path.normpath(written) == str(tmp_path / "ours" / "conda.yml")


PIPELINE = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
settings: {default_compute: azureml:cpu}
jobs:
  prepare: {type: command, command: "echo 1", environment: azureml:e:1}
  train: {type: command, command: "python t.py ${{inputs.d}}", code: src, environment: azureml:e:1,
          inputs: {d: "${{parent.jobs.prepare.outputs.x}}"}}
"""


SEARCH = """\
type: sweep
trial: {command: "COMMAND", code: src, environment: azureml:e:1}
inputs: {data: {path: "azureml:d:1"}}
search_space:
  lr: {type: loguniform, min_value: -6.90775527898, max_value: -2.30258509299}
  batch_size: {type: choice, values: [32, 64]}
compute: gpu
objective: {goal: maximize, primary_metric: accuracy}
sampling_algorithm: {type: random, seed: 7}
early_termination: {type: bandit, slack_factor: 0.1, evaluation_interval: 1, delay_evaluation: 5}
limits: {max_total_trials: 20, max_concurrent_trials: 4, timeout: 7200, trial_timeout: 600}
"""
OPTIONS = (
    "--data ${{inputs.data}} --lr ${{search_space.lr}} --batch_size ${{search_space.batch_size}}"
)


def planned(folder: Path, **more: Any) -> dict[str, Any]:
    """The properties that the adopted sweep sends, with its first trial's command line."""
    (folder / "src" / "train.py").write_text("print(1)\n")
    place = {
        "subscription_id": "11111111-1111-1111-1111-111111111111",
        "resource_group": "g",
        "workspace": "ws",
    }
    table = "".join(f'{name} = "{value}"\n' for name, value in place.items())
    (folder / "cloudtrain.toml").write_text('[azureml]\ncompute = "gpu"\n' + table)
    plan = ct.plan(ct.load_sweep(folder / "sweep.yaml", **more), target="azureml")
    assert [item.code for item in plan.findings if item.level == "error"] == []
    return {**plan.request["properties"], "first": " ".join(plan.processes[0].argv)}


@pytest.mark.parametrize(
    "options", [OPTIONS, OPTIONS.replace("--batch_size", "-b"), OPTIONS.replace("--lr", "--l-r")]
)
def test_a_sweep_file_is_adopted_as_a_sweep(
    options: str, adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """The whole search; a command that names its options otherwise is kept, and each trial gets its values."""
    found = adopted(SEARCH.replace("COMMAND", f"python train.py {options}"), folder=tmp_path)
    assert (found.equal, found.job.entry_point) == (True, "train.py")
    (tmp_path / "sweep.yaml").write_text(found.job_text)
    sweep = ct.load_sweep(tmp_path / "sweep.yaml")
    assert (sweep.trials, sweep.parallel, sweep.seed, sweep.max_runtime, sweep.job.max_runtime) == (
        20,
        4,
        7,
        7200,
        600,
    )
    assert sweep.objective == ct.Objective(maximize="accuracy")
    sent = planned(tmp_path)
    assert (sent["jobType"], sent["limits"]["trialTimeout"]) == ("Sweep", "PT10M")
    assert sorted(sent["trial"]["command"].split()) == sorted(f"python train.py {options}".split())
    assert "search_space" not in sent["first"]


def test_the_body_of_a_sweep_is_adopted_as_a_sweep(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """As the service describes it: with nulls, a capital goal, and all defaults."""
    trial = {
        "command": f"python train.py {OPTIONS}",
        "codeId": "azureml:c:1",
        "environmentId": "azureml:e:1",
        "resources": None,
    }
    body = {
        "jobType": "Sweep", "computeId": "gpu", "trial": trial, "objective": {"goal": "Maximize", "primaryMetric": "a"},
        "inputs": {"data": {"jobInputType": "uri_folder", "uri": "azureml:d:1", "mode": "ReadOnlyMount"}},
        "searchSpace": {"lr": ["choice", [[0.1, 0.2]]], "batch_size": ["choice", [[32, 64]]]},
        "samplingAlgorithm": {"samplingAlgorithmType": "Grid", "rule": None}, "earlyTermination": None,
        "limits": {"jobLimitsType": "Sweep", "maxTotalTrials": 9},
    }  # fmt: skip
    (tmp_path / "body.json").write_text(json.dumps({"properties": body, "name": "mine"}))
    found = ct.adopt(tmp_path / "body.json", folder=tmp_path)
    assert found.equal
    assert found.sweep is not None
    assert (found.sweep["strategy"], found.sweep["parallel"]) == ("grid", 4)
    (tmp_path / "body.json").write_text(
        json.dumps({"properties": body | {"limits": {"maxTotalTrials": 3}}})
    )
    reasons = {
        item.path: item.reason
        for item in ct.adopt(tmp_path / "body.json", folder=tmp_path).differences
    }
    assert "grid runs all 4 combinations" in reasons["searchSpace"]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (
            "type: bandit, slack_factor: 0.1",
            "type: truncation_selection, truncation_percentage: 20",
            "early stopping",
        ),
        ("evaluation_interval: 1", "evaluation_interval: 2", "early stopping"),
        ("seed: 7", "rule: sobol", "sampling"),
        ("type: choice, values: [32, 64]", "type: randint, upper: 9", "range `randint`"),
        ("{type: random, seed: 7}", "grid", "continuous range"),
        ("type: random, seed: 7", "type: bayesian", "Bayesian sampling stops no trial early"),
    ],
)
def test_the_trial_of_a_search_that_no_sweep_can_express(
    old: str, new: str, word: str, adopted: Callable[..., ct.Adoption]
) -> None:
    """One training with a value of the search space; each part of the search is a difference, with the reason."""
    found = adopted(SEARCH.replace("COMMAND", f"python train.py {OPTIONS}").replace(old, new))
    assert not found.equal
    reasons = {item.path: item.reason for item in found.differences}
    assert {
        "searchSpace",
        "objective",
        "samplingAlgorithm",
        "earlyTermination",
        "limits.maxTotalTrials",
    } <= reasons.keys()
    assert word in reasons["searchSpace"]
    assert (
        found.job.command
        == "python train.py --data ${{inputs.data}} --lr ${{inputs.lr}} --batch_size ${{inputs.batch_size}}"
    )
    assert found.job.inputs["lr"].value == 0.001
    assert found.job.max_runtime == 600


def test_the_steps_of_a_pipeline(adopted: Callable[..., ct.Adoption]) -> None:
    """Chosen by name; what the pipeline gives is a difference."""
    assert adopted(PIPELINE, job="prepare").equal
    found = adopted(PIPELINE, job="train")
    assert found.settings["compute"] == "cpu"
    assert [item.path for item in found.differences] == ["inputs.d"]


def test_the_steps_of_a_pipeline_that_are_left_out(adopted: Callable[..., ct.Adoption]) -> None:
    """A step whose command is in another file, and a step that is no command job, are differences of each job."""
    others = "  score: {component: file:./score.yml}\n  pick: {type: automl, task: regression}\n"
    found = adopted(PIPELINE + others, job="prepare")
    reasons = {item.path: item.reason.partition(": ")[2] for item in found.differences}
    assert reasons == {
        "jobs.score": "its command is in `./score.yml`; write a job for it: `cloudtrain init`",
        "jobs.pick": "it is not a command job; write a job for it: `cloudtrain init`",
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("type: automl\ncompute: x\nenvironment: y\n", "AutoML"),
        (
            "$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json\ncommand: x\n",
            "component",
        ),
        ("type: pipeline\njobs: {a: {component: ./a.yml}}\n", "components"),
        ("type: sweep\ntrial: ./trial.yml\nsearch_space: {}\n", "trial"),
        (JOB + "x: 1\ncomand: 2\n", ""),
        (JOB.replace("azureml:e:1", "{image: x:1, conda_file: no.yml}"), "conda file"),
        (JOB.replace("train.py", "train.py ${{inputs.nope}}"), "nope"),
    ],
)
def test_what_is_no_command_job(text: str, word: str, adopted: Callable[..., ct.Adoption]) -> None:
    """An error that says what it is and what to type; unknown keys are differences."""
    if not word:
        assert [item.path for item in adopted(text).differences] == ["x", "comand"]
        return
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(text)
    assert word in caught.value.message
    assert caught.value.hint
    if "./a.yml" in text:
        assert "`./a.yml`" in caught.value.hint
