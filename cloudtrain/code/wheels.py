"""Makes wheels of the user's own packages that a lock names, where that is plain: one pure package
in `src/NAME` or `NAME`, with a version that is text.

No build backend runs, so a plan needs no network, and equal files give equal bytes. Every other
project is refused with the command that builds its wheel.
"""

from __future__ import annotations

import base64
import hashlib
import io
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.version import Version

from cloudtrain.code.files import below, escape_path
from cloudtrain.code.tree import Tree
from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import load_toml
from cloudtrain.job.pep508 import normal
from cloudtrain.job.requirements import Package, Requirements, unfit

_SETUPTOOLS = "setuptools.build_meta"
_BACKENDS = {
    "uv_build": "uv-build",
    "hatchling.build": "hatchling",
    "flit_core.buildapi": "flit-core",
    "poetry.core.masonry.api": "poetry-core",
    _SETUPTOOLS: "setuptools",
}
"""The build backends that find such a package themselves, with the only package that they need."""

_OF_INSTALLERS = frozenset(
    (
        "dependencies",
        "optional-dependencies",
        "requires-python",
        "scripts",
        "gui-scripts",
        "entry-points",
    )
)
"""Fields of `[project]` that an installer reads. If one is dynamic, only the backend knows it."""

_BUILD_SETTINGS = (
    "uv.build-backend.",
    "hatch.build.",
    "hatch.metadata.hooks",
    "hatch.version.",
    "flit.",
    "poetry.",
    "setuptools.",
)
"""How the keys below `[tool]` begin that may change what is in a wheel."""

_HARMLESS_SETTINGS = (
    "uv.build-backend.source-include",
    "hatch.build.targets.sdist.",
    "hatch.version.path",
    "flit.sdist.",
    "poetry.dependencies.",
    "poetry.group.",
    "poetry.source",
    "setuptools.include-package-data",
    "setuptools.license-files",
    "setuptools.package-data.",
    "setuptools.zip-safe",
)
"""Those of them that do not: the wheel has all files of the package, and `hatch.version.path` is
followed."""

_COMPILED = (".pyd", ".pyx", ".so")


def with_wheels(tree: Tree, wanted: Requirements) -> Requirements:
    """Return a list with wheels of its folders. Raises JobError if one cannot be made."""
    packages = [*wanted.packages]
    wheels: dict[str, bytes] = {}
    for name, folder in sorted(wanted.folders.items()):
        if folder:  # empty for a project that is not a package
            package, content = _package_of(tree, name, wanted)
            packages.append(package)
            wheels[package.url.removeprefix("./")] = content
    return wanted._replace(packages=tuple(packages), wheels=wheels)


def _package_of(tree: Tree, name: str, wanted: Requirements) -> tuple[Package, bytes]:
    """Return a package of the user's own, with its wheel."""
    folder = wanted.folders[name]
    if folder.startswith(".."):
        raise unfit(
            f"`{name}` comes from a folder outside the source folder: `{folder}`",
            "set `source_dir` to a folder that holds it",
        )

    try:
        version, content = _wheel(tree, name, wanted.folders)
    except (
        ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError
    ) as error:  # fmt: skip
        reason = str(error).splitlines()[0]
        if isinstance(error, KeyError):  # whose text is only the key
            reason = f"in the bundle it has no {reason}"
        message = f"cloudtrain cannot make a wheel of `{name}` in the folder `{folder}`: {reason}"
        raise unfit(message, f"{_remedy(name, folder, wanted.file)}; then run `uv lock`") from None

    digest = hashlib.sha256(content).hexdigest()
    path = f"./cloudtrain-wheels/{_module(name)}-{version}-py3-none-any.whl"
    return Package(name, version, (f"sha256:{digest}",), url=path), content


def _remedy(name: str, folder: str, lock: str) -> str:
    """Return what to do about a package of which no wheel can be made."""
    if folder == (posixpath.dirname(lock) or "."):
        return "if nothing imports it as an installed package, set `package = false` in `[tool.uv]`"
    return (
        f"build it: `uv build --wheel {folder} --out-dir vendor`, "
        f'and set `{name} = {{ path = "vendor/WHEEL" }}` in `[tool.uv.sources]`'
    )


def _module(name: str) -> str:
    """Return the name under which Python imports a package: `my-model` is `my_model`."""
    return normal(name).replace("-", "_")


