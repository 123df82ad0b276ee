"""Reads the locks of uv, and the projects and scripts that they were made for.

A uv.lock is a graph of packages. The reader walks it from the project, along the dependencies whose
markers apply, so its list equals that of `uv export --no-dev`.
https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from cloudtrain.documents.document import load_toml
from cloudtrain.errors import JobError
from cloudtrain.job.requirements import (
    BLOCK,
    DEEPEST,
    POETRY,
    PYPI,
    Package,
    Platform,
    Read,
    Requirements,
    form_of,
    normal,
    package_of,
    stale,
    unfit,
    unread,
)

Table = Mapping[str, Any]
"""A table of TOML."""

_OF_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""Packages that torch brings, for locks that do not say what a package depends on."""


def read_lock(
    file: str,
    read: Read,
    platform: Platform | None,
    *,
    extras: Collection[str] = (),
    groups: Collection[str] = (),
    prune: bool = False,
) -> Requirements:
    """Read a file of any form but pip's.

    Args:
        platform: the Python that installs the packages; None if it is unknown.
        extras: extras of the project.
        groups: dependency groups of the project. Without them, no group is read, not even `dev`.
        prune: leave out torch and what only torch needs, because the image brings them.

    Raises:
        JobError: the file cannot be read, does not match its project, or has nothing for this
            Python.
    """
    text = read(file)
    assert text is not None, file
    form = form_of(file, text)
    if platform is None:
        hint = 'write it under `environment`, for example `python: "3.12"`'
        raise unfit(
            f"`{file}` depends on the version of Python, and that of the machine is not known", hint
        )
    reader = _Reader(read, platform, frozenset(extras), frozenset(groups), prune)
    readers = {
        "uv": reader.uv,
        "project": reader.project,
        "script": reader.script,
        "pylock": reader.pylock,
    }
    try:
        return readers[form](file, text)
    except JobError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        reason = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no value'}"
        )
        hint = "write it again: `uv lock`"
        raise unread(
            f"`{file}` or its lock has not the form that uv writes ({reason})", hint
        ) from None


