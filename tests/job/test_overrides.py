"""`--set`: values with the type of their field, in place of the file's, and errors that point at the override."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.errors import dotted, shortened
from cloudtrain.job.file import parse_job
from tests.hints import no_field, one_of, suggested, wrong_type

TEXT = """\
name: a
entry_point: t.py
distribution: {type: smddp, processes_per_instance: 8, mpi_options: -x}
resources: {instance_type: ml.p4d}
inputs: {train: {local: data}}
spot: {max_wait: 6h}
hyperparameters: {lr: 1, layers: [1, 2], nested: {a: 1}}
"""


def job(*overrides: str, text: str = TEXT) -> ct.TrainingJob:
    """The job of a text with overrides."""
    return parse_job(text, format="yaml", file="job.yaml", overrides=overrides)


def told(*overrides: str, text: str = TEXT) -> list[tuple[str, str, str | None]]:
    """Place, message and hint of every problem."""
    with pytest.raises(ct.JobError) as error:
        job(*overrides, text=text)
    return [(p.place, p.message, p.hint) for p in error.value.problems]


VALUES: list[tuple[str, str, Any]] = [
    ("resources.instance_count=4", "resources.instance_count", 4),
    ("resources.instance_type=ml.g5", "resources.instance_type.azureml", "ml.g5"),
    ("resources.instance_type.azureml=ND96", "resources.instance_type.azureml", "ND96"),
    ("resources.instance_type.azureml=ND96", "resources.instance_type.sagemaker", "ml.p4d"),
    ("resources.shm_size=64g", "resources.shm_size", 64 * 2**30),
    ("environment.version=2.10", "environment.version", "2.10"),
    ("environment.variables.DEBUG=1", "environment.variables", {"DEBUG": "1"}),
    ("tags.team=true", "tags", {"team": "true"}),
    ("max_runtime=90", "max_runtime", 90),
    ("spot.max_wait=1h30m", "spot.max_wait", 5400),
    ("spot=null", "spot", None),
    ("inputs.train.shard=true", "inputs.train.shard", True),
    ("inputs.valid.local=x=y", "inputs.valid.local", "x=y"),
    ("description=a: b, [c", "description", "a: b, [c"),
    ("description=", "description", ""),
    ("hyperparameters.lr=1e-3", "hyperparameters.lr", 1e-3),
    ("hyperparameters.lr=on", "hyperparameters.lr", "on"),
    ("hyperparameters.flag=true", "hyperparameters.flag", True),
    ("hyperparameters.layers=[3, 4]", "hyperparameters.layers", [3, 4]),
    ("hyperparameters.layers[1]=9", "hyperparameters.layers", [1, 9]),
    ("hyperparameters.layers.2=9", "hyperparameters.layers", [1, 2, 9]),
    ("hyperparameters.nested.b.c={d: 1}", "hyperparameters.nested", {"a": 1, "b": {"c": {"d": 1}}}),
    ('hyperparameters.text="1"', "hyperparameters.text", "1"),
    ("hyperparameters.lr=null", "hyperparameters", {"layers": [1, 2], "nested": {"a": 1}}),
    (
        'hyperparameters."a.b"=1',
        "hyperparameters",
        {"lr": 1, "layers": [1, 2], "nested": {"a": 1}, "a.b": 1},
    ),
    (
        "hyperparameters.'a=b'=1",
        "hyperparameters",
        {"lr": 1, "layers": [1, 2], "nested": {"a": 1}, "a=b": 1},
    ),
    ("distribution.type=torch", "distribution", ct.Torch(processes_per_instance=8)),
    ("distribution={type: smp, version: 2}", "distribution", ct.SMP(version=2)),
    ("resources.distribution_groups=null", "resources.distribution_groups", ()),
]


@pytest.mark.parametrize(
    ("override", "path", "value"), VALUES, ids=[case[0] + " " + case[1] for case in VALUES]
)
def test_a_value_takes_the_type_of_its_field(override: str, path: str, value: Any) -> None:
    """Text fields keep text; whole numbers, durations and open fields read theirs."""
    found: Any = job(override)
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert (found, type(found)) == (value, type(value))


def test_groups_can_be_written_one_by_one() -> None:
    """An index one past the end appends, in either spelling."""
    found = job("resources.instance_type=null", "resources.instance_groups[0].name=a",
                "resources.instance_groups[0].instance_type=ml.x", "resources.instance_groups.0.instance_count=2")  # fmt: skip
    assert found.resources.instance_groups == (
        ct.InstanceGroup(name="a", instance_type="ml.x", instance_count=2),
    )


@pytest.mark.parametrize(
    ("line", "override", "path", "value"),
    [("resources: []", "resources.instance_count=2", "resources.instance_count", 2),
     ("resources: [1]", "resources.instance_count=2", "resources.instance_count", 2),
     ("distribution: []", "distribution.type=torch", "distribution", ct.Torch()),
     ("tags: []", "tags.team=vision", "tags", {"team": "vision"}),
     ("resources: {instance_preferences: {}}", "resources.instance_preferences[0]=a", "resources.instance_preferences",
      (ct.InstancePreference(instance_type="a"),))],
)  # fmt: skip
def test_what_cannot_hold_the_field_is_replaced(
    line: str, override: str, path: str, value: Any
) -> None:
    """A list where a mapping belongs, and the reverse: as a plain value is."""
    found: Any = job(override, text=f"name: a\nentry_point: t.py\n{line}\n")
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


UNDONE = [
    (("resources.instance_count=1", "resources=null"), "resources"),
    (("name=b", "name=c"), "name"),
    (("inputs.a.local=x", "inputs={}"), "inputs"),
    (("arguments[0]=a", "arguments=[b]"), "arguments"),
    (("hyperparameters.lr=1", "hyperparameters.lr=null"), "hyperparameters.lr"),
    (("environment.variables.A=1", "environment={framework: pytorch}"), "environment"),
    (("distribution.type=mpi", "distribution.options=-x", "distribution.type=torch"), "distribution.type"),
    (("distribution={type: mpi, options: -x}", "distribution.type=torch"), "distribution.type"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "path"), UNDONE)
def test_an_override_that_undoes_another_is_refused(overrides: tuple[str, ...], path: str) -> None:
    """The message names both, and the place is the later one's."""
    with pytest.raises(ct.JobError) as caught:
        job(*overrides)
    (problem,) = [problem for problem in caught.value.problems if problem.code == "CT069"]
    assert dotted(problem.path) == path
    assert problem.file == f"--set {overrides[-1]}"
    assert f"`--set {overrides[-1]}`" in problem.message
    assert f"`--set {overrides[-2]}`" in problem.message or len(overrides) > 2


