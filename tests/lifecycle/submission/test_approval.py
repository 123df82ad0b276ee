"""What a person has reserved for themselves: exactly the plan that they saw, and only with their approval."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import PersonNeeded, PlanDiffers, SettingsError, UsageError
from cloudtrain.lifecycle.runs.sweep import sweep_of
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.submission import approval
from cloudtrain.system import plugins
from cloudtrain.targets import settings
from cloudtrain.targets.local.target import LocalTarget
from cloudtrain.targets.settings import read_environment
from tests.deadlines import DEADLINE
from tests.fakes.file_target import FileTarget
from tests.fakes.sagemaker.server import FakeAws

JOB = """\
name: j
source_dir: code
entry_point: train.py
hyperparameters: {lr: 0.1}
"""


class PaidTarget(FileTarget):
    """Stands in for the local target, and costs money."""

    facts = LocalTarget.facts._replace(is_paid=True, waits_for_runs=False)


class World:
    """A folder with a job, the person's settings, and the jobs that the target was asked for."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.jobs = home / "jobs"
        self._capsys = capsys

    def settings(self, lines: str, file: Path | None = None) -> None:
        """Write `[approval]`, which counts in the store of the tests."""
        file = file or self.home / ".config/cloudtrain/cloudtrain.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'[approval]\nstate_dir = "{self.home}/state"\n{lines}\n')

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code of a command, and the error or whatever else it prints as JSON."""
        self._capsys.readouterr()
        code = run_command([*words, "--json"])
        out = self._capsys.readouterr().out
        return code, json.loads(out) if out.strip() else {}

    def submit(self, *words: str) -> tuple[int, str]:
        """Return the exit code of a submit, and the code of its error."""
        code, data = self.run("submit", "job.yaml", "--offline", "--detach", *words)
        return code, data["error"]["code"] if code else ""

    @property
    def sent(self) -> int:
        """How many jobs the target has."""
        return len(list(self.jobs.iterdir()))

    def plan(self, *words: str) -> str:
        """Return the hash of the plan."""
        return str(self.run("plan", "job.yaml", "--short", *words)[1]["plan"])

    def approve(self, sha256: str) -> None:
        """Approve a plan as a person at a terminal does."""
        here = read_environment()
        approval.approve(approval.asked_plan(sha256, here), here)


@pytest.fixture
def world(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> World:
    """Runs cost money, and need an approval."""
    (clean_environment / "code").mkdir()
    (clean_environment / "code/train.py").write_text("print(1)\n")
    (clean_environment / "job.yaml").write_text(JOB)
    (clean_environment / "jobs").mkdir()
    monkeypatch.setenv("FAKE_SERVICE", str(clean_environment / "jobs"))
    monkeypatch.setitem(plugins.LOADED, "local", PaidTarget())
    made = World(clean_environment, capsys)
    made.settings('paid_targets = "ask"')
    return made


# Exactly one plan.


def test_a_plan_is_sent_once(world: World) -> None:
    """The plan with the hash is sent, and its run comes back when it is sent again."""
    world.settings("")
    sha256 = world.plan()
    words = ("submit", "job.yaml", "--offline", "--detach", "--plan", sha256[:12])
    code, first = world.run(*words)
    assert (code, first["adopted"]) == (0, False)
    code, again = world.run(*words)
    assert (code, again["name"], again["adopted"]) == (0, first["name"], True)
    assert world.sent == 1
    assert world.run("show", first["name"])[1]["plan"]["sha256"] == sha256


def test_another_plan_is_not_sent(world: World) -> None:
    """The exit code is 5, and a file of the plan tells what differs."""
    world.settings("")
    code, plan = world.run("plan", "job.yaml")
    (world.home / "plan.json").write_text(json.dumps(plan))
    words = ("submit", "job.yaml", "--offline", "--plan")
    change = ("--set", "hyperparameters.lr=0.2")

    code, data = world.run(*words, "plan.json", *change)
    assert (code, data["error"]["code"], data["error"]["exit_code"]) == (5, "CT927", 5)
    assert data["error"]["plan"] == world.plan(*change)
    messages = " ".join(problem["message"] for problem in data["error"]["problems"])
    assert "0.1" in messages
    assert "0.2" in messages

    code, data = world.run(*words, plan["sha256"], *change)
    assert code == 5
    (world.home / "code/train.py").write_text("print(2)\n")
    code, data = world.run(*words, "plan.json")
    assert ["source_dir"] in [problem["path"] for problem in data["error"]["problems"]]
    assert world.sent == 0


@pytest.mark.parametrize("text", ["3f9a7c21d04", "x" * 64, "3F9A7C21D04E", "last"])
def test_a_hash_has_twelve_digits_or_more(world: World, text: str) -> None:
    """Fewer could be those of another plan."""
    assert world.submit("--plan", text) == (2, "CT909")


def test_an_earlier_run_is_no_answer_for_another_plan(world: World) -> None:
    """A run that was never reported is only named; the plan is sent."""
    world.settings("")
    assert world.submit()[0] == 0
    with open_store(world.home / "state") as store:
        store._db.execute("UPDATE runs SET stage = 'accepted'")
    assert world.submit("--plan", world.plan()) == (0, "")
    assert world.sent == 2


def test_two_commands_send_one_plan_once(world: World) -> None:
    """The other has the run, or says that it is being sent."""
    world.settings("")
    with open_store(world.home / "state"):  # whose identity is part of the run's name
        pass
    job = ct.load_job("job.yaml")
    plan = ct.plan(job)

    def send(_: int) -> str:
        try:
            return ct.submit(job, exactly=plan, online=False).name
        except ct.TargetError:
            return plan.run_name

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(send, range(4))) == {plan.run_name}
    assert world.sent == 1


def test_python_sends_exactly_a_plan(world: World) -> None:
    """As a plan or as its JSON data."""
    world.settings("")
    job = ct.load_job("job.yaml")
    plan = ct.plan(job)
    with pytest.raises(PlanDiffers) as error:
        ct.submit(job.replace(hyperparameters={"lr": 1}), exactly=plan, online=False)
    assert error.value.plan != plan.sha256
    assert ct.submit(job, exactly=plan.to_dict(), online=False).name == plan.run_name


# Ways around an approval: each is a way to submit, after which nothing may have been sent.


def _refused(world: World, *words: str, code: tuple[int, str] = (6, "CT925")) -> None:
    assert world.submit(*words) == code


def _project(world: World, text: str) -> None:
    (world.home / "cloudtrain.toml").write_text(text)


def _python(world: World, **more: Any) -> None:
    with pytest.raises(PersonNeeded):
        ct.submit(ct.load_job("job.yaml"), online=False, **more)


def _free_run(world: World) -> str:
    """Return a run that was sent before approvals were asked for."""
    world.settings("")
    name = ct.submit(ct.load_job("job.yaml"), online=False).name
    world.settings('paid_targets = "ask"')
    (world.jobs / name).rename(world.home / name)
    return name


def _rerun(world: World, *words: str) -> None:
    name = _free_run(world)
    code, data = world.run("rerun", name, "--offline", "--detach", *words)
    assert (code, data["error"]["code"]) == (6, "CT925")


def _other_folder(name: str, value: str) -> Callable[[World], None]:
    def way(world: World) -> None:
        elsewhere = world.home / "elsewhere"
        world.settings("", elsewhere / ".config/cloudtrain/cloudtrain.toml")
        world.settings("", elsewhere / "cloudtrain/cloudtrain.toml")
        os.environ[name] = str(elsewhere / value)
        code, error = world.submit()
        assert code in (2, 6)
        assert error in ("CT920", "CT925")

    return way


def _other_store(*names: str) -> Callable[[World], None]:
    def way(world: World) -> None:
        for name in names:
            os.environ.pop(name, None)
        if not names:
            os.environ["CLOUDTRAIN_STATE_DIR"] = str(world.home / "other")
        os.environ["XDG_STATE_HOME"] = str(world.home / "other")
        _refused(world, code=(2, "CT928"))

    return way


def _sweep(world: World) -> None:
    (world.home / "sweep.yaml").write_text(
        "kind: sweep\nname: s\njob: job.yaml\nsearch: {hyperparameters.lr: {choice: [1, 2]}}\nstrategy: grid\n"
    )
    code, data = world.run("submit", "sweep.yaml", "--offline", "--detach")
    assert (code, data["error"]["code"]) == (6, "CT925")


def _chain(world: World) -> None:
    name = _free_run(world)
    (world.home / name).rename(world.jobs / name)
    Path(ct.run(name).written["model"]).mkdir(parents=True)
    _refused(world, "--set", f"inputs.model.local=run:{name}/model")
    (world.jobs / name).unlink()


def _piped(world: World) -> None:
    """Without a terminal, nobody can say yes."""
    world.submit()
    (plan,) = world.run("approve")[1]
    for text in ("", "y\n" * 9, "yes\n"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", io.StringIO(text))
            code, data = world.run("approve", plan["plan"])
        assert (code, data["error"]["code"]) == (6, "CT925")
    _refused(world)


def _changed(world: World) -> None:
    world.submit()
    world.approve(world.plan())
    _refused(world, "--set", "hyperparameters.lr=9")
    (world.home / "code/train.py").write_text("print('x')\n")
    _refused(world)


def _renamed(world: World) -> None:
    world.submit()
    world.approve(world.plan())
    _refused(world, "--set", "name=other")


def _expired(world: World) -> None:
    world.submit()
    world.approve(world.plan())
    with open_store(world.home / "state") as store:
        store._db.execute("UPDATE plans SET until = ?", (time.time() - 1,))
    _refused(world)


def _guessed(world: World) -> None:
    code, data = world.run("approve", world.plan())
    assert (code, data["error"]["code"]) == (2, "CT929"), "nobody was asked about it"
    _refused(world)


def _before_the_account_was_asked(world: World) -> None:
    """A plan that was made, shown or kept is not approved."""
    _, plan = world.run("plan", "job.yaml")
    (world.home / "plan.json").write_text(json.dumps(plan))
    _refused(world, "--plan", "plan.json")


def _unreadable(world: World) -> None:
    file = world.home / ".config/cloudtrain/cloudtrain.toml"
    file.write_text("[approval]\npaid_targets = ")
    assert world.submit()[0] == 2
    file.write_text('[approval]\npaid_targets = "none"\n')
    _refused(world, code=(2, "CT013"))
    file.unlink()
    file.mkdir()
    assert world.submit()[0] == 2


def _writable_by_others(world: World) -> None:
    world.settings("")
    (world.home / ".config/cloudtrain/cloudtrain.toml").chmod(0o666)
    assert world.submit()[0] == 2


def _of_the_machine(world: World) -> None:
    """What root has written counts more than the person's own file."""
    world.settings("paid_targets = 'free'")
    file = world.home / "etc/cloudtrain.toml"
    world.settings('paid_targets = "ask"', file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approval, "SYSTEM_FILE", file)
        expected = (6, "CT925") if os.getuid() == 0 else (2, "CT911")
        _refused(world, code=expected)


