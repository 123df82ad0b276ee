"""Planning: reads the job's files and the settings, then compiles the job to a plan and checks the
plan."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.code.files import below, content_hash, escape_path
from cloudtrain.code.ignore import INCLUDE_FILE
from cloudtrain.code.secret_names import secret_name
from cloudtrain.code.tree import Tree, scan
from cloudtrain.documents import JsonMapping
from cloudtrain.errors import JobError, Problem, ValuePath, join_names
from cloudtrain.job.data import is_local_path, is_run_input
from cloudtrain.job.file import SUFFIXES, anchored
from cloudtrain.job.training import BUNDLED, TrainingJob
from cloudtrain.machines.spending import FREE, Spending
from cloudtrain.plans.plan import (
    Bundle,
    CompileContext,
    Finding,
    Level,
    Numbers,
    Plan,
    Upload,
)
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.rules.engine import Reading, Subject, check_plan, rule_named
from cloudtrain.rules.facts import declared_places
from cloudtrain.rules.machines import spending_of
from cloudtrain.rules.values import named_secrets, values_to_hide
from cloudtrain.system.files import links_to
from cloudtrain.system.plugins import DEFAULT_TARGET, part, target_names
from cloudtrain.targets.common.compiling import run_name, submission_key, without_literals
from cloudtrain.targets.contract import Service, SettingsChooser, Target
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import Settings
from cloudtrain.targets.where import Where

if TYPE_CHECKING:
    from typing_extensions import Self

    from cloudtrain.job.processing import AnyJob
    from cloudtrain.lifecycle.preparing.environment import Installation, Unusable
    from cloudtrain.lifecycle.preparing.inputs import Awaited
    from cloudtrain.lifecycle.store.records import Label

NOTHING = "none"
"""The value of `environment.requirements` with which a job installs nothing, whatever is in its
folder."""

PlaceOf = Callable[[ValuePath], str | None]
"""Maps the path of a value in the job to its position in the job's file; None without one."""


def nowhere(_: ValuePath) -> None:
    """Return no position: the job is in no file."""


_PLACE = r"(?s)(?P<file>.*):(?P<line>\d+):(?P<column>\d+)"
"""The position of a value in its file, as `PlaceOf` returns it. An override has no line."""

NAMELESS = "job-00000000-0"
"""Stands for the run name while a job is compiled, because the name depends on the plan's hash. No
run has this name, because the numbers of runs begin with 1."""

NAMELESS_SWEEP = "sweep-00000000-0"
"""Stands for the run name while a sweep is compiled, and is no run's name either."""

_NAMED = 10
"""Maximum number of files from outside of the source folder that a plan names."""


def prepare(
    work: AnyJob,
    where: Where,
    *,
    ignore: Sequence[str] = (),
    place_of: PlaceOf = nowhere,
    tree: Tree | None = None,
) -> Ready:
    """Read the data that compile needs: the source folder, the data on this machine, and the
    outputs of earlier runs.

    `place_of` returns the position of a value in the job's file, for messages. If `tree` is given,
    its files are the code, and the source folder is not read.
    """
    here = where.here
    original = anchored(work, here.cwd)
    try:
        job, notes, awaited = _with_places(original, where)
        if not _sent_target(where).facts.keeps_literals:
            job = without_literals(job)
    except JobError as error:
        raise located(error.problems, place_of) from None

    after: tuple[str, ...] = ()
    if where.target.facts.waits_for_runs:  # then nobody has to ask about the runs
        after = tuple(dict.fromkeys(item.ref.name for item in awaited))
        awaited = ()

    is_new = tree is None
    if tree is None:
        job, tree, code_notes = _code_of(job, here)
        notes = (*code_notes, *notes)
    installation: Installation | Unusable | None = None
    refusal = None
    try:
        job, tree, installation = _with_requirements(job, tree, where, is_new=is_new)
    except JobError as error:
        refusal = error  # reported with what the rules find

    choose_settings = part(where.target, SettingsChooser)
    if choose_settings is not None:
        settings = choose_settings(job, tree, where.settings)
        if settings is not where.settings:
            where = replace(where, settings=settings)
    job, uploads, data_notes = _place_data(job, where, place_of)

    digest = None if installation is None else installation.digest
    is_package = any(entry.path == "setup.py" for entry in tree.entries)
    context = CompileContext(
        NAMELESS,
        tree.identity,
        where.account,
        build=_build_hash(job, tree),
        requirements=digest or _requirements_hash(job, tree),
        package=is_package,
        after=after,
    )
    ready = Ready(
        job,
        original,
        where,
        context,
        tree,
        ignore=tuple(ignore),
        place_of=place_of,
        notes=(*notes, *data_notes),
        awaited=awaited,
        uploads=uploads,
        installation=installation,
    )
    try:
        if refusal is not None:
            raise refusal
        conda = _conda_text(job, tree)
    except JobError as error:
        raise ready.with_findings(error) from None
    return replace(ready, context=context._replace(conda=conda))


