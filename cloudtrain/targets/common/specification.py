"""The launch specification: the processes that a run's supervisor starts on this machine, and
everything they need.

Plans and `launch.json` contain the specification as JSON data; all other code uses a
`LaunchSpecification`. `from_json` reads the output of `to_json` from this or an earlier version.
The supervisor uses this module too, so the module imports only the standard library. It does not
import `annotations` from `__future__`, because the JSON reader needs the types of the fields.
"""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import GenericAlias, UnionType

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from cloudtrain.plans.processes import Process

_OUTPUT = "CLOUDTRAIN_OUTPUT_"


@dataclass(frozen=True)
class CodePlace:
    """The bundle, the hash of its content, and the folder to unpack it into: None if the launchers
    of emulated hosts unpack it, each into its folder in `unpacked`. `copies` are further folders to
    unpack it into, for emulations."""

    archive: str
    sha256: str
    directory: str | None
    copies: tuple[str, ...] | None = None
    unpacked: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BuiltEnvironment:
    """The environment with the job's requirements: its folder, its interpreter, and the path of the
    requirements file in the bundle."""

    folder: str
    python: str
    requirements: str


@dataclass(frozen=True)
class Link:
    """A link at `path` to `target`. If `shard` is the pair (index, count), `path` becomes a folder
    of links to one of `count` shares of the files in `target`: every count-th file, the first of
    them at `index`, counted from 0."""

    path: str
    target: str
    shard: tuple[int, int] | None


@dataclass(frozen=True)
class StartedProcess:
    """One process that the supervisor starts. `rank` is None for a launcher. `signal` selects the
    processes that get SIGTERM first: `leader` (the started process, which passes SIGTERM on),
    `group` (its whole process group) or `ranks` (the ranks that it has started). `directory` is the
    working directory; None for the folder of the code."""

    instance: int
    role: str
    rank: int | None
    argv: tuple[str, ...]
    env: dict[str, str]
    signal: str
    directory: str | None = None

    @classmethod
    def of(cls, process: "Process", signal: str, directory: str | None = None) -> "StartedProcess":
        return cls(
            process.instance,
            process.role,
            process.rank,
            process.argv,
            process.env,
            signal,
            directory,
        )


@dataclass(frozen=True)
class QueueNeed:
    """A run waits for `count` of the GPUs in `gpus`, or of the machine's CPU `slots` if `gpus` is
    empty. Runs with a higher `priority` start before others."""

    count: int
    gpus: tuple[str, ...] = ()
    slots: int = 0
    priority: int = 0

    def __str__(self) -> str:
        there = ", ".join(self.gpus) or str(self.slots)
        kind = "CPU slot"
        if self.gpus:
            kind = "GPU"
        plural = "" if self.count == 1 else "s"
        return f"{self.count} {kind}{plural} of {there}"