def _others_own_the_file_of_the_machine(world: World) -> None:
    file = world.home / "etc/cloudtrain.toml"
    world.settings('paid_targets = "free"', file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approval, "SYSTEM_FILE", file)
        if os.getuid() == 0:
            file.write_text('[local]\n[approval]\npaid_targets = "free"\n')
            _refused(world, code=(2, "CT912"))
            os.chown(file, 12345, -1)
        assert world.submit()[0] == 2


def _approval_of_a_removed_store(world: World) -> None:
    world.submit()
    world.approve(world.plan())
    for file in (world.home / "state").glob("*.db*"):
        file.unlink()
    _refused(world)


def _twice(world: World) -> None:
    """The approval of a run serves no second one."""
    world.submit()
    world.approve(world.plan())
    assert world.submit() == (0, "")
    _refused(world)
    assert world.sent == 1
    next(world.jobs.iterdir()).unlink()


def _at_once(world: World) -> None:
    world.submit()
    world.approve(world.plan())
    job = ct.load_job("job.yaml")

    def send(_: int) -> bool:
        try:
            ct.submit(job, online=False)
        except PersonNeeded:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(send, range(4))) == 1
    assert world.sent == 1
    next(world.jobs.iterdir()).unlink()


def _recovered(world: World) -> None:
    world.submit()
    assert ct.recover() == []


