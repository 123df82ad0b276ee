"""A package whose target cannot be used does no harm to the others, and says what to do when it is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

JOB = "name: job\nentry_point: train.py\n"

TARGET = '''
"""A small target, whose runs have ended as soon as they are there."""
from pathlib import Path
from typing import Literal, NamedTuple
from cloudtrain.plans.plan import Level, Plan
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.targets.contract import Service, Target, TargetFacts
from cloudtrain.targets.settings import TargetSettings

class Account(NamedTuple):
    place: str = "here"

class Deck(TargetSettings):
    type: Literal["deck"] = "deck"

class DeckService(Service):
    in_flight = 0.0
    names_are_unique = True
    def upload(self, plan, bundle, *, on_bytes=None): return True
    def submit(self, plan, *, again=False):
        Path(f"deck-{plan.run_name}").touch()
        return plan.ref
    def has(self, ref): return Path(f"deck-{ref.name}").exists()
    def status(self, ref): return RunStatus(RunState.SUCCEEDED, started=1.0, ended=2.0)
    def logs(self, ref, **options): return iter(())
    def stop(self, ref): pass

class DeckTarget(Target):
    name = "deck"
    title = "the deck"
    settings = Deck
    prefix = "DE"
    facts = TargetFacts(extras={"ferric": ("no-such-package",)})
    def account(self, settings, **context): return Account()
    def service(self, **context): return DeckService()
    def compile(self, job, settings, context):
        return Plan(self.name, context.run_name, job.name, {"name": context.run_name}, place="here")
'''

RULES = """
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import rule
@rule("{code}", Level.ERROR)
def broken(subject):
    "A problem."
    return ()
"""


BUDGET = """
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import rule
from cloudtrain.rules.machines import budget_without_price, over_budget
rule("DE412", Level.ERROR)(over_budget)
rule("DE413", Level.ERROR)(budget_without_price)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def packages(clean_environment: Path) -> Path:
    """Where packages are installed, beside a job in the working directory."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "job.yaml").write_text(JOB)
    torch = clean_environment / "packages" / "torch"  # a real one takes the doctor seconds
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text(
        "class cuda: is_available = staticmethod(bool)\n__version__ = '2.13.0'\n"
    )
    (torch / "distributed.py").write_text("def is_available(): return True\n")
    return torch.parent


@pytest.fixture
def install(packages: Path) -> Callable[..., Path]:
    """`install("deck = deck:DeckTarget", deck=SOURCE)` installs a package with a target and modules."""

    def make(entry: str, *, package: str = "broken-target", **modules: str) -> Path:
        info = packages / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[cloudtrain.targets]\n{entry}\n")
        for name, text in modules.items():
            (packages / f"{name}.py").write_text(text)
        return info

    return make


@pytest.fixture
def run(packages: Path) -> Run:
    """A command in the working directory, with the packages installed."""

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "cloudtrain", *arguments],
            env={**os.environ, "PYTHONPATH": str(packages), "COLUMNS": "400"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "job.yaml"],
        ["plan", "job.yaml", "--json", "--python", sys.executable],
        ["ps", "--json"],
        ["--help"],
        ["explain", "LO102"],
        ["instances", "--target", "sagemaker"],
        ["schema"],
    ],
)
@pytest.mark.slow_after(2)
def test_other_targets_work(install: Callable[..., Path], run: Run, arguments: list[str]) -> None:
    """One broken package keeps nobody from the other targets, their rules and their tables."""
    install("broken = no_such_module:Target")
    done = run(*arguments)
    assert done.returncode == 0
    assert "no_such_module" not in done.stderr


WRONG = [
    (("class DeckTarget", "import no_such_sdk\nclass DeckTarget"), "ModuleNotFoundError: No module named 'no_such_sdk'"),
    (("class DeckTarget", "raise SystemExit('no licence')\nclass DeckTarget"), "SystemExit: no licence"),
    (("def compile", "def compiles"), "TypeError: Can't instantiate abstract class DeckTarget"),
    (("class DeckTarget(Target)", "class DeckTarget"), "it is not a subclass of `cloudtrain.targets.contract.Target`"),
    (('    prefix = "DE"\n', ""), "its class has no `prefix`"),
    (('    title = "the deck"\n', ""), "its class has no `title`"),
    (("    settings = Deck\n", ""), "its class has no `settings`"),
    (
        ('settings = Deck\n    prefix = "DE"', 'settings_model = Deck\n    rule_prefix = "DE"'),
        "its class sets `settings_model`, as targets for earlier versions of cloudtrain do",
    ),
    (('prefix = "DE"', 'prefix = "DE"\n    is_paid = False'), "its class sets `is_paid`, which is one of its `facts`"),
    (('name = "deck"', 'name = "desk"'), "its class calls it `desk`"),
    (('Literal["deck"] = "deck"', 'Literal["desk"] = "desk"'), 'its `settings` lacks `type: Literal["deck"]'),
    (('"DE"', '"CT"'), "its `prefix` is `CT`, which stands for all targets"),
    (('"DE"', '"deck"'), "its `prefix` is `deck`, not two capital letters"),
    (('"DE"', '"SM"'), "the codes of the rules of `deck` begin with `SM`, as those of `sagemaker` do"),
    (('prefix = "DE"', 'prefix = "DE"\n    parts = {"rules": "nowhere"}'), "No module named 'nowhere'"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "reason"), WRONG)
def test_it_says_what_is_wrong_with_it(
    install: Callable[..., Path], run: Run, changed: tuple[str, str], reason: str
) -> None:
    """The reason, and what to type: for a job on the target, and in the doctor's report."""
    install("deck = deck:DeckTarget", deck=TARGET.replace(*changed))
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 4
    assert reason in done.stderr
    assert "[CT946]" in done.stderr
    assert "`pip uninstall broken-target`" in done.stderr
    report = run("doctor")
    assert reason in report.stdout
    assert report.returncode == 2