class _Reader(NamedTuple):
    read: Read
    platform: Platform
    extras: frozenset[str]
    groups: frozenset[str]
    prune: bool

    def uv(self, file: str, text: str) -> Requirements:
        return self._of_lock(file, text, posixpath.dirname(file))

    def project(self, file: str, text: str) -> Requirements:
        folder = place = posixpath.dirname(file)
        while True:
            lock = posixpath.normpath(posixpath.join(place, "uv.lock"))
            content = self.read(lock)
            if content is not None:
                return self._of_lock(lock, content, folder)
            above = posixpath.normpath(posixpath.join(place or ".", ".."))
            if (
                above.count("..") > DEEPEST
                or self.read(posixpath.join(above, "pyproject.toml")) is None
            ):
                break
            place = above
        if "[tool.poetry]" in text or self.read(posixpath.join(folder, "poetry.lock")) is not None:
            raise unread(f"`{file}` is a project of Poetry, which cloudtrain does not read", POETRY)
        hint = "run `uv lock`, or name a requirements file"
        raise stale(f"`{file}` has no `uv.lock` beside it, so the versions are not decided", hint)

    def script(self, file: str, text: str) -> Requirements:
        block = BLOCK.search(text)
        assert block is not None, "form_of refuses a script without a block"
        content = "".join(line[2:] or "\n" for line in block["content"].splitlines(keepends=True))
        table = _toml(f"the block of `{file}`", content)
        wanted = self._wanted(table.get("dependencies", ()), {}, file)
        self.check_python(f"the block of `{file}`", table.get("requires-python"))
        lock = self.read(f"{file}.lock")
        if lock is None:
            if table.get("tool", {}).get("uv", {}).get("sources"):
                hint = f"run `uv lock --script {file}`"
                raise stale(
                    f"the block of `{file}` names sources, and has no lock `{file}.lock`", hint
                )
            packages = [
                package_of(str(item), item.name, str(item.specifier))
                for item in wanted
                if self.applies(item.marker)
            ]
            return Requirements(file, "script", tuple(packages))
        graph = _Graph(self, lock, f"{file}.lock")
        locked = graph.manifest.get("requirements", ())
        self._compare(f"{file}.lock", file, f"uv lock --script {file}", locked, wanted)
        return graph.list(
            [(item, graph.start_of(item)) for item in locked if self.applies(item.get("marker"))]
        )

    def pylock(self, file: str, text: str) -> Requirements:
        lock = _toml(f"`{file}`", text)
        self.check_python(f"`{file}`", lock.get("requires-python"))
        packages, folders, brought = list[Package](), dict[str, str](), dict[str, str]()
        for item in lock.get("packages", ()):
            name, folder = normal(item["name"]), item.get("directory", {}).get("path")
            if not self.applies(item.get("marker")):
                continue
            if folder is not None:
                folders[name] = posixpath.normpath(posixpath.join(posixpath.dirname(file), folder))
            elif self.prune and _OF_TORCH.fullmatch(name):
                brought |= {name: item.get("version", "")} if name == "torch" else {}
            else:
                packages.append(_pylock_package(name, item, posixpath.dirname(file)))
        return Requirements(file, "pylock", tuple(packages), folders, brought)

    def _of_lock(self, lock: str, text: str, folder: str) -> Requirements:
        """Return the list of the project in `folder`, which is a member of the workspace of the
        lock."""
        graph = _Graph(self, text, lock)
        root = posixpath.dirname(lock) or "."
        relative = posixpath.normpath(posixpath.relpath(folder or ".", root))
        members = [item for item in graph.packages if relative in _folder_of(item)]
        project = posixpath.join(folder, "pyproject.toml")
        content = self.read(project)
        is_package = bool(members)
        if not members and relative == ".":  # a workspace whose root is no package: all its members
            members = [
                item for item in graph.packages if item["name"] in graph.manifest.get("members", ())
            ]
        if not members:
            raise stale(f"`{lock}` does not hold the project of `{project}`", "run `uv lock`")
        if content is not None and is_package:
            self._check_project(lock, project, _toml(f"`{project}`", content), members[0])
        for field, asked in (("extras", self.extras), ("groups", self.groups)):
            table = "optional-dependencies" if field == "extras" else "dev-dependencies"
            offered = sorted({name for item in members for name in item.get(table, ())})
            for name in sorted(asked.difference(offered)):
                words = ", ".join(f"`{each}`" for each in offered) or "none"
                hint = f"it has {words}; run `uv lock` after a change of `pyproject.toml`"
                raise unread(f"`{lock}` has no {field[:-1]} `{name}`", hint, field)
        return graph.list(
            [({"name": item["name"], "extra": [*self.extras]}, item) for item in members],
            self.groups,
        )

    def check_python(self, what: str, wanted: str | None) -> None:
        python = self.platform.environment["python_full_version"]
        try:
            fits = wanted is None or SpecifierSet(wanted).contains(python, prereleases=True)
        except InvalidSpecifier:
            raise unread(
                f"{what} has no valid `requires-python`: `{wanted}`", "write for example `>=3.10`"
            ) from None
        if not fits:
            have = ".".join(python.split(".")[:2])
            hint = (
                f"widen `requires-python`, and run `uv lock`; or take an image with Python {wanted}"
            )
            raise unfit(f"{what} is for Python {wanted}, and the machine has Python {have}", hint)

    def _check_project(self, lock: str, file: str, project: Table, root: Table) -> None:
        """Raise JobError if a project's dependencies are not those that the lock was made for."""
        table, uv = project.get("project", {}), project.get("tool", {}).get("uv", {})
        metadata, sources = root.get("metadata", {}), uv.get("sources", {})
        if "dependencies" not in table.get("dynamic", ()):
            texts = [*table.get("dependencies", ())]
            for extra in self.extras:
                texts += table.get("optional-dependencies", {}).get(extra, ())
            wanted = self._wanted(texts, sources, file)
            self._compare(
                lock,
                file,
                "uv lock",
                metadata.get("requires-dist"),
                wanted,
                self.extras,
                normal(root["name"]),
            )
        for group in self.groups & {*project.get("dependency-groups", ())}:
            texts = list(_group(project["dependency-groups"], group))
            wanted = self._wanted(texts, sources, file)
            self._compare(
                lock, file, "uv lock", metadata.get("requires-dev", {}).get(group), wanted
            )

    def _wanted(self, texts: Iterable[str], sources: Table, file: str) -> list[Requirement]:
        """Return dependencies as a project writes them, without the versions of those that have a
        source of their own, as uv.lock writes them."""
        wanted = []
        elsewhere = {
            normal(name)
            for name, source in sources.items()
            if not all("index" in one for one in _as_list(source))
        }
        for text in texts:
            try:
                item = Requirement(text)
            except InvalidRequirement as error:
                reason = str(error).splitlines()[0]
                hint = "write for example `numpy>=1.26`"
                raise unread(f"`{text}` in `{file}` is not a requirement: {reason}", hint) from None
            if normal(item.name) in elsewhere:
                item.specifier = SpecifierSet()
            wanted.append(item)
        return wanted

    def _compare(
        self,
        lock: str,
        file: str,
        command: str,
        locked: Iterable[Table] | None,
        wanted: Iterable[Requirement],
        extras: Collection[str] = (),
        own: str = "",
    ) -> None:
        """Raise JobError if the direct dependencies that apply here differ."""
        before = {
            (
                normal(item["name"]),
                SpecifierSet(item.get("specifier", "")),
                frozenset(item.get("extras", ())),
            )
            for item in locked or ()
            if self.applies(item.get("marker"), extras)
        }
        now = {
            (
                normal(item.name),
                item.specifier if item.url is None else SpecifierSet(),
                frozenset(item.extras),
            )
            for item in wanted
            if self.applies(item.marker) and normal(item.name) != own
        }
        # an extra of the project itself, which uv resolves
        if any(normal(item.name) == own for item in wanted):
            now = {*now, *before}
        if before != now:
            names = ", ".join(f"`{name}`" for name in sorted({name for name, *_ in before ^ now}))
            raise stale(f"`{lock}` does not match `{file}`: {names}", f"run `{command}`")

    def applies(self, marker: object, extras: Collection[str] = ()) -> bool:
        """Return whether an environment marker applies. uv writes an extra of a conflict as
        `extra-7-project-cpu`."""
        if marker is None or marker == "":
            return True
        environment = self.platform.environment
        text = str(marker)

        def decide(match: re.Match[str]) -> str:
            name = match["name"]
            is_on = any(
                name.endswith(f"-{extra}") or name == extra
                for extra in (*self.extras, *self.groups)
            )
            return f"python_version {'>=' if is_on == (match['operator'] == '==') else '<'} '0'"

        text = re.sub(
            r"extra (?P<operator>==|!=) '(?P<name>(?:extra|group)-\d+-[^']*)'", decide, text
        )
        parsed = Marker(text)
        sets = {"extras": {*self.extras}, "dependency_groups": {*self.groups}}
        return any(
            parsed.evaluate({**environment, **sets, "extra": extra}) for extra in ("", *extras)
        )