def _listed(*words: str, approved: tuple[str, ...] = ()) -> Callable[[World], None]:
    """A list of alternatives on a cloud, perhaps after another plan of the job was approved."""

    def way(world: World) -> None:
        _project(
            world,
            '[sagemaker]\nregion = "eu-west-1"\nrole = "arn:aws:iam::123456789012:role/train"\n'
            f'[slurm]\nshared_dir = "{world.home}"\n',
        )
        (world.home / "job.yaml").write_text(f"{JOB}{_ON_A_CLOUD}")
        with FakeAws() as fake, pytest.MonkeyPatch.context() as patch:
            for name, value in fake.environ.items():
                patch.setenv(name, value)
            if approved:
                assert world.submit(*approved) == (6, "CT925")
                (plan,) = world.run("approve")[1]
                world.approve(plan["plan"])
            _refused(world, *words)
            assert fake.operations("CreateTrainingJob") == []

    return way


_ON_A_CLOUD = """\
environment: {framework: pytorch, version: "2.10"}
resources: {instance_type: {sagemaker: ml.g5.xlarge}}
max_runtime: 1h
"""
_CLOUD = ("--target", "sagemaker")
_OTHER = ("--or", "resources.instance_type.sagemaker=ml.g4dn.xlarge")


def _variable(name: str) -> Callable[[World], None]:
    def way(world: World) -> None:
        os.environ[name] = "free"
        _refused(world)

    return way


