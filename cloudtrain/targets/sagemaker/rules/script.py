"""Rules about the script, and about how the training toolkit starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.compile.modes import REQUIREMENTS
from cloudtrain.targets.sagemaker.launch.program import is_plain_name
from cloudtrain.targets.sagemaker.rules.view import add_entrypoint_hint, launcher, mode


@rule("SM520", Level.ERROR)
def secrets_out_of_reach(subject: Subject) -> Iterator[Fault]:
    """The container cannot look up the job's secrets.

    The runtime in the bundle looks up `environment.secrets` over the network. But an image that runs its own entry
    point has no bundle, and network isolation blocks the network.
    """
    if not subject.job.environment.secrets:
        return
    if subject.target.network_isolation:
        message, hint = "with network isolation the job cannot reach its secrets", "remove `network_isolation`"
    elif mode(subject) == "image":
        message, hint = (
            "the image's own entry point does not look up secrets",
            "name what runs: `entry_point: train.py`",
        )
    else:
        return
    yield Fault(message, hint, ("environment", "secrets"))


@rule("SM521", Level.WARNING)
def secrets_left_to_the_script(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit starts the script, but does not look up the job's secrets.

    cloudtrain's own launcher looks up secrets, and starts a job with secrets wherever it can. If only the toolkit can
    start the job (`smddp`, `smp`, MPI between instances), the script must call `runtime.load_secrets()` itself.
    """
    if subject.job.environment.secrets and mode(subject) == "toolkit":
        message = "the image's toolkit starts this job, and does not look up its secrets"
        hint = "begin the script with `from cloudtrain import runtime; runtime.load_secrets()`"
        yield Fault(message, hint, ("environment", "secrets"))


@rule("SM341", Level.ERROR)
def shell_script_under_torchrun(subject: Subject) -> Iterator[Fault]:
    """The toolkit's torchrun would start a shell script.

    The toolkit passes only Python scripts to torchrun ("Please use a python script"); cloudtrain's own launcher starts
    other scripts with `--no_python`.
    """
    script = subject.job.entry_point or ""
    if mode(subject) == "toolkit" and launcher(subject) == "torchrun" and not script.endswith(".py"):
        yield Fault(
            f"the toolkit's torchrun cannot start `{script}`",
            add_entrypoint_hint(subject, "name a Python script"),
            ("entry_point",),
        )


@rule("SM342", Level.ERROR)
def package_under_torchrun(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `setup.py`, and the toolkit does not start packages with torchrun.

    If the code has a `setup.py`, the toolkit installs the package and runs the entry point as a module (`python -m`),
    which it does not support with torchrun. cloudtrain's own launcher starts such a job, except if the target sets
    `launch = "toolkit"` or the job needs the toolkit.
    """
    if mode(subject) == "toolkit" and launcher(subject) == "torchrun" and "setup.py" in _files(subject):
        yield Fault(
            "the toolkit treats code with a `setup.py` as a package, which it cannot start with torchrun",
            add_entrypoint_hint(subject, "add `/setup.py` to `.cloudtrainignore`"),
            ("source_dir",),
        )


@rule("SM343", Level.ERROR)
def entry_point_refused(subject: Subject) -> Iterator[Fault]:
    """The toolkit refuses the name of the entry point.

    Newer toolkits accept only letters, digits and `. _ + -` (sagemaker-training 5.1.4). Older toolkits pass the name to
    a shell, which splits it at blanks and runs the text after a `;`.
    """
    script = subject.job.entry_point or ""
    name = normpath(script)
    if mode(subject) == "toolkit" and name in _files(subject) and not is_plain_name(name):
        better = re.sub(r"[^A-Za-z0-9._/+-]+", "_", name).lstrip("+-")
        yield Fault(
            f"the toolkit refuses the name `{script}`", f"rename it, to `{better}` for example", ("entry_point",)
        )


@rule("SM344", Level.WARNING)
def requirements_not_installed(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `requirements.txt` that is not installed.

    The toolkit installs a `requirements.txt` even if the job does not name it. cloudtrain's own launcher installs only
    the file that `environment.requirements` names, as on every target.
    """
    if (
        mode(subject) == "entrypoint"
        and subject.job.environment.requirements is None
        and REQUIREMENTS in _files(subject)
    ):
        yield Fault(
            f"`{REQUIREMENTS}` is in the bundle, and the job does not name it",
            f"write `requirements: {REQUIREMENTS}` under `environment`",
            ("environment",),
        )


@rule("SM345", Level.NOTICE)
def requirements_installed_anyway(subject: Subject) -> Iterator[Fault]:
    """The toolkit installs the bundle's `requirements.txt`, although the job does not name it.

    The other targets and cloudtrain's own launcher install only the file that `environment.requirements` names, so the
    same job would run with other packages on another target.
    """
    if mode(subject) == "toolkit" and _has_unnamed_requirements(subject):
        yield Fault(
            f"the toolkit installs `{REQUIREMENTS}`, which the job does not name",
            f"write `requirements: {REQUIREMENTS}` under `environment`, so that all targets do",
            ("environment",),
        )


@rule("SM346", Level.NOTICE)
def package_not_installed(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `setup.py`, but its package is not installed.

    cloudtrain's own launcher starts this job, and does not install packages. It runs the script in the script's folder,
    so the script can import the package from there. The toolkit would install the package and its dependencies, but it
    cannot start packages with torchrun.
    """
    names = _files(subject)
    if mode(subject) == "entrypoint" and "setup.py" in names and subject.job.environment.requirements is None:
        yield Fault(
            "cloudtrain's own launcher does not install the package of `setup.py`",
            "list what it needs in a file, and write `requirements: requirements.txt` under `environment`",
            ("environment", "requirements"),
        )


def _has_unnamed_requirements(subject: Subject) -> bool:
    return subject.job.environment.requirements is None and REQUIREMENTS in _files(subject)


def _files(subject: Subject) -> set[str]:
    return {entry.path for entry in subject.tree.entries}
