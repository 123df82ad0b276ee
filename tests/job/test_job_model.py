"""Jobs written in Python: what is accepted, and the words of every mistake."""

from __future__ import annotations

import subprocess
import sys
from inspect import formatannotation
from pathlib import Path
from typing import Any, Optional

import pytest

import cloudtrain as ct
from cloudtrain.job.explain import _MEANT, _place_hint
from cloudtrain.job.nodes import node_of_model
from cloudtrain.system.plugins import all_targets
from tests.hints import no_choice, no_field, one_of, suggested, wrong_type


def job(**fields: Any) -> ct.TrainingJob:
    """A right job with some fields changed."""
    return ct.TrainingJob(**{"name": "a", "entry_point": "t.py", **fields})


def problems(**fields: Any) -> list[tuple[str, str, str | None]]:
    """Place, message and hint of every problem."""
    with pytest.raises(ct.JobError) as error:
        job(**fields)
    return [(problem.dotted, problem.message, problem.hint) for problem in error.value.problems]


NUL = "a NUL character, which ends every argument"

CASES: list[tuple[dict[str, Any], str, str, str | None]] = [
    ({"name": "my job!"}, "name",
     '`name` may contain only letters, digits and hyphens, with a letter or digit at both ends; `"my job!"` is not valid',
     "write for example `my-job`"),
    ({"name": "x" * 41}, "name", "`name` has 41 characters, and at most 40 are allowed", "shorten it to 40 characters"),
    ({"name": 7}, "name", wrong_type("name", "text", "`7`"), 'write `"7"`, in quotes'),
    ({"name": None}, "name", "`name` has no value", "write a value, or remove the line"),
    ({"entry_point": None}, "entry_point", "a job needs something to run: `entry_point` or `command`",
     "add for example `entry_point: train.py`"),
    ({"command": "x"}, "command", "a job runs either an `entry_point` or a `command`, not both", "remove one of them"),
    ({"entry_point": ""}, "entry_point", "`entry_point` is empty", "give it a text"),
    ({"entry_point": "-x.py"}, "entry_point",
     "Python and the launchers would read the script's name `-x.py` as an option",
     "rename the file, so that its name does not begin with a dash; for a module, write for example `-m package.train`"),
    ({"entry_point": Path("-x.py")}, "entry_point",
     "Python and the launchers would read the script's name `-x.py` as an option",
     "rename the file, so that its name does not begin with a dash; for a module, write for example `-m package.train`"),
    ({"capacity": {"alternatives": []}}, "capacity.alternatives", "`alternatives` is empty", "give it an entry, or remove it"),
    ({"capacity": {"alternatives": ({"sett": []},)}}, "capacity.alternatives[0].sett",
     no_field("sett", "`capacity.alternatives[0]`"), "did you mean `set`?"),
    ({"entry_point": None, "command": ""}, "command", "`command` is empty", "give it a text"),
    ({"checkpoint": {"local": ""}}, "checkpoint.local", "`local` is empty", "give it a text"),
    ({"outputs": {"m": {"local": ""}}}, "outputs.m.local", "`local` is empty", "give it a text"),
    ({"inputs": {"a": {"sagemaker": ""}}}, "inputs.a.sagemaker", "`sagemaker` is empty", "give it a text"),
    ({"entry_point": None, "command": "x", "hyperparameters": {"a": 1}}, "hyperparameters",
     "only an `entry_point` gets `hyperparameters`",
     "write them into a `command`, or use `entry_point: train.py` instead of one"),
    ({"resources": {"instance_cout": 2}}, "resources.instance_cout", no_field("instance_cout", "`resources`"),
     suggested("instance_count")),
    ({"resources": {"instance_count": "two"}}, "resources.instance_count",
     wrong_type("instance_count", "a whole number", '`"two"`'), "write for example `instance_count: 1`"),
    ({"resources": {"instance_count": "2"}}, "resources.instance_count",
     wrong_type("instance_count", "a whole number", '`"2"`'), "write `2`, without quotes"),
    ({"resources": {"instance_count": "1" * 5000}}, "resources.instance_count",
     f'`instance_count` must be a whole number, not `"{"1" * 36}...`', "write for example `instance_count: 1`"),
    ({"resources": {"instance_count": True}}, "resources.instance_count",
     wrong_type("instance_count", "a whole number", "`true`"), "write for example `instance_count: 1`"),
    ({"resources": {"instance_count": 2.0}}, "resources.instance_count",
     wrong_type("instance_count", "a whole number", "`2.0`"), "write `2`"),
    ({"resources": {"instance_count": [10**5000]}}, "resources.instance_count",
     wrong_type("instance_count", "a whole number", "a list"), "write for example `instance_count: 1`"),
    ({"inputs": {"a": {"local": "x", "shard": 10**5000}}}, "inputs.a.shard",
     wrong_type("shard", "`true` or `false`", "a number of too many digits"), "write `false`"),
    ({"resources": {"instance_count": 0}}, "resources.instance_count",
     "`instance_count` must be at least 1, not `0`", "write `1` or more"),
    ({"resources": {"instance_count": 20_000}}, "resources.instance_count",
     "`instance_count` must be at most 1024, not `20000`", "write `1024` or less"),
    ({"distribution": {"type": "torch", "processes_per_instance": 1025}}, "distribution.processes_per_instance",
     "`processes_per_instance` must be at most 1024, not `1025`", "write `1024` or less"),
    ({"resources": {"instance_type": 4}}, "resources.instance_type",
     wrong_type("instance_type", "text or a mapping", "`4`"), "write for example `instance_type: {azureml: ...}`"),
    ({"resources": {"instance_type": {"aws": "x"}}}, "resources.instance_type.aws",
     no_field("aws", "`resources.instance_type`"), one_of("azureml", "local", "sagemaker", "slurm")),
    ({"resources": {"instance_type": "x", "gpu": "T4"}}, "resources.gpu",
     "`instance_type` and `gpu` both name the machine", "remove one of them"),
    ({"resources": {"distribution_groups": "a"}}, "resources.distribution_groups",
     wrong_type("distribution_groups", "a list", '`"a"`'), "write `distribution_groups: [a]`"),
    ({"resources": {"interconnect": "efa"}}, "resources.interconnect", no_choice("interconnect", '`"efa"`'),
     one_of("ethernet", "rdma")),
    ({"resources": []}, "resources", wrong_type("resources", "a mapping", "a list"),
     "write for example `resources: {instance_count: ...}`"),
    ({"resources": {"shm_size": "big"}}, "resources.shm_size", '`"big"` is not a size',
     "write for example `512m`, `64g` or `1t`"),
    ({"distribution": {"type": "torhc"}}, "distribution.type", "`torhc` is not a distribution", suggested("torch")),
    ({"distribution": {"type": "ddp"}}, "distribution.type", "`ddp` is not a distribution", suggested("torch")),
    ({"distribution": "pytorch"}, "distribution", wrong_type("distribution", "a mapping with a `type`", '`"pytorch"`'),
     "write `distribution: {type: torch}`"),
    ({"distribution": {"processes_per_instance": 2}}, "distribution", "`distribution` needs a `type`",
     "add for example `type: torch` under `distribution`"),
    ({"distribution": {"type": "torch", "nproc_per_node": 8}}, "distribution.nproc_per_node",
     no_field("nproc_per_node", "`distribution`"), suggested("processes_per_instance")),
    ({"distribution": {"type": "smp"}}, "distribution.version", "`version` is missing", "add `version: ...`"),
    ({"distribution": {"type": "smp", "version": 3}}, "distribution.version", no_choice("version", "`3`"),
     one_of("1", "2")),
    ({"distribution": {"type": "smp", "version": True}}, "distribution.version", no_choice("version", "`true`"),
     one_of("1", "2")),
    ({"distribution": {"type": "smp", "version": 1, "parameters": {"microbatch": 4}}}, "distribution.parameters.microbatch",
     "`smp` version 1 has no parameter `microbatch`", suggested("microbatches")),
    ({"distribution": {"type": "smp", "version": 2, "parameters": {"partitions": 4}}}, "distribution.parameters.partitions",
     "`smp` version 2 has no parameter `partitions`", "it belongs to `version: 1`"),
    ({"distribution": {"type": "smp", "version": 2, "mpi_options": "-x"}}, "distribution.mpi_options",
     "`smp` version 2 runs under torchrun, so `mpi_options` has no effect", "remove it"),
    ({"distribution": {"type": "tensorflow", "parameter_servers": 1}}, "distribution.parameter_servers",
     "`parameter_servers` has no effect with `strategy: multi_worker_mirrored`",
     "write `strategy: parameter_server`, or remove it"),
    ({"inputs": {"my train": {"local": "x"}}}, "inputs.my train",
     "`my train` cannot name an input: use letters, digits and underscores, and no digit first", "write `my_train`"),
    ({"inputs": {"2nd_half": {"local": "x"}}}, "inputs.2nd_half",
     "`2nd_half` cannot name an input: use letters, digits and underscores, and no digit first", "write `nd_half`"),
    ({"inputs": {"note": {"value": [1]}}}, "inputs.note.value",
     wrong_type("value", "text, `true` or `false`, a whole number or a number", "a list"), "write for example `value: text`"),
    ({"inputs": {"train": {"local": "a"}, "Train": {"local": "b"}}}, "inputs.Train",
     "`Train` and `train` differ only in case, and `CLOUDTRAIN_INPUT_TRAIN` would mean both", "write for example `Train_2`"),
    ({"outputs": {"x": {}, "y": {}, "X": {}}}, "outputs.X",
     "`X` and `x` differ only in case, and `CLOUDTRAIN_OUTPUT_X` would mean both", "write for example `X_2`"),
    ({"outputs": {"Model": {}}}, "outputs.Model",
     "`Model` and `model` differ only in case, and `CLOUDTRAIN_OUTPUT_MODEL` would mean both", "write for example `Model_2`"),
    ({"inputs": {"x": {"value": "a ${{foo}}"}}}, "inputs.x.value",
     "`${{foo}}` is in a plain value, where references are not replaced", "write it where `${{inputs.x}}` is used"),
    ({"inputs": {"x": {"value": "${{inputs.y}}"}, "y": ct.Input(value=1)}, "hyperparameters": {"a": 1}},
     "inputs.x.value", "`${{inputs.y}}` is in a plain value, where references are not replaced",
     "write it where `${{inputs.x}}` is used"),
    ({"inputs": {"train": "s3://b/x"}}, "inputs.train", wrong_type("train", "a mapping", '`"s3://b/x"`'),
     "write `train: {sagemaker: s3://b/x}`"),
    ({"inputs": {"train": {"mode": "pipe"}}}, "inputs.train", "an input needs a location on at least one target",
     "add for example `local: data/train` or `sagemaker: s3://bucket/train`"),
    ({"inputs": {"train": {"local": "x", "mode": "moutn"}}}, "inputs.train.mode", no_choice("mode", '`"moutn"`'),
     suggested("mount")),
    ({"inputs": {"train": {"local": "x", "shard": "yes"}}}, "inputs.train.shard",
     wrong_type("shard", "`true` or `false`", '`"yes"`'), "write `true`"),
    ({"inputs": {"train": {"local": "x", "shard": 0}}}, "inputs.train.shard",
     wrong_type("shard", "`true` or `false`", "`0`"), "write `false`"),
    ({"tags": {"year": 2024}}, "tags.year", wrong_type("year", "text", "`2024`"), 'write `"2024"`, in quotes'),
    ({"tags": ["team=vision"]}, "tags", wrong_type("tags", "a mapping", "a list"), 'write `tags: {team: "vision"}`'),
    ({"spot": True}, "spot", wrong_type("spot", "a mapping", "`true`"), "write `spot: {}`"),
    ({"max_runtime": "2 hours"}, "max_runtime", '`"2 hours"` is not a duration',
     "write for example `90s`, `30m`, `2h` or `1d`"),
    ({"max_runtime": 1.5}, "max_runtime", "`1.5` is not a duration", "write for example `90s`, `30m`, `2h` or `1d`"),
    ({"hyperparameters": {"lr": float("nan")}}, "hyperparameters.lr", "`lr` cannot be `nan`: no service accepts it",
     'write `"nan"`, as text'),
    ({"hyperparameters": {"a": [{"b": "x\0y"}]}}, "hyperparameters.a[0].b", f"`b` holds {NUL}", "remove it"),
    ({"hyperparameters": {"a\0": 1}}, "hyperparameters.a\0", f"a name holds {NUL}", "remove it"),
    ({"entry_point": "t\0.py"}, "entry_point", f"`entry_point` holds {NUL}", "remove it"),
    ({"entry_point": None, "command": "echo \0"}, "command", f"`command` holds {NUL}", "remove it"),
    ({"source_dir": "a\0"}, "source_dir", f"`source_dir` holds {NUL}", "remove it"),
    ({"environment": ct.Environment(variables={"A": "\0"})}, "environment.variables.A", f"`A` holds {NUL}", "remove it"),
    ({"inputs": {"a": {"local": "d\0"}}}, "inputs.a.local", f"`local` holds {NUL}", "remove it"),
    ({"inputs": {"a": {"value": float("inf")}}}, "inputs.a.value", "`value` cannot be `inf`: no service accepts it",
     'write `"inf"`, as text'),
    ({"tags": {"a": "\ud800"}}, "tags.a", "`a` holds half of a character (a lone surrogate)", "write the character itself"),
    ({"description": "é\udfff"}, "description", "`description` holds half of a character (a lone surrogate)",
     "write the character itself"),
    ({"hyperparameters": {"a": [{"b": object()}]}}, "hyperparameters.a[0].b",
     "`b` must be text, a number, `true`, `false`, a list or a mapping, not `object`", "write for example `b: text`"),
    ({"instance_type": "x"}, "instance_type", no_field("instance_type", "a job"), "it belongs under `resources`"),
    ({"role": "arn"}, "role", no_field("role", "a job"),
     "put it in `cloudtrain.toml`: it is a setting of the target, not of a job"),
    ({"environment": {"inputs": {}}}, "environment.inputs", no_field("inputs", "`environment`"),
     "`inputs` belongs at the top of the job"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "place", "message", "hint"), CASES, ids=[case[2][:60] for case in CASES]
)
def test_the_words_of_a_mistake(
    fields: dict[str, Any], place: str, message: str, hint: str | None
) -> None:
    """One mistake, one problem, in our words and with a hint."""
    assert problems(**fields) == [(place, message, hint)]