def _plan_of_fewer_entries(world: World) -> None:
    """With `plan`, the hash of the job alone sends no list of it."""
    world.settings('paid_targets = "plan"')
    sha256 = world.plan()
    (world.home / "cloudtrain.toml").write_text(f'[slurm]\nshared_dir = "{world.home}"\n')
    words = ("--target", "slurm", "--or", "target=local", "--plan", sha256)
    _refused(world, *words, code=(5, "CT927"))


def _linked(world: World) -> None:
    """A link in the place of the person's file leads to a project's, which others may write."""
    file = world.home / ".config/cloudtrain/cloudtrain.toml"
    theirs = world.home / "theirs.toml"
    world.settings('paid_targets = "free"', theirs)
    theirs.chmod(0o666)
    file.unlink()
    file.symlink_to(theirs)
    assert world.submit()[0] == 2


def _two_plans_at_once(world: World) -> None:
    """An approval of one plan serves neither of two others, sent beside it."""
    world.submit()
    world.approve(world.plan())
    job = ct.load_job("job.yaml")

    def send(rate: int) -> bool:
        try:
            ct.submit(job.replace(hyperparameters={"lr": rate}), online=False)
        except PersonNeeded:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(send, (1, 2))) == [False, False]


WAYS: dict[str, Callable[[World], None]] = {
    "submit": _refused,
    "with --ignore": lambda world: _refused(world, "--ignore", "CT925", code=(2, "CT930")),
    "with --yes": lambda world: _refused(world, "--yes", code=(2, "CT901")),
    "with --set": lambda world: _refused(
        world, "--set", "approval.paid_targets=free", code=(2, "CT010")
    ),
    "with --plan": lambda world: _refused(world, "--plan", world.plan()),
    "with a plan's file": _before_the_account_was_asked,
    "with --each": lambda world: _refused(world, "--each", "hyperparameters.lr=1,2"),
    "with --queue": lambda world: _refused(world, "--queue"),
    "a project's file": lambda world: [
        _project(world, '[approval]\npaid_targets = "free"\n'),
        _refused(world, code=(2, "CT920")),
    ],
    "a project's profile": lambda world: [
        _project(world, '[profiles.x.approval]\npaid_targets = "free"\n'),
        _refused(world, "--profile", "x", code=(2, "CT912")),
    ],
    "another HOME": _other_folder("HOME", ""),
    "another XDG_CONFIG_HOME": _other_folder("XDG_CONFIG_HOME", ""),
    "an empty XDG_CONFIG_HOME": _other_folder("XDG_CONFIG_HOME", "none"),
    "another store": _other_store(),
    "the store of another home": _other_store("CLOUDTRAIN_STATE_DIR"),
    "Python": _python,
    "Python with a plan": lambda world: _python(world, exactly=ct.plan(ct.load_job("job.yaml"))),
    "Python with settings": lambda world: _python(world, target=ct.Local()),
    "a run again": _rerun,
    "a run again with changes": lambda world: _rerun(world, "--set", "hyperparameters.lr=3"),
    "a run again with a name": lambda world: _rerun(world, "--name", "other"),
    "a sweep": _sweep,
    "a chain": _chain,
    "a yes from a pipe": _piped,
    "another job than the approved one": _changed,
    "another name than the approved one": _renamed,
    "an approval that has expired": _expired,
    "an approval without a question": _guessed,
    "a broken settings file": _unreadable,
    "a settings file that others may write": _writable_by_others,
    "a file that counts less than root's": _of_the_machine,
    "a file of the machine that is not root's": _others_own_the_file_of_the_machine,
    "the approval of another store": _approval_of_a_removed_store,
    "one approval twice": _twice,
    "one approval at once": _at_once,
    "recover": _recovered,
    "a list": _listed(*_CLOUD, *_OTHER),
    "a list that ends on this machine": _listed(*_CLOUD, "--or", "target=local"),
    "a list whose first entry is free": _listed("--target", "slurm", "--or", "target=sagemaker"),
    "a list of an approved job": _listed(*_CLOUD, *_OTHER, approved=_CLOUD),
    "an entry of an approved list": _listed(*_CLOUD, approved=(*_CLOUD, *_OTHER)),
    "another wait than the approved list": _listed(
        *_CLOUD, "--or", f"{_OTHER[1]} wait=9h", approved=(*_CLOUD, *_OTHER)
    ),
    "a list with the hash of the job": _plan_of_fewer_entries,
    "a variable": _variable("CLOUDTRAIN_APPROVAL"),
    "a variable of the table's field": _variable("CLOUDTRAIN_PAID_TARGETS"),
    "a variable of the table": _variable("CLOUDTRAIN_APPROVAL_PAID_TARGETS"),
    "a link to another file": _linked,
    "two other plans at once": _two_plans_at_once,
}