def _toml(what: str, text: str) -> Table:
    try:
        return load_toml(text)
    except ValueError as error:
        raise unread(
            f"{what} is not valid TOML: {error}", "correct it, or write it again with `uv lock`"
        ) from None


def _group(groups: Table, name: str, depth: int = DEEPEST) -> Iterator[str]:
    """Yield the dependencies of a group, with those of the groups that it includes."""
    for item in groups.get(name, ()):
        if isinstance(item, str):
            yield item
        elif depth:
            yield from _group(groups, item.get("include-group", ""), depth - 1)


def _folder_of(item: Table) -> list[str]:
    """Return the folder of a local package, relative to the lock."""
    source = item.get("source", {})
    return [
        posixpath.normpath(source[kind])
        for kind in ("editable", "virtual", "directory")
        if kind in source
    ]


class _Graph:
    """The packages of a uv.lock. Nine tenths of a lock are addresses of archives, of which only the
    hashes of some are needed. So the archives, which uv writes one a line, are cut out before the
    rest is parsed."""

    def __init__(self, reader: _Reader, text: str, file: str) -> None:
        self.reader, self.file, self.archives = reader, file, list[str]()
        lock = _toml(f"`{file}`", _ARCHIVES.sub(self._cut, text))
        reader.check_python(f"`{file}`", lock.get("requires-python"))
        self.packages: list[Table] = lock.get("package", [])
        self.manifest: Table = lock.get("manifest", {})
        self.by_name: dict[str, list[Table]] = {}
        self.applies: dict[str, bool] = {}
        for item in self.packages:
            self.by_name.setdefault(item["name"], []).append(item)

    def _cut(self, match: re.Match[str]) -> str:
        self.archives.append(match[0])
        # keeps the lines
        return f"{match['kind'] or 'sdist'} = {len(self.archives) - 1}" + "\n" * match[0].count(
            "\n"
        )

    def _hashes_of(self, item: Table) -> tuple[str, ...]:
        numbers = [item[kind] for kind in ("sdist", "wheels") if isinstance(item.get(kind), int)]
        whole = [file for kind in ("sdist", "wheels") for file in _as_list(item.get(kind))]
        hashes = {
            found
            for number in numbers
            for found in re.findall(r'hash = "([^"]+)"', self.archives[number])
        }
        return tuple(sorted(hashes | {file["hash"] for file in whole if "hash" in file}))

    def list(
        self, roots: Iterable[tuple[Table, Table]], groups: Collection[str] = ()
    ) -> Requirements:
        """Walk the graph from the roots. Each root is a dependency and the package that it
        means."""
        packages, folders, brought = dict[str, Package](), dict[str, str](), dict[str, str]()
        waiting = [(dependency, item, True) for dependency, item in roots]
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        folder = posixpath.dirname(self.file)
        while waiting:
            dependency, item, is_root = waiting.pop()
            name, version, extras = (
                item["name"],
                item.get("version", ""),
                tuple(sorted(dependency.get("extra", ()))),
            )
            if (name, version, extras) in seen:
                continue
            seen.add((name, version, extras))
            if self.reader.prune and name == "torch":
                brought[name] = version
                continue
            places = _folder_of(item)
            if not places:
                packages[name] = _uv_package(item, self._hashes_of(item), folder)
            elif "virtual" not in item["source"]:
                folders[name] = posixpath.normpath(posixpath.join(folder, places[0]))
            elif not is_root:
                folders[name] = ""
            further = [*item.get("dependencies", ())]
            further += [
                each
                for extra in extras
                for each in item.get("optional-dependencies", {}).get(extra, ())
            ]
            if is_root:
                further += [
                    each
                    for group in sorted(groups)
                    for each in item.get("dev-dependencies", {}).get(group, ())
                ]
            waiting += [
                (each, self.start_of(each), False)
                for each in further
                if self._is_on(each.get("marker"))
            ]
        return Requirements(
            self.file, "uv", tuple(packages[name] for name in sorted(packages)), folders, brought
        )

    def start_of(self, dependency: Table) -> Table:
        """Return the package that a dependency means. Raises JobError if the lock has none for this
        platform."""
        name, version = dependency["name"], dependency.get("version")
        choices = [
            item
            for item in self.by_name.get(name, ())
            if version is None or item.get("version") == version
        ]
        if len(choices) > 1:
            sources = [
                item
                for item in choices
                if "source" in dependency and item.get("source") == dependency["source"]
            ]
            markers = [(item, item.get("resolution-markers")) for item in sources or choices]
            choices = [item for item, own in markers if not own or any(map(self._is_on, own))]
        if not choices:
            message = f"`{self.file}` has no version of `{name}` for {self.reader.platform}"
            raise unfit(
                message,
                "run `uv lock`, after widening `requires-python` or `environments` of `[tool.uv]`",
            )
        return choices[0]

    def _is_on(self, marker: str | None) -> bool:
        if marker is None:
            return True
        if marker not in self.applies:
            self.applies[marker] = self.reader.applies(marker)
        return self.applies[marker]