@pytest.mark.slow
def test_the_doctor_says_what_is_wrong_with_each(install: Callable[..., Path], run: Run) -> None:
    """Many broken packages at once: each has its own reason in the report."""
    names = [f"deck{letter}" for letter, _ in zip("abcdefghijklmnopqrst", WRONG, strict=False)]
    assert len(names) == len(WRONG)
    for name, (changed, _) in zip(names, WRONG, strict=True):
        source = TARGET.replace(*changed).replace("deck", name)
        install(f"{name} = {name}:DeckTarget", package=f"broken-{name}", **{name: source})
    report = run("doctor")
    missing = [
        reason
        for name, (_, reason) in zip(names, WRONG, strict=True)
        if reason.replace("deck", name) not in report.stdout
    ]
    assert missing == [], report.stdout
    assert report.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-deck", "_deck", "mode", "of"])
def test_a_name_that_no_target_can_have(install: Callable[..., Path], run: Run, name: str) -> None:
    """It would be no field of a job, or another field; the doctor tells whose it is."""
    install(f"{name} = deck:DeckTarget", deck=TARGET.replace('"deck"', f'"{name}"'))
    assert run("plan", "job.yaml").returncode == 0
    done = run("plan", "job.yaml", "--target", name)
    assert (done.returncode, f"`{name}` is not a target [CT913]" in done.stderr) == (2, True)
    assert (
        "`broken-target` has a target of this name, and a target cannot have it"
        in run("doctor").stdout
    )


@pytest.mark.slow
def test_two_packages_with_one_name(install: Callable[..., Path], run: Run) -> None:
    """Neither is taken silently: the user decides which one stays."""
    install("deck = deck:DeckTarget", package="first-deck", deck=TARGET)
    second = install("deck = other:DeckTarget", package="second-deck", other=TARGET)
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 4
    assert "two packages have a target `deck`: " in done.stderr
    assert "`first-deck`" in done.stderr
    assert "`second-deck`" in done.stderr
    shutil.rmtree(second)
    assert run("plan", "job.yaml", "--target", "deck").returncode == 0


@pytest.mark.slow
def test_a_package_with_the_name_of_a_built_in_target(
    install: Callable[..., Path], run: Run
) -> None:
    """cloudtrain keeps its own, and the doctor says that another one is there."""
    install("slurm = deck:DeckTarget", deck=TARGET.replace('"deck"', '"slurm"'))
    report = run("doctor")
    assert (
        "`broken-target` has a target of this name too, which cloudtrain does not use"
        in report.stdout
    )
    assert "Traceback" not in run("plan", "job.yaml", "--target", "slurm").stderr


@pytest.mark.slow
def test_rules_with_the_codes_of_others(install: Callable[..., Path], run: Run) -> None:
    """A rule has its target's prefix, so no code means two things."""
    modules = TARGET.replace('prefix = "DE"', 'prefix = "DE"\n    parts = {"rules": "deck_rules"}')
    install("deck = deck:DeckTarget", deck=modules, deck_rules=RULES.format(code="XX101"))
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 4
    assert "the code `XX101` does not begin with `DE`" in done.stderr
    assert "XX101" not in run("explain").stdout


@pytest.mark.slow
def test_a_part_that_cannot_be_imported(install: Callable[..., Path], run: Run) -> None:
    """The target works until the part is needed; then the error names the part."""
    install(
        "deck = deck:DeckTarget",
        deck=TARGET.replace('prefix = "DE"', 'prefix = "DE"\n    parts = {"path": "nowhere:path"}'),
    )
    assert run("ps").returncode == 0
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 4
    assert (
        "`nowhere:path` cannot be loaded: ModuleNotFoundError: No module named 'nowhere' [CT946]"
        in done.stderr
    )