@pytest.mark.slow_after(15)
@pytest.mark.parametrize("way", WAYS)
def test_there_is_no_way_around_an_approval(world: World, way: str) -> None:
    """Nothing is sent that the person has not approved."""
    WAYS[way](world)
    assert world.sent == 0


# Approvals.


def test_an_approved_plan_is_sent(world: World) -> None:
    """The refusal says which plan waits, and the list shows it until it is sent."""
    code, data = world.run("submit", "job.yaml", "--offline", "--detach")
    assert (code, data["error"]["exit_code"]) == (6, 6)
    (waiting,) = world.run("approve")[1]
    assert waiting["plan"] == data["error"]["plan"] == world.plan()
    assert waiting["approved_until"] is None
    assert data["error"]["plan"][:12] in data["error"]["hint"]

    world.settings('paid_targets = "ask"\nexpires = "10m"')
    world.approve(waiting["plan"][:12])
    (waiting,) = world.run("approve")[1]
    assert 590 < waiting["approved_until"] - time.time() <= 600
    assert world.submit() == (0, "")
    assert world.run("approve")[1] == []
    code, data = world.run("approve", waiting["plan"])
    assert (code, data["error"]["code"]) == (2, "CT929")


def test_a_person_at_a_terminal_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`submit` asks itself, and `approve` shows the request before it asks."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    words = ["submit", "job.yaml", "--offline", "--detach"]
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert run_command(words) == 6
    assert world.sent == 0
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    capsys.readouterr()
    assert run_command(["approve", world.plan()]) == 0
    assert "lr" in capsys.readouterr().err
    assert run_command(words) == 0
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run_command(words) == 0
    assert world.sent == 2