HABITS = {
    "num_nodes": "resources.instance_count", "nodes": "resources.instance_count", "instances": "resources.instance_count",
    "nproc_per_node": "distribution.processes_per_instance",
    "process_count_per_instance": "distribution.processes_per_instance", "hyper_parameters": "hyperparameters",
    "env": "environment.variables", "environment_variables": "environment.variables", "image_uri": "environment.image",
    "timeout": "max_runtime", "max_run": "max_runtime", "script": "entry_point", "code": "source_dir",
    "args": "hyperparameters", "use_spot_instances": "spot", "max_wait": "spot.max_wait",
    "framework_version": "environment.version",
}  # fmt: skip


@pytest.mark.parametrize(("habit", "ours"), HABITS.items())
def test_names_of_other_tools_lead_to_ours(habit: str, ours: str) -> None:
    """What SageMaker, Azure ML or torchrun call it, written at the top of a job."""
    assert problems(**{habit: 1}) == [(habit, no_field(habit, "a job"), suggested(ours))]


def test_every_habit_leads_to_a_field() -> None:
    """The right side of the table is a path in a job, so a renamed field is noticed."""
    root = node_of_model(ct.TrainingJob)
    names = {*root.field_names()}
    for name in root.field_names():
        child = root.child(name)
        assert child is not None
        child = child.inner if child.kind == "map" else child
        names |= (
            {f"{name}.{inner}" for inner in child.field_names()} | {*child.field_names()}
            if child
            else set()
        )
    assert set(_MEANT.values()) <= names