@pytest.mark.slow
def test_a_budget_rule_without_a_budget(install: Callable[..., Path], run: Run) -> None:
    """A shared rule finds nothing where the target's settings have no `max_cost`."""
    modules = TARGET.replace('prefix = "DE"', 'prefix = "DE"\n    parts = {"rules": "deck_rules"}')
    install("deck = deck:DeckTarget", deck=modules, deck_rules=BUDGET)
    assert run("plan", "job.yaml", "--target", "deck").returncode == 0
    assert "The job could spend more than your cap." in run("explain", "DE412").stdout


@pytest.mark.slow
def test_the_queue_of_another_target(install: Callable[..., Path], run: Run) -> None:
    """`--queue` and `--priority` work where the settings have them, as `ct.submit(queue=True)` does."""
    fields = '"deck"\n    queue: bool = False\n    priority: int = 0\n'
    source = TARGET.replace('Literal["deck"] = "deck"', f'Literal["deck"] = {fields}')
    source = source.replace(
        '{"name": context.run_name}', '{"queued": settings.queue, "at": settings.priority}'
    )
    install("deck = deck:DeckTarget", deck=source)
    done = run(
        "submit",
        "job.yaml",
        "--target",
        "deck",
        "--queue",
        "--priority",
        "3",
        "--dry-run",
        "--json",
    )
    assert json.loads(done.stdout)["request"] == {"queued": True, "at": 3}
    refused = run("submit", "job.yaml", "--target", "deck", "--max-restarts", "3")
    assert "`--max-restarts` works only on the local target" in refused.stderr


@pytest.mark.slow
def test_a_defect_names_the_package(install: Callable[..., Path], run: Run) -> None:
    """An exception in the code of the package is reported to its authors."""
    install("deck = deck:DeckTarget", deck=TARGET.replace("return Plan(", "return 1 / 0 or Plan("))
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 70
    assert (
        "a defect in the package `broken-target`, not a mistake of yours: ZeroDivisionError"
        in done.stderr
    )


@pytest.mark.slow
def test_the_doctor_goes_on(install: Callable[..., Path], run: Run) -> None:
    """An exception in a package's account is one line of the report; a missing extra is one of that package."""
    install("deck = deck:DeckTarget", deck=TARGET.replace("return Account()", "return 1 / 0"))
    report = run("doctor").stdout
    assert "ZeroDivisionError: division by zero" in report
    assert "not installed: `pip install 'broken-target[ferric]'`" in report


@pytest.mark.slow
def test_runs_of_an_uninstalled_package(install: Callable[..., Path], run: Run) -> None:
    """They are listed, counted and removed; what needs the target says that it is not installed."""
    info = install("deck = deck:DeckTarget", deck=TARGET)
    assert run("submit", "job.yaml", "--target", "deck").returncode == 0
    name = run("submit", "job.yaml", "--target", "deck", "--detach").stdout.strip()
    shutil.rmtree(info)
    assert run("ps", "--json").stdout.count('"state"') == 2
    assert name in run("ps").stdout
    assert run("cost").returncode == 0
    for command in ("status", "logs", "download"):
        done = run(command, name)
        assert done.returncode == 4
        assert "the target `deck` is not installed [CT946]" in done.stderr
        assert "hint: install the package that adds it" in done.stderr
    ended = name.removesuffix("-2") + "-1"
    assert run("rm", ended).stdout.split() == [ended]
    assert ended not in run("ps").stdout


@pytest.mark.slow
def test_a_target_without_secrets(install: Callable[..., Path], run: Run, packages: Path) -> None:
    """A job with a secret, or with a value that looks like one, is refused with a hint."""
    install(
        "deck = deck:DeckTarget",
        deck=TARGET.replace("facts = TargetFacts(", "facts = TargetFacts(secrets={}, "),
    )
    job = packages.parent / "job.yaml"
    job.write_text(JOB + 'environment: {secrets: {TOKEN: {local: "env:TOKEN"}}}\n')
    done = run("plan", "job.yaml", "--target", "deck")
    assert (
        done.returncode,
        "the secret `TOKEN` has no location that the deck can read [CT072]" in done.stderr,
    ) == (2, True)
    assert "remove it: jobs on the deck get no secrets from cloudtrain" in done.stderr
    job.write_text(JOB + f"environment: {{variables: {{HF_TOKEN: hf_{'aB3dE5gH7j' * 4}}}}}\n")
    done = run("plan", "job.yaml", "--target", "deck")
    assert done.returncode == 2
    assert "remove it, and let the script read it itself" in done.stdout