def test_what_was_refused_keeps_its_approval(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target refused the job, so the approval serves the next try."""
    world.submit()
    world.approve(world.plan())
    monkeypatch.setenv("FAKE_REFUSES", "1")
    assert world.submit()[0] == 4
    monkeypatch.setenv("FAKE_REFUSES", "0")
    assert world.submit() == (0, "")


def test_a_named_plan_is_enough(world: World) -> None:
    """With `plan`, the hash of the plan is the approval."""
    world.settings('paid_targets = "plan"')
    _refused(world)
    assert world.submit("--plan", world.plan()) == (0, "")
    _refused(world)
    world.approve(world.plan())
    assert world.submit() == (0, "")


def test_a_free_target_needs_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a readable settings file."""
    monkeypatch.setitem(plugins.LOADED, "local", FileTarget())
    assert world.submit() == (0, "")


def test_the_paid_runs_are_counted(world: World) -> None:
    """Those that have not ended, whatever the store is asked for; an ended one makes room."""
    world.settings("max_parallel = 2")
    assert [world.submit() for _ in range(3)] == [(0, ""), (0, ""), (2, "CT926")]
    os.environ["CLOUDTRAIN_STATE_DIR"] = str(world.home / "other")
    assert world.submit() == (2, "CT928")
    os.environ["CLOUDTRAIN_STATE_DIR"] = str(world.home / "state")
    with open_store(world.home / "state") as store:
        store._db.execute("UPDATE runs SET state = 'failed' WHERE seq = 1")
    assert world.submit() == (0, "")


def test_a_sweep_counts_as_its_parallel_trials(world: World) -> None:
    """More of them than are allowed are not started."""
    world.settings("max_parallel = 2")
    each = ("--each", "hyperparameters.lr=1,2,3", "--parallel")
    assert world.submit(*each, "3") == (2, "CT926")
    assert world.sent == 0


def test_mistakes_have_a_place(world: World) -> None:
    """In the person's own file, and in a project's."""
    world.settings("max_paralel = 2")
    with pytest.raises(SettingsError) as error:
        approval.read_approval()
    assert error.value.problems[0].place.endswith("cloudtrain.toml:3:1  approval.max_paralel")
    _project(world, "[approval]\n")
    with pytest.raises(SettingsError) as error:
        ct.plan(ct.load_job("job.yaml"))
    assert error.value.problems[0].code == "CT920"
    assert "cloudtrain.toml:1:2" in error.value.problems[0].place


def test_a_plan_writes_nothing(world: World) -> None:
    """Only a submit that is refused adds a plan to those that wait."""
    world.plan()
    with read_store(world.home / "state") as store:
        assert store.plans.asked() == []
    with pytest.raises(UsageError):
        approval.hash_of("")


# On a service, with a driver.


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_sweep_needs_one_approval_and_more_trials_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are sent without a question, and what is added is asked about."""
    # the driver is a process of the real account, which would refuse the table elsewhere
    (world.home / ".config/cloudtrain/cloudtrain.toml").unlink()
    own = world.home / "account.toml"
    world.settings('paid_targets = "ask"', own)
    monkeypatch.setattr(approval, "account_file", lambda: own)
    monkeypatch.setitem(settings._PERSONAL, "approval", lambda: own)
    with FakeAws() as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        fake.jobs.on_create = lambda new: new.end("Completed", BillableTimeInSeconds=60)
        job = ct.TrainingJob(
            name="j",
            source_dir="code",
            entry_point="train.py",
            environment={"framework": "pytorch", "version": "2.10"},
            resources={"instance_type": {"sagemaker": "ml.g5.xlarge"}},
            max_runtime="1h",
        )
        sweep = ct.Sweep(
            name="s",
            job=job.model_dump(exclude_unset=True),
            search={"n": {"choice": [1, 2, 3, 4]}},
            strategy="grid",
            trials=2,
        )
        target = ct.SageMaker(region="eu-west-1", role="arn:aws:iam::123456789012:role/train")
        with pytest.raises(PersonNeeded) as error:
            ct.submit(sweep, target, online=False)
        world.approve(error.value.plan)
        run = sweep_of(ct.submit(sweep, target, online=False))
        assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
        assert len(fake.operations("CreateTrainingJob")) == 2

        with pytest.raises(PersonNeeded) as error:
            run.resume(1)
        world.approve(error.value.plan)
        run.resume(1)
        assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
        assert len(fake.operations("CreateTrainingJob")) == 3
        with pytest.raises(PersonNeeded) as again:
            run.resume(1)
        assert again.value.plan != error.value.plan