def test_every_setting_of_a_target_is_known_as_one() -> None:
    """A new account setting must be in the table, unless the job has a field of that name."""
    settings = {name for target in all_targets() for name in target.settings.model_fields}
    shared = {"type", "prefix", "launch", "python", "instance_count", "processes_per_instance"}
    shared |= {"mlflow", "tensorboard"}  # of `tracking`
    root = node_of_model(ct.TrainingJob)
    hints = {_place_hint((name,), root, root) for name in settings - shared}
    assert hints == {"put it in `cloudtrain.toml`: it is a setting of the target, not of a job"}


def test_all_problems_come_at_once() -> None:
    """Wrong fields, broken rules of nested models and wrong references, in one error."""
    found = problems(
        name="a b",
        hyperparameters={"x": "${{inputs.tran}}"},
        resources={"instance_count": "x", "instance_type": "y", "gpu": "T4"},
        inputs={"train": {"local": 1}, "valid": {"mode": "x"}},
        distribution={
            "type": "smp",
            "version": 2,
            "parameters": {"partitions": 1},
            "mpi_options": "x",
        },
    )
    assert sorted(place for place, _, _ in found) == [
        "distribution.mpi_options",
        "distribution.parameters.partitions",
        "hyperparameters.x",
        "inputs.train.local",
        "inputs.valid",
        "inputs.valid.mode",
        "name",
        "resources.gpu",
        "resources.instance_count",
    ]