@dataclass(frozen=True, kw_only=True)
class LaunchSpecification:
    """The launch specification of one run. Most runs do not need the fields with default values.

    Attributes:
        name: the run's name.
        run_dir: the run's folder, an absolute path.
        emulates: the name of the emulated service, if any.
        code: the user's code.
        directories: the folders to create before the start.
        files: the text files to write before the start: maps paths to texts.
        programs: the paths in `files` to make executable.
        links: the links to create before the start.
        failure_files: the files in which emulated hosts write the reason for a failure.
        places: the folders to download: maps a name to folders whose contents are combined. If
            None, the folders are those in the environment variables of the processes.
        launcher: torchrun | fork | mpirun | processes
        instances: number of simulated instances.
        world_size: total number of ranks.
        ports: names of loopback ports. In argv and environment, `${{ports.NAME}}` becomes a free
            port at start, `${{env.NAME}}` becomes the value of the submitter's variable (empty if
            not set), and `${{gpus.N}}` becomes the N-th instance's share of the run's GPUs.
        processes: the processes that the supervisor starts.
        finishes: the roles whose success ends the run, for runs with servers that never exit. Empty
            if all processes must exit.
        patience: seconds that a launcher has to detect and report the death of a rank.
        grace_period: seconds from SIGTERM to SIGKILL.
        max_runtime: the maximum run time in seconds, or None.
        stop_when_idle: seconds for which all GPUs may be idle before the run is stopped, or None.
        metrics: maps a metric's name to a regular expression with one group, which is applied to
            the output of the ranks.
        queue: the slots that the run waits for; None if it starts immediately.
        environment: the environment to build before the start, if it is missing.
        after: other runs on this machine that must succeed before the start.
    """

    name: str
    run_dir: str
    emulates: str | None = None
    code: CodePlace
    directories: tuple[str, ...]
    files: dict[str, str] | None = None
    programs: tuple[str, ...] = ()
    links: tuple[Link, ...] | None = None
    failure_files: tuple[str, ...] = ()
    places: dict[str, tuple[str, ...]] | None = None
    launcher: str
    instances: int
    world_size: int
    ports: tuple[str, ...]
    processes: tuple[StartedProcess, ...]
    finishes: tuple[str, ...]
    patience: float = 1.0
    grace_period: int
    max_runtime: int | None
    stop_when_idle: int | None = None
    metrics: dict[str, str] | None = None
    queue: QueueNeed | None = None
    environment: BuiltEnvironment | None = None
    after: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: object) -> "LaunchSpecification":
        """Raises `ValueError` if the data is damaged; the message names the position."""
        read: LaunchSpecification = _read(cls, data, "")
        return read

    def to_json(self) -> "dict[str, Any]":
        content: dict[str, Any] = {"version": 1, **_json_of(self)}
        if self.emulates:
            return content
        # the order matters only to who reads a printed plan: the hash is that of sorted keys
        last = ("links", "places")
        return dict(sorted(content.items(), key=lambda item: item[0] in last))

    def downloads(self) -> "dict[str, tuple[Path, ...]]":
        """Map what can be downloaded, such as `model` and `outputs/scores`, to its folders. The
        contents of several folders are combined, because an emulated job writes its model on every
        host."""
        from pathlib import Path

        places = self.places
        if places is None:
            env = self.processes[0].env
            places = {
                "model": (env["CLOUDTRAIN_MODEL_DIR"],),
                "checkpoint": (env["CLOUDTRAIN_CHECKPOINT_DIR"],),
            }
            for variable, path in env.items():
                if not variable.startswith(_OUTPUT) or variable == f"{_OUTPUT}MODEL":
                    continue
                # the variable has the name in capitals; a default folder has it as in the job
                capitals = variable.removeprefix(_OUTPUT)
                folder = Path(path).name
                name = folder if folder.upper() == capitals else capitals.lower()
                places[f"outputs/{name}"] = (path,)
        places = places | {"logs": (f"{self.run_dir}/logs",)}
        return {name: tuple(map(Path, folders)) for name, folders in places.items()}


def _json_of(value: "Any") -> "Any":
    """Return a value as JSON data. Fields with their default values are left out."""
    if isinstance(value, tuple):
        return [_json_of(item) for item in value]
    if isinstance(value, dict):
        return {name: _json_of(item) for name, item in value.items()}
    if not is_dataclass(value):
        return value
    content: dict[str, object] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if item != field.default:
            content[field.name] = _json_of(item)
    return content


def _read(kind: "Any", data: "Any", where: str) -> "Any":
    """Convert JSON data to the type `kind`, a field's annotation. Unknown keys are ignored. Raises
    `ValueError` with the position `where`, which begins with a dot."""
    if isinstance(kind, UnionType):  # always `TYPE | None`
        if data is None:
            return None
        return _read(kind.__args__[0], data, where)
    if isinstance(kind, GenericAlias):
        if kind.__origin__ is tuple and isinstance(data, list):
            item_kind = kind.__args__[0]
            items = enumerate(data)
            return tuple(_read(item_kind, item, f"{where}[{number}]") for number, item in items)
        if kind.__origin__ is dict and isinstance(data, dict):
            item_kind = kind.__args__[1]
            return {name: _read(item_kind, item, f"{where}.{name}") for name, item in data.items()}
    elif kind in (str, int, float):
        if isinstance(data, kind):
            return data
    elif isinstance(data, dict):
        values: dict[str, object] = {}
        for field in fields(kind):
            name = field.name
            if name in data or field.default is MISSING:
                item = data.get(name)
                values[name] = _read(field.type, item, f"{where}.{name}")
        return kind(**values)
    raise ValueError(f"`{where[1:]}` is missing or wrong" if where else "it is not a JSON object")