def _with_places(job: AnyJob, where: Where) -> tuple[AnyJob, tuple[str, ...], tuple[Awaited, ...]]:
    """Return the job with the locations of earlier runs' outputs and of secrets, notes for the
    plan, and the inputs from runs that have not ended."""
    name = where.target.name
    reads_runs = any(map(is_run_input, _input_places(job, name)))
    if not reads_runs and not job.environment.secrets:
        return job, (), ()
    from cloudtrain.lifecycle.preparing.inputs import resolve_run_inputs, with_secret_places

    notes: tuple[str, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    if reads_runs:
        job, notes, awaited = resolve_run_inputs(job, name, where.here)
    if job.environment.secrets:
        emulated = where.settings.emulated_target
        job, missing = with_secret_places(job, where.target, emulated, where.here.environ)
        notes = (*notes, *missing)
    return job, notes, awaited


def _with_requirements(
    job: AnyJob, tree: Tree, where: Where, *, is_new: bool
) -> tuple[AnyJob, Tree, Installation | Unusable | None]:
    """Add the list of packages to a job and its bundle: of the file that the job names, or of one
    beside it. Raises JobError if the file that it names cannot be used."""
    named = job.environment.requirements
    file = _requirements_beside(job, tree, where) if named is None else named
    if file is None:
        return job, tree, None
    if named == NOTHING:
        environment = job.environment.model_copy(update={"requirements": None})
        return job.model_copy(update={"environment": environment}), tree, None
    from cloudtrain.lifecycle.preparing.environment import Unusable, requiring, with_requirements

    is_named = named is not None
    try:
        return with_requirements(
            requiring(job, file), tree, where, is_named=is_named, is_new=is_new
        )
    except JobError as error:
        if is_named:
            raise
        return job, tree, Unusable(file, error.problems[0])


def _requirements_beside(job: AnyJob, tree: Tree, where: Where) -> str | None:
    """Return the file of the code that says what a job installs which names none: the script
    itself, if it has a block of dependencies (PEP 723), or else `uv.lock` with its project, or else
    `requirements.txt`, in the top folder or else beside the script. A job with an environment of
    its own has its packages there."""
    own = job.environment
    has_packages = own.image or own.conda_file or own.build or own.of(_sent_target(where).name)
    if has_packages or job.entry_point is None:
        return None

    script = os.path.normpath(job.entry_point)
    if re.search(r"(?m)^# /// script", tree.read_text(script) or ""):
        return script

    names = {entry.path for entry in tree.entries}
    for folder in ("", script[: script.rfind("/") + 1]):
        lock = f"{folder}uv.lock"
        if lock in names and f"{folder}pyproject.toml" in names:
            return lock
        plain_list = f"{folder}requirements.txt"
        if plain_list in names and re.fullmatch(r"[\w./+-]*", folder):  # as a list names it
            return plain_list
    return None


def _sent_target(where: Where) -> Target:
    """Return the target whose request the job becomes. For a local run that emulates a target, this
    is that target."""
    emulated = where.settings.emulated_target
    return where.target if emulated is None else target_of(emulated)


def _place_data(
    job: AnyJob, where: Where, place_of: PlaceOf
) -> tuple[AnyJob, tuple[Upload, ...], tuple[str, ...]]:
    """Return the job with data on this machine replaced by locations, the uploads, and notes for
    the plan."""
    target = _sent_target(where)
    if not any(map(is_local_path, _input_places(job, target.name))):
        return job, (), ()
    from cloudtrain.lifecycle.preparing.inputs import emulated_here, place_data

    if target is not where.target:
        return emulated_here(job, target), (), ()

    try:
        return place_data(job, where)
    except JobError as error:
        raise located(error.problems, place_of) from None


def _input_places(job: AnyJob, target: str) -> list[str | None]:
    return [item.of(target) for item in job.inputs.values()]


def _code_of(job: AnyJob, here: Settings) -> tuple[AnyJob, Tree, tuple[str, ...]]:
    """Return three things: the job, with file names changed to those in the bundle; the tree of
    code files on disk; and notes for the plan."""
    folder, file = _source_of(job, here)
    job, beside, notes = _environment_beside(job, folder, is_alone=file is not None)
    if file:
        beside = {file: str(folder / file), **beside}

    declared = {}
    if file is None:
        declared = _declared_below(folder, job, here.state_dir)
    tree = scan(folder, declared=declared, beside=beside, alone=file is not None)
    return job, tree, (*_code_notes(tree, beside), *notes)


def _conda_text(job: AnyJob, tree: Tree) -> str | None:
    """Return the text of the conda file; None if the job names none, or if the bundle does not
    contain the file, which compile reports. Raises JobError if the file is unreadable."""
    name = job.environment.conda_file
    if name is None or not any(entry.path == name for entry in tree.entries):
        return None
    from cloudtrain.lifecycle.preparing.environment import read_conda

    return read_conda(tree, name)


def _build_hash(job: AnyJob, tree: Tree) -> str | None:
    """Return the hash of the content of the build folder, inside or outside of the source folder;
    None if the job names none, or if the folder contains no Dockerfile."""
    if job.environment.build is None:
        return None
    files = below(tree.entries, job.environment.build)
    name = os.path.normpath(job.environment.dockerfile or "Dockerfile")
    has_dockerfile = any(entry.path == name for entry in files)
    return content_hash(files) if has_dockerfile else None


def _requirements_hash(job: AnyJob, tree: Tree) -> str | None:
    """Return the hash of the job's requirements file and the files that it includes; None if the
    job names no requirements file, or if the bundle has no such file that can be read. Requirements
    with equal hashes install the same packages, so if they install files of the bundle, the hash
    also depends on the whole bundle."""
    if job.environment.requirements is None:
        return None
    file = os.path.normpath(job.environment.requirements)
    if tree.read_text(file) is None:
        return None
    from cloudtrain.job.pip_file import PipFile

    found = PipFile(file, tree.read_text)
    parts = [f"{name}\0{text}" for name, text in sorted(found.texts.items())]
    if found.folders or any(line.path[:1] not in ("", "/") for line in found.lines):
        parts.append(tree.identity.sha256)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Ready:
    """A job with all that its plan depends on. It is compiled once, under a placeholder instead of
    its run's name.

    Attributes:
        work: the job, with absolute paths, and with locations instead of `run:...` inputs and of
            data on this machine.
        original: the job as the user wrote it, with absolute paths.
        context: what compile gets besides the job and the settings, for the run `NAMELESS`.
        notes: notes from the preparation for the reader of the plan.
        awaited: earlier runs that the job reads from and that had not ended when they were last
            seen.
        uploads: data on this machine that the job reads.
        installation: the packages that the job installs, or why it does not install those of a file
            beside it.
        times: how often the job is started: as the first trial of a sweep, for all trials.
    """

    work: AnyJob
    original: AnyJob
    where: Where
    context: CompileContext
    tree: Tree
    ignore: Sequence[str] = ()
    place_of: PlaceOf = nowhere
    notes: tuple[str, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    uploads: tuple[Upload, ...] = ()
    installation: Installation | Unusable | None = None
    times: int = 1

    def to_json(self) -> dict[str, object]:
        """Return what the plans of this and of similar jobs depend on besides the job, as JSON
        data."""
        context = self.context
        return {
            **self.where.to_json(),
            "bundle": context.bundle._asdict(),
            "conda": context.conda,
            "build": context.build,
            "package": context.package,
        }

    @property
    def beside(self) -> dict[str, str | None]:
        """The rest of this data, on which no name of a run depends: the hash of the requirements
        follows from the bundle, and the working directory, in which the account's files are found,
        is this machine's."""
        return {"requirements": self.context.requirements, "cwd": str(self.where.here.cwd)}

    @classmethod
    def from_json(cls, work: AnyJob, data: JsonMapping, here: Settings) -> Ready:
        """Return the job `work` with the data that `to_json` and `beside` have returned, perhaps of
        an earlier version. The code is known by its hash alone, so nothing about the job's files
        can be asked."""
        if "cwd" in data:
            here = here._replace(cwd=Path(data["cwd"]))
        where = Where.from_json(data, here)
        bundle = Bundle(**data["bundle"])
        context = CompileContext(
            NAMELESS,
            bundle,
            where.account,
            conda=data["conda"],
            build=data["build"],
            requirements=data.get("requirements"),
            package=data["package"],
        )
        return cls(work, work, where, context, Tree(Path(), (), (), bundle))

    @property
    def first(self) -> Self:
        """The job itself. For a sweep, this is the job of its first trial."""
        return self

    @property
    def service(self) -> Service:
        return self.where.service

    @cached_property
    def draft(self) -> Plan:
        """The plan without its run name. It does not say for which runs it waits."""
        return self._compile(())

    @cached_property
    def key(self) -> str:
        """Hash of the job's name and of the plan without its run name. Submissions with equal keys
        are for the same job. The key stays the same when a run that the job waits for has ended."""
        return submission_key(self.draft)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The tags and hyperparameters, without secrets, by which the store finds runs of the
        job."""
        from cloudtrain.lifecycle.preparing.hidden import Secrets, signatures_in
        from cloudtrain.lifecycle.store.records import labels_of

        labels = labels_of(self.work)
        values = (*values_to_hide(self.work.view), *signatures_in(labels))
        secrets = Secrets(values, tuple(named_secrets(self.work.view)))
        shown = []
        for label in labels:
            key = secrets.hidden(label.key)
            shown.append(label._replace(key=key, value=secrets.hidden(label.value)))
        return tuple(shown)

    def plan(self, counter: int, salt: str, *, is_asked: bool = False) -> Plan:
        """Return the plan of run number `counter`, with the findings of the checks on this machine.
        The run's name depends on `counter` and on `salt`, the store's salt. With `is_asked`,
        `check_online` will ask the target, and the checks leave its answers to it."""
        name = run_name(self.work.name, self.key, self.where.here.submitter, salt, counter)
        return self.named(name, is_asked=is_asked)

    def named(self, name: str, *, is_asked: bool = False) -> Plan:
        """Return the plan of the run `name`, as `plan` does."""
        draft = self._compile(self.context.after) if self.context.after else self.draft
        plan = draft.renamed(name)
        subject = replace(self._subject(plan), is_asked=is_asked)
        placed = tuple(map(self._place, check_plan(subject, ignore=self.ignore)))
        reading = subject.reading
        numbers = Numbers(0.0, 0.0, reading.longest_run)
        if self.where.target.facts.is_paid:
            most = spending_of(reading, self.times).most
            numbers = Numbers(most, reading.machines.hourly, reading.longest_run)
        return replace(
            plan,
            findings=placed,
            numbers=numbers,
            hidden=values_to_hide(self.work.view),
        )

    def spending(self, plan: Plan) -> Spending:
        """Return the most that `times` requests like that of `plan` can spend."""
        if not self.where.target.facts.is_paid:
            return FREE
        return spending_of(self.reading(plan), self.times)

    def rate_and_limit(self, plan: Plan) -> tuple[float | None, int | None]:
        """Return the price in US dollars per hour for all instances, and the maximum run time in
        seconds. Unknown values are None; both are None if the target is free."""
        if not self.where.target.facts.is_paid:
            return None, None
        reading = self.reading(plan)
        return reading.machines.hourly, reading.longest_run

    def reading(self, plan: Plan) -> Reading:
        """Return what the finished request of `plan` says."""
        return self._subject(plan).reading

    def check_online(self, plan: Plan, *, ask: bool = True, may_wait: bool = False) -> Plan:
        """Return the plan with findings of the target about the plan and about the runs that the
        job reads from. With `ask=False`, only the runs are checked. With `may_wait`, unfinished
        runs and their missing output are not reported. A plan with errors is returned unchanged."""
        if plan.errors:
            return plan
        ignored = {rule_named(code).code for code in self.ignore}
        waits = self.waits_for if may_wait else ()
        unwritten = {item.path for item in self.awaited if item.ref in waits}

        findings = []
        if ask:
            answers = self.service.check(self.work.view, self.where.settings, plan)
            findings += [finding for finding in answers if finding.path not in unwritten]
        for path, ref in self.awaited:
            state = self._states[ref]
            if state is not RunState.SUCCEEDED and path not in unwritten:
                from cloudtrain.rules.job import not_succeeded

                findings.append(not_succeeded(path, ref.name, state and state.value))
        shown = [self._place(finding) for finding in findings if finding.code not in ignored]
        return plan.with_findings((*plan.findings, *shown))

    @property
    def waits_for(self) -> tuple[RunRef, ...]:
        """The earlier runs that the job reads from and that have not ended, according to the
        target."""
        unfinished = []
        for ref, state in self._states.items():
            if state is not None and not state.is_final:
                unfinished.append(ref)
        return tuple(unfinished)

    @cached_property
    def _states(self) -> Mapping[RunRef, RunState | None]:
        """The current state of each awaited run; None for a run that no longer exists."""
        if not self.awaited:
            return {}
        from cloudtrain.lifecycle.preparing.inputs import states_of

        return states_of(self.awaited, self.where.here)

    def _compile(self, after: tuple[str, ...]) -> Plan:
        """Return the plan without its run name, which waits for the runs `after`."""
        context = self.context._replace(after=after)
        try:
            plan = self.where.target.compile(self.work, self.where.settings, context)
        except JobError as error:
            raise self.with_findings(error) from None
        account = self.where.account
        files = [*self.where.settings.settings_files, *getattr(account, "files", ())]
        for correction in getattr(account, "overlay", None) or ():
            if correction.target == plan.target:  # an instance type of the user's
                files.append(correction.file)
        notes = (*plan.notes, *self.notes)
        uploads = (*plan.uploads, *self.uploads)
        settings = tuple(dict.fromkeys(files))
        plan = replace(plan, notes=notes, settings=settings, uploads=uploads)
        return plan if self.installation is None else self.installation.add_to(plan)

    def with_findings(self, error: JobError) -> JobError:
        """Return the error with the problems in `error`, which compile raised, and the errors that
        the rules find, each with its position in the job file."""
        plan = getattr(error, "plan", None)
        empty = Plan(self.where.settings.type, NAMELESS, self.work.name, {})
        findings = check_plan(
            self._subject(plan or empty), ignore=self.ignore, portable=plan is None
        )

        refused = {problem.path for problem in error.problems}
        # many settings of a target have no position, and each is a separate mistake
        refused.discard(())
        problems = list(error.problems)
        for item in findings:
            if item.level is Level.ERROR and item.path not in refused:
                problems.append(Problem(item.path, item.message, item.hint, code=item.code))
        return located(problems, self.place_of)

    def _subject(self, plan: Plan) -> Subject:
        """Return what the rules check."""
        where = self.where
        work = self.work
        processing = None if isinstance(work, TrainingJob) else work
        reading = where.target.read(work.view, where.settings, where.account, plan, processing)
        estimates = where.here.state_dir / "estimates"
        return Subject(
            reading,
            where.target,
            where.settings,
            self.tree,
            self.times,
            estimates=estimates if estimates.is_dir() else None,
        )

    def _place(self, finding: Finding) -> Finding:
        """Return the finding with its position in the job's file, and a hint in its syntax."""
        place = self.place_of(finding.path) if finding.path else None
        return finding._replace(place=place, hint=_in_form(finding.hint, self.place_of))


def located(problems: Sequence[Problem], place_of: PlaceOf) -> JobError:
    """Return the error with these problems, each with its position in the job's file, and a hint in
    the syntax of that file."""
    return JobError([_placed(problem, place_of) for problem in problems])


def _placed(problem: Problem, place_of: PlaceOf) -> Problem:
    problem = replace(problem, hint=_in_form(problem.hint, place_of))
    place = place_of(problem.path) if problem.path and not problem.file else None
    match = re.fullmatch(_PLACE, place or "")
    if match is None:
        return replace(problem, file=place or problem.file)
    line = int(match["line"])
    return replace(problem, file=match["file"], line=line, column=int(match["column"]))


def _in_form(hint: str | None, place_of: PlaceOf) -> str | None:
    """Return the hint in the syntax of the job's file, which may be TOML or JSON."""
    match = re.fullmatch(_PLACE, place_of(()) or "")
    form = SUFFIXES.get(Path(match["file"]).suffix.lower(), "yaml") if match else "yaml"
    if form == "yaml":
        return hint
    from cloudtrain.job.explain import in_form

    return in_form(hint, form)


def _code_notes(tree: Tree, beside: Mapping[str, str]) -> Iterable[str]:
    """Yield notes for the plan about code from outside of the source folder, and about files inside
    that hold credentials. The job's conda file and build folder, which are the keys of `beside`,
    are left out."""
    by_default = [item.path for item in tree.ignored if item.rule.startswith("default ")]
    secret = [escape_path(path) for path in by_default if secret_name(path)]
    if secret:
        names = join_names(secret, _NAMED)
        yield f"files that may hold credentials are not in the bundle: {names}"

    elsewhere = [path for path in tree.included if path.split("/", 1)[0] not in beside]
    if elsewhere:
        included = [escape_path(path) for path in elsewhere]
        verb = "comes" if len(included) == 1 else "come"
        yield f"{join_names(included, _NAMED)} {verb} from elsewhere, as `{INCLUDE_FILE}` says"


def _declared_below(source: Path, job: AnyJob, state_dir: Path) -> dict[str, str]:
    """Find the paths inside the source folder that are not code: inputs, outputs and checkpoints of
    the job on this machine, links that lead to them, and the state folder. Map each path to a
    description for messages.

    A path is left out if it contains code that the job names, such as its entry point.
    """
    environment = job.environment
    files = (job.entry_point, environment.requirements, environment.conda_file, environment.build)
    words = (job.command or "").split()
    code = [os.path.normpath(name) for name in (*files, *words) if name]
    root = os.path.realpath(source)

    descriptions = {}
    for what, address in _declared(job, state_dir):
        for way in _ways_to(address, root):
            path = os.path.relpath(way, root)
            is_code = any(f"{name}/".startswith(f"{path}/") for name in code)
            if path != "." and not path.startswith("..") and not is_code:
                descriptions[path] = what
    return descriptions


def _declared(job: AnyJob, state_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield a description and the address of each place that is not code."""
    for place in declared_places(job.view, DEFAULT_TARGET):
        yield f"{place.name} of the job", place.address
    for name, item in job.inputs.items():
        for path in {item.of(target) for target in target_names()}:
            if is_local_path(path):
                yield f"input `{name}` of the job", str(path)
    yield "cloudtrain's own state", str(state_dir)


def _ways_to(address: str, root: str) -> Iterator[str]:
    """Yield the real path of an address, and the links that lead to it. A link into the code, on
    the way to the data, is code, and left out."""
    place = os.path.realpath(address)
    yield place
    for link in links_to(address):
        end = f"{os.path.realpath(link)}/"
        if end.startswith(f"{place}/") or not end.startswith(f"{root}/"):
            yield link


def _source_of(job: AnyJob, settings: Settings) -> tuple[Path, str | None]:
    """Return the folder of a job's code, and the only file in it that is code: None if all are,
    empty if the job has no code."""
    if job.source_dir is None:
        return job.folder or settings.cwd, ""
    if job.source_dir.startswith(BUNDLED):
        from cloudtrain.code.bundled import script_path

        return script_path(job.source_dir.removeprefix(BUNDLED)), None
    place = Path(job.source_dir)
    if os.path.isfile(place):  # a method of Path raises if the name is too long
        return place.parent, place.name
    return place, None


def _environment_beside(
    job: AnyJob, folder: Path, *, is_alone: bool
) -> tuple[AnyJob, dict[str, str], list[str]]:
    """Find the conda file and the build folder of a job if they are outside of the code. Return the
    job with their names in the bundle, a mapping from these names to their locations, and notes for
    the plan."""
    changes = {}
    beside = {}
    notes = []
    for field, exists in (("conda_file", os.path.isfile), ("build", os.path.isdir)):
        path = getattr(job.environment, field)
        if path is None:
            continue

        name = os.path.normpath(path)
        is_outside = name.startswith("..") or os.path.isabs(name)
        place = os.path.realpath(os.path.join(folder, name))
        # compile reports a missing one with all other mistakes
        if not (is_outside or is_alone) or not exists(place):
            continue

        name = os.path.basename(place)
        changes[field] = name
        beside[name] = place
        notes.append(f"`{path}` is outside of the code; its name in the bundle is `{name}`")
    environment = job.environment.model_copy(update=changes)
    return job.model_copy(update={"environment": environment}), beside, notes