def test_no_word_of_pydantic_is_shown() -> None:
    """Not in any message of the cases above, and no branch lists of unions."""
    for fields, *_ in CASES:
        for _, message, hint in problems(**fields):
            text = f"{message} {hint}"
            assert not any(
                word in text
                for word in ("Input should", "Extra inputs", "Value error", "Field required")
            )


def test_a_single_model_says_the_same() -> None:
    """`ct.Resources(instance_cout=2)` raises the same words under its own name."""
    with pytest.raises(ct.JobError) as error:
        ct.Resources(instance_cout=2, nodes=3)  # type: ignore[call-arg]  # the mistake
    assert [(p.message, p.hint) for p in error.value.problems] == [
        (no_field("instance_cout", "`Resources`"), suggested("instance_count")),
        (no_field("nodes", "`Resources`"), suggested("instance_count")),
    ]
    assert error.value.exit_code == 2


def test_models_may_be_nested_in_python() -> None:
    """Built models and mappings mean the same."""
    built = job(
        distribution=ct.Torch(processes_per_instance=2), resources=ct.Resources(instance_type="x")
    )
    plain = job(
        distribution={"type": "torch", "processes_per_instance": 2},
        resources={"instance_type": "x"},
    )
    assert built == plain
    assert built.resources.instance_type is not None
    assert built.resources.instance_type.of("azureml") == "x"