def _wheel(tree: Tree, name: str, folders: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the version and the bytes of a wheel. Raises ValueError with the reason if it cannot
    be made."""
    prefix = "" if folders[name] == "." else f"{folders[name]}/"
    entries = {entry.path: entry for entry in below(tree.user_files, folders[name])}

    def read(path: str) -> bytes:
        in_tree = entries[path]._replace(path=prefix + path)
        return Path(tree.location(in_tree)).read_bytes()

    table = load_toml(read("pyproject.toml").decode())
    project = table["project"]
    settings = dict(_settings(table.get("tool", {})))
    place = _place(_module(project["name"]), entries)

    unknown = set(_unknown_settings(settings, place))
    unknown.update(_unknown_backends(table.get("build-system", {}), place, entries))
    for field in project.get("dynamic", ()):
        if field in _OF_INSTALLERS:
            unknown.add(f"dynamic {field}")
    if unknown:
        names = "`, `".join(sorted(unknown))
        raise ValueError(f"only its build backend can apply `{names}`")

    version = project.get("version")
    if version is None:
        source = settings.get("hatch.version.path", f"{place}/__init__.py")
        version = _version_in(read(source).decode())
    version = str(Version(version))

    info = f"{_module(name)}-{version}.dist-info"
    content: dict[str, tuple[bytes, bool]] = {}  # with whether it is executable
    for path, entry in entries.items():
        if path.startswith(f"{place}/"):
            if entry.target or not path.isprintable() or path.endswith(_COMPILED):
                raise ValueError(f"`{escape_path(path)}` is a link, or not pure Python")
            content[path.removeprefix("src/")] = (read(path), entry.executable)
    for file, text in _metadata(project, version, folders).items():
        content[f"{info}/{file}"] = (text.encode(), False)
    return version, _archive(content, f"{info}/RECORD")


def _settings(table: JsonMapping, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values below a table with their dotted keys."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _place(module: str, files: Mapping[str, object]) -> str:
    """Return the folder of the only package that the project may have."""
    in_src = f"src/{module}/__init__.py" in files
    in_top = f"{module}/__init__.py" in files
    if in_src == in_top:
        raise ValueError(f"it needs a package in either `src/{module}` or `{module}`")
    return f"src/{module}" if in_src else module


def _unknown_backends(build: JsonMapping, place: str, files: Mapping[str, object]) -> Iterator[str]:
    """Yield what of a build takes more than a backend that finds the package."""
    backend = build.get("build-backend", _SETUPTOOLS).removesuffix(":__legacy__")
    if backend not in _BACKENDS or "backend-path" in build:
        yield backend
    for text in build.get("requires", ()):
        package = normal(Requirement(text).name)
        if package not in (_BACKENDS.get(backend), "wheel"):
            yield package

    # setuptools also packs other modules beside the package, and reads two more files.
    if backend == _SETUPTOOLS:
        for path in files:
            is_module = path.startswith("src/") and path.endswith((".py", ".pyi"))
            is_other_module = is_module and not path.startswith(f"{place}/")
            if is_other_module or path in ("setup.cfg", "setup.py"):
                yield path


def _unknown_settings(settings: JsonMapping, place: str) -> Iterator[str]:
    """Yield the settings that may change what is in the wheel, and do not just name the package."""
    root, _, module = place.rpartition("/")
    packages = [{"include": module, "from": root} if root else {"include": module}]
    defaults = {
        "uv.build-backend.module-name": module,
        "uv.build-backend.module-root": root,
        "hatch.build.targets.wheel.packages": [place],
        "flit.module.name": module,
        "poetry.packages": packages,
        "setuptools.dynamic.version.attr": f"{module}.__version__",
        "setuptools.package-dir.": root,
        "setuptools.packages.find.where": [root],
    }
    for key, value in settings.items():
        may_change = key.startswith(_BUILD_SETTINGS) and not key.startswith(_HARMLESS_SETTINGS)
        if may_change and defaults.get(key) != value:
            yield f"tool.{key}"


def _version_in(module: str) -> str:
    """Return the version of a module, whose text is read and not run."""
    lines = re.findall(r"(?mi)^(?:__version__|version)\b.*", module)
    if len(lines) == 1:
        version = re.match(r"""__version__ = ["']([^"'\\]+)["']\s*(?:#.*)?$""", lines[0])
        if version is not None:
            return version[1]
    raise ValueError('its `version` is dynamic, and not in one line `__version__ = "1.0"`')


def _metadata(project: JsonMapping, version: str, folders: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the files beside RECORD by their names."""
    fields = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    if "requires-python" in project:
        fields.append(f"Requires-Python: {project['requires-python']}")
    wanted = {"": project.get("dependencies", ()), **project.get("optional-dependencies", {})}
    for extra, texts in wanted.items():
        if extra:
            fields.append(f"Provides-Extra: {normal(extra)}")
        for text in texts:
            requirement = Requirement(text)
            if extra:
                asked = f"extra == '{normal(extra)}'"
                if requirement.marker:
                    asked = f"({requirement.marker}) and {asked}"
                requirement.marker = Marker(asked)
            # an installer may take a stranger for a virtual package
            if extra or folders.get(normal(requirement.name)) != "":
                fields.append(f"Requires-Dist: {requirement}")

    groups = {
        "console_scripts": project.get("scripts", {}),
        "gui_scripts": project.get("gui-scripts", {}),
        **project.get("entry-points", {}),
    }
    points = []
    for group, entry_points in groups.items():
        points.append(f"[{group}]")
        points += [f"{key} = {value}" for key, value in entry_points.items()]
        points.append("")

    if not all(map(str.isprintable, (*fields, *points))):
        raise ValueError("a text of `pyproject.toml` holds a line break or a control character")
    wheel = "Wheel-Version: 1.0\nGenerator: cloudtrain\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {
        "METADATA": "\n".join((*fields, "")),
        "WHEEL": wheel,
        "entry_points.txt": "\n".join((*points, "")),
    }


def _archive(files: dict[str, tuple[bytes, bool]], record: str) -> bytes:
    """Return a wheel of files with their contents, and whether each is executable. `record` is the
    path of the list of files, which comes last. The wheel is not compressed, because libraries
    compress differently, and the bundle is compressed."""
    members = dict(sorted(files.items()))
    rows = f"{record},,\n"  # the record lists itself without a hash
    for name, (content, _) in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        quoted = name.replace('"', '""')
        rows += f'"{quoted}",sha256={digest.decode()},{len(content)}\n'
    members[record] = (rows.encode(), False)

    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, (content, executable) in members.items():
            mode = 0o100755 if executable else 0o100644
            info = zipfile.ZipInfo(name)  # of 1980-01-01
            info.create_system = 3  # Unix, which `external_attr` is for
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return output.getvalue()