_ARCHIVES = re.compile(r"(?m)^(?P<kind>wheels) = \[\n(?: +\{.*\},\n)*\]\n|^sdist = \{.*\}\n")


def _as_list(files: object) -> list[Table]:
    """Return the archives of a lock that another program wrote in another layout, or the sources of
    a package."""
    return files if isinstance(files, list) else [files] if isinstance(files, dict) else []


def _uv_package(item: Table, hashes: tuple[str, ...], folder: str) -> Package:
    source = item.get("source", {})
    path = posixpath.normpath(posixpath.join(folder, source.get("path", "")))
    url = f"./{path}" if "path" in source else source.get("url", "")
    if "git" in source:
        address, _, commit = source["git"].partition("#")
        url, hashes = f"git+{address.partition('?')[0]}@{commit}", ()
    index = source.get("registry", "")
    return Package(
        item["name"], item.get("version", ""), hashes, "" if index == PYPI else index, url
    )


def _pylock_package(name: str, item: Table, folder: str) -> Package:
    archive, vcs = item.get("archive", {}), item.get("vcs")
    files = [*item.get("wheels", ()), *(item[key] for key in ("sdist", "archive") if key in item)]
    hashes = {
        f"sha256:{file['hashes']['sha256']}" for file in files if "sha256" in file.get("hashes", {})
    }
    path = posixpath.normpath(posixpath.join(folder, archive.get("path", "")))
    url = f"./{path}" if "path" in archive else archive.get("url", "")
    if vcs:
        url = f"{vcs['type']}+{vcs['url']}@{vcs['commit-id']}"
    index = item.get("index", "").rstrip("/")
    return Package(
        name, item.get("version", ""), tuple(sorted(hashes)), "" if index == PYPI else index, url
    )