def test_a_job_cannot_be_changed_but_replaced() -> None:
    """`replace` validates again."""
    first = job(max_runtime="2h")
    assert first.replace(max_runtime="3h").max_runtime == 10800
    with pytest.raises(ct.JobError):
        first.replace(max_runtime="x")


def test_defaults_are_the_models_own() -> None:
    """A job that says nothing of resources has one instance and no distribution."""
    assert (job().resources, job().distribution) == (ct.Resources(), ct.NoDistribution())


def test_a_dumped_job_reads_back() -> None:
    """A job survives its own JSON."""
    first = job(
        resources={"instance_type": "x"}, spot={"max_wait": "6h"}, inputs={"a": {"local": "d"}}
    )
    assert (
        ct.TrainingJob(**first.model_dump(mode="json", exclude_none=True, exclude_defaults=True))
        == first
    )


def test_the_instances_of_all_groups_together_are_bounded() -> None:
    """Each group may have as many as a job; all of them no more than that."""
    groups = [
        {"name": f"group{number}", "instance_type": "ml.m5.xlarge", "instance_count": 600}
        for number in range(2)
    ]
    with pytest.raises(ct.JobError) as caught:
        ct.Resources(instance_groups=groups)
    (problem,) = caught.value.problems
    assert (problem.path, problem.code) == (("instance_groups",), "CT014")
    assert "have 1,200 instances together, and a job has at most 1,024" in problem.message
    assert ct.Resources(instance_groups=groups[:1]).instance_groups[0].instance_count == 600


def test_a_job_shows_what_was_set() -> None:
    """In Python's words, and as an escaped table; the fields of the four targets and every None are left out."""
    job = ct.TrainingJob(
        name="digits",
        entry_point="train.py",
        hyperparameters={"lr": 0.1, "note": "<b>"},
        distribution=ct.Torch(processes_per_instance=2),
    )
    assert repr(job) == (
        "TrainingJob(name='digits', entry_point='train.py', hyperparameters={'lr': 0.1, 'note': '<b>'}, "
        "distribution=Torch(processes_per_instance=2))"
    )
    table = job._repr_html_()
    assert ">hyperparameters.lr</th>" in table
    assert ">0.1</td>" in table
    assert "&lt;b&gt;" in table
    assert "overrides" not in table
    assert "<b>" not in table


def test_the_signature_of_a_job_names_its_fields() -> None:
    """Before the first use and after it, without the addresses of validators. In a process of its own, because typing
    writes the members of a union in the order in which any module first named them."""
    show = "print(inspect.signature(ct.TrainingJob))"
    use = "ct.TrainingJob(name='a', entry_point='train.py')"
    duration = "print(inspect.formatannotation(typing.Union[int, str, None]))"
    code = f"import inspect, typing, cloudtrain as ct; {show}; {use}; {show}; {duration}"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    first, after, duration = printed.splitlines()
    assert first == after
    optional = formatannotation(Optional[str])  # noqa: UP045 # Python 3.14 writes `str | None`
    assert first.startswith(
        f"(*, name: str, source_dir: {optional} = '.', entry_point: {optional} = None"
    )
    assert "0x" not in first
    assert "Validator" not in first
    assert f"max_runtime: {duration} = None" in first
    with pytest.raises(ct.JobError):
        ct.TrainingJob(name=3)