def test_overrides_that_add_to_each_other_are_applied_in_order() -> None:
    """A parent and then its fields, a cleared parent, one of all targets, the same twice."""
    found = job(
        "hyperparameters={a: 1}", "hyperparameters.b=2", "resources=null", "resources.instance_count=2",
        "resources.instance_type=x", "resources.instance_type.azureml=y", "name=b", "name=b",
    )  # fmt: skip
    assert found.hyperparameters == {"a": 1, "b": 2}
    assert found.resources.instance_count == 2
    assert found.resources.instance_type is not None
    assert [found.resources.instance_type.of(name) for name in ("sagemaker", "azureml")] == [
        "x",
        "y",
    ]
    assert found.name == "b"


def test_the_version_of_smp_is_a_number() -> None:
    """`--set distribution.version=1` is the 1 that the field asks for."""
    assert job("distribution={type: smp}", "distribution.version=1").distribution == ct.SMP(
        version=1
    )


LAYOUT = "write `--set resources.instance_count=4`"
LONG = "1" * 5000
"""More digits than Python reads as a number."""
WRONG: list[tuple[str, str, str, str | None]] = [
    ("resources.instance_cout=2", "resources.instance_cout", no_field("instance_cout", "`resources`"),
     suggested("instance_count")),
    ("num_nodes=2", "num_nodes", no_field("num_nodes", "a job"), suggested("resources.instance_count")),
    ("steps=3", "steps", no_field("steps", "a job"),
     "for an option of your script, write `--set hyperparameters.steps=3`"),
    ("distribution.foo.x=2", "distribution.foo", no_field("foo", "`distribution`"),
     one_of("added_property", "launch", "mpi_options", "processes_per_instance", "type")),
    ("distribution.type=torhc", "distribution.type", "`torhc` is not a distribution", suggested("torch")),
    ("resources.instance_count=two", "resources.instance_count", wrong_type("instance_count", "a whole number", '`"two"`'),
     "write for example `instance_count: 1`"),
    ("resources.instance_count=2.50", "resources.instance_count", wrong_type("instance_count", "a whole number", "`2.50`"),
     "write for example `instance_count: 1`"),
    ("tags={year: 2.10}", "tags.year", wrong_type("year", "text", "`2.10`"), 'write `"2.10"`, in quotes'),
    ("max_runtime=soon", "max_runtime", '`"soon"` is not a duration', "write for example `90s`, `30m`, `2h` or `1d`"),
    ("name=null", "name", "`name` is missing", "add `name: ...`"),
    ("name.x=1", "name", "`name` holds one value, so nothing can be set below it", LAYOUT),
    ("hyperparameters.lr.x=1", "hyperparameters.lr", "`hyperparameters.lr` holds one value, so nothing can be set below it",
     LAYOUT),
    ("hyperparameters.layers.x=1", "hyperparameters.layers", "`hyperparameters.layers` is a list, and `x` is not an index",
     "write `hyperparameters.layers[0]`"),
    ("hyperparameters.layers[5]=1", "hyperparameters.layers",
     "`hyperparameters.layers` has 2 entries, so there is no `[5]`", "the next one is `hyperparameters.layers[2]`"),
    (f"hyperparameters.layers[{LONG}]=1", "hyperparameters.layers",
     f"`hyperparameters.layers` has 2 entries, so there is no `[{shortened(LONG)}]`", "the next one is `hyperparameters.layers[2]`"),
    (f"hyperparameters.layers.{LONG}=1", "hyperparameters.layers",
     f"`hyperparameters.layers` has 2 entries, so there is no `[{shortened(LONG)}]`", "the next one is `hyperparameters.layers[2]`"),
    ("hyperparameters.lr=[1", "hyperparameters.lr", "not valid YAML: did not find expected ',' or ']'",
     "close the list with `]`"),
    ("hyperparameters.lr=.nan", "hyperparameters.lr", "`lr` cannot be `nan`: no service accepts it", 'write `"nan"`, as text'),
    ("hyperparameters.lr=${{inputs.trian}}", "hyperparameters.lr",
     "`${{inputs.trian}}` refers to nothing: the job has no input `trian`", suggested("train")),
    ("resources.gpu=T4", "resources.gpu", "`instance_type` and `gpu` both name the machine", "remove one of them"),
    ("name", "", "`name` has no `=` after the field", LAYOUT),
    ("=1", "", "`` is not the path of a field", f'{LAYOUT}; quote a key with dots: `hyperparameters."a.b"=1`'),
    ("a..b=1", "", "`a..b` is not the path of a field", f'{LAYOUT}; quote a key with dots: `hyperparameters."a.b"=1`'),
    ("a. =1", "", "`a. ` is not the path of a field", f'{LAYOUT}; quote a key with dots: `hyperparameters."a.b"=1`'),
    (" " * 100_000 + '"a', "", f"`{shortened(' ' * 100_000)}` has no `=` after the field", LAYOUT),
    ("a.=1", "", "`a.` is not the path of a field", f'{LAYOUT}; quote a key with dots: `hyperparameters."a.b"=1`'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "path", "message", "hint"), WRONG, ids=[case[0][:60] for case in WRONG]
)
def test_a_wrong_override_is_reported_at_itself(
    override: str, path: str, message: str, hint: str | None
) -> None:
    """The place is `--set ...`, not the file; the beginning of one that is too long to be read."""
    place = shortened(f"--set {override}") + (f"  {path}" if path else "")
    assert told(override) == [(place, message, hint)]


def test_problems_of_file_and_overrides_come_together() -> None:
    """Those of the file first; one that an override mends is gone."""
    text = TEXT.replace("name: a", "name: a b").replace("max_wait: 6h", "max_wait: 6x")
    places = [place for place, *_ in told("spot.max_wait=6h", "nodes=2", text=text)]
    assert places == ["job.yaml:1:7  name", "--set nodes=2  nodes"]


def test_a_wrong_override_changes_nothing() -> None:
    """No empty mapping is left behind on the way to a field that does not exist."""
    assert [message for _, message, _ in told("checkpoint.kep=1")] == [
        no_field("kep", "`checkpoint`")
    ]


@given(st.text(max_size=20), st.text(max_size=10))
def test_any_override_is_applied_or_refused(path: str, value: str) -> None:
    """No text makes another exception than JobError."""
    try:
        job(f"{path}={value}")
    except ct.JobError as error:
        assert error.problems  # noqa: PT017  # either outcome is right


WHOLE = st.characters(codec="utf-8", exclude_characters="\0")


@given(st.text(WHOLE, min_size=1, max_size=10), st.text(WHOLE, max_size=10))
def test_any_key_can_be_quoted(key: str, value: str) -> None:
    """In double quotes with backslashes, as text that keeps every character."""
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    expected = {} if value.strip() == "null" else {key: value}
    assert job(f'tags."{quoted}"={value}').tags == expected
