"""Reads the locks of uv, and the projects and scripts that they were made for.

A uv.lock is a graph of packages. The reader walks it from the project, along the dependencies whose
markers apply, so its list equals that of `uv export --no-dev`.
https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import load_toml
from cloudtrain.errors import JobError, quoted
from cloudtrain.job.pep508 import (
    Requirement,
    applies,
    are_met,
    normal,
    requirement_in,
    versions_in,
)
from cloudtrain.job.requirements import (
    POETRY,
    PYPI,
    Package,
    Platform,
    Read,
    Requirements,
    block_of,
    foreign_text,
    form_of,
    shown,
    stale,
    unfit,
    unread,
)

_DEEPEST = 8
"""Maximum number of folders or groups above each other."""

_AGAIN = "lock again for that Python and system"

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
        raise unfit(
            f"`{file}` depends on the version of Python, and that of the machine is not known",
            'write it under `environment`, for example `python: "3.12"`',
        )

    reader = _Reader(read, platform, frozenset(extras), frozenset(groups), prune)
    readers = {
        "uv": reader.uv,
        "project": reader.project,
        "script": reader.script,
        "pylock": reader.pylock,
    }
    try:
        found = readers[form](file, text)
        _check_texts(found, read)
        return found
    except JobError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        lines = str(error).splitlines() or ["no value"]
        reason = shown(f"{type(error).__name__}: {lines[0]}")
        raise unread(
            f"`{file}` or its lock has not the form that uv writes ({reason})",
            "write it again: `uv lock`",
        ) from None


def _check_texts(found: Requirements, read: Read) -> None:
    """Raise JobError if a text of a lock may not stand in a list."""
    packages = [*found.packages]
    for name, version in found.brought.items():
        packages.append(Package(name, version))
    for name in found.folders:
        packages.append(Package(name, None))
    for package in packages:
        foreign = foreign_text(package)
        if foreign is not None:
            text = read(found.file) or ""
            offset = text.find(json.dumps(foreign)[1:-1]) if foreign else -1
            if offset < 0:  # it is missing, or composed of several texts
                offset = text.find(f'"{package.name}"')
            place = f"line {text.count(chr(10), 0, max(offset, 0)) + 1} of `{found.file}`"
            raise unread(
                f"{place} is not a name, version, hash, path or address: `{shown(foreign)}`",
                "write it again: `uv lock`; if the text stays, see who has written the lock",
            )


class _Reader(NamedTuple):
    """Reads a file with the arguments of `read_lock`. Each form has a method of its name."""

    read: Read
    platform: Platform
    extras: frozenset[str]
    groups: frozenset[str]
    prune: bool

    def uv(self, file: str, text: str) -> Requirements:
        return self._read_uv_lock(file, text, posixpath.dirname(file))

    def project(self, file: str, text: str) -> Requirements:
        """Read the nearest uv.lock, upwards from a pyproject.toml through folders that are
        projects too."""
        folder = posixpath.dirname(file)
        place = folder
        while True:
            lock = posixpath.normpath(posixpath.join(place, "uv.lock"))
            content = self.read(lock)
            if content is not None:
                return self._read_uv_lock(lock, content, folder)
            place = posixpath.normpath(posixpath.join(place, ".."))
            project = posixpath.join(place, "pyproject.toml")
            if place.count("..") > _DEEPEST or self.read(project) is None:
                break

        poetry_lock = posixpath.join(folder, "poetry.lock")
        if "[tool.poetry]" in text or self.read(poetry_lock) is not None:
            raise unread(f"`{file}` is a project of Poetry, which cloudtrain does not read", POETRY)
        raise stale(
            f"`{file}` has no `uv.lock` beside it, so the versions are not decided",
            "run `uv lock`, or name a requirements file",
        )

    def script(self, file: str, text: str) -> Requirements:
        """Read the block of a script, and its lock if it has one."""
        table = _toml(f"the block of `{file}`", block_of(file, text) or "")
        wanted = self._wanted(table.get("dependencies", ()), {}, file)
        self.check_python(f"the block of `{file}`", table.get("requires-python"))

        lock_file = f"{file}.lock"
        command = f"uv lock --script {file}"
        lock = self.read(lock_file)
        if lock is None:
            of_uv = _get(table, "tool", "uv")
            if of_uv.get("sources") or of_uv.get("index"):
                message = (
                    f"the block of `{file}` names sources or indexes, and has no lock `{lock_file}`"
                )
                raise stale(message, f"run `{command}`")
            packages = []
            for item in wanted:
                if self.applies(item.marker):
                    packages.append(Package(normal(item.name), item.pin, line=item.text))
            return Requirements(file, "script", tuple(packages))

        graph = _Graph(self, lock, lock_file)
        locked = graph.manifest.get("requirements", ())
        self._require_same(lock_file, file, command, locked, wanted)
        roots = []
        for item in locked:
            if self.applies(item.get("marker")):
                roots.append((item, graph.package_for(item)))
        return graph.walk(roots)

    def pylock(self, file: str, text: str) -> Requirements:
        lock = _toml(f"`{file}`", text)
        _check_version(file, lock.get("lock-version"))
        self.check_python(f"`{file}`", lock.get("requires-python"))
        environments = lock.get("environments") or [""]
        if not any(map(self.applies, environments)):
            raise unfit(f"`{file}` is not for {self.platform}", _AGAIN)

        root = posixpath.dirname(file)
        packages: dict[str, Package] = {}
        folders: dict[str, str] = {}
        brought: dict[str, str] = {}
        seen = set()
        for item in lock.get("packages", ()):
            name = normal(item["name"])
            folder = _get(item, "directory").get("path")
            if not self.applies(item.get("marker")):
                continue
            what = f"`{name}` of `{file}`"
            self.check_python(what, item.get("requires-python"))
            if name in seen:
                raise unfit(f"`{file}` has `{name}` twice for {self.platform}", _AGAIN)
            seen.add(name)
            if folder is not None:
                folders[name] = posixpath.normpath(posixpath.join(root, folder))
            elif not self.prune or not _OF_TORCH.fullmatch(name):
                packages[name] = self._pylock_package(what, item, root)
            elif name == "torch":
                brought[name] = item.get("version", "")
        return Requirements(file, "pylock", tuple(packages.values()), folders, brought)

    def _pylock_package(self, what: str, item: JsonMapping, folder: str) -> Package:
        """Return a package of a pylock.toml in `folder`."""
        vcs = item.get("vcs")
        archives = [*item.get("wheels", ())]
        archives += [item[key] for key in ("sdist", "archive") if key in item]
        if vcs is None:
            names = [file.get("name") or file.get("url", "") for file in archives]
            self.check_archives(what, names)
        hashes = set[str]()
        for file in archives:
            known = file.get("hashes", {})
            of_pip = [name for name in ("sha256", "sha384", "sha512") if name in known]
            hashes.update(f"{name}:{known[name]}" for name in of_pip[:1])
        url = _address(item.get("archive", {}), folder)
        if vcs:
            commit = f"{vcs['type']}+{vcs['url']}@{vcs['commit-id']}"
            url = _in_folder(commit, vcs.get("subdirectory"))
        index = _other_index(item.get("index", "").rstrip("/"))
        name = normal(item["name"])
        return Package(name, item.get("version", ""), tuple(sorted(hashes)), index, url)

    def check_archives(self, what: str, archives: Iterable[str]) -> None:
        """Raise JobError if a package has archives for other machines only, or none. `what` names
        it in the message."""
        if not any(map(self.platform.fits, archives)):
            raise unfit(f"{what} has no archive for {self.platform}", _AGAIN)

    def _read_uv_lock(self, lock: str, text: str, folder: str) -> Requirements:
        """Return the list of the project in `folder`, which is a member of the workspace of the
        lock."""
        graph = _Graph(self, text, lock)
        root = posixpath.dirname(lock) or "."
        relative = posixpath.normpath(posixpath.relpath(folder or ".", root))
        members = [item for item in graph.packages if _folder_of(item) == relative]
        project = posixpath.join(folder, "pyproject.toml")
        content = self.read(project)
        is_package = bool(members)
        if not members and relative == ".":  # a workspace whose root is no package: all its members
            names = graph.manifest.get("members", ())
            members = [item for item in graph.packages if item["name"] in names]
        if not members:
            raise stale(f"`{lock}` does not hold the project of `{project}`", "run `uv lock`")
        if content is not None and is_package:
            self._check_project(lock, project, _toml(f"`{project}`", content), members[0])

        self._check_offered(lock, "extras", self.extras, members, "optional-dependencies")
        self._check_offered(lock, "groups", self.groups, members, "dev-dependencies")
        roots = [({"name": item["name"], "extra": self.extras}, item) for item in members]
        return graph.walk(roots, self.groups)

    @staticmethod
    def _check_offered(
        lock: str, field: str, asked: frozenset[str], members: list[JsonMapping], table: str
    ) -> None:
        """Raise JobError if no member has an extra or a group that the job asks for."""
        offered: set[str] = set()
        for item in members:
            offered.update(item.get(table, ()))
        for name in sorted(asked - offered):
            words = quoted(sorted(offered)) or "none"
            hint = f"it has {words}; run `uv lock` after a change of `pyproject.toml`"
            raise unread(f"`{lock}` has no {field[:-1]} `{name}`", hint, field)

    def check_python(self, what: str, wanted: str | None) -> None:
        """Raise JobError if the Python that installs the packages is not one of the `wanted`
        versions. `what` names the file in the message."""
        if wanted is None:
            return
        python = self.platform.environment["python_full_version"]
        try:
            # installers compare its numbers: 3.14.0rc1 is a 3.14.0
            fits = are_met(versions_in(wanted), re.sub(r"[a-z].*", "", python))
        except ValueError:
            raise unread(
                f"{what} has no valid `requires-python`: `{wanted}`", "write for example `>=3.10`"
            ) from None
        if not fits:
            raise unfit(
                f"{what} is for Python {wanted}, and the machine has {self.platform}",
                "widen `requires-python`, and run `uv lock`; or take an image with Python "
                f"{wanted}",
            )

    def _check_project(self, lock: str, file: str, project: JsonMapping, root: JsonMapping) -> None:
        """Raise JobError if a project's dependencies are not those that the lock was made for."""
        table = _get(project, "project")
        sources = _get(project, "tool", "uv", "sources")
        metadata = _get(root, "metadata")
        if "dependencies" not in table.get("dynamic", ()):
            texts = [*table.get("dependencies", ())]
            for extra in self.extras:
                texts += _get(table, "optional-dependencies").get(extra, ())
            wanted = self._wanted(texts, sources, file)
            locked = metadata.get("requires-dist")
            own = normal(root["name"])
            self._require_same(lock, file, "uv lock", locked, wanted, self.extras, own)

        groups = _get(project, "dependency-groups")
        for group in self.groups & {*groups}:
            wanted = self._wanted(_texts_of_group(groups, group), sources, file)
            locked = _get(metadata, "requires-dev").get(group)
            self._require_same(lock, file, "uv lock", locked, wanted)

    def _wanted(self, texts: Iterable[str], sources: JsonMapping, file: str) -> list[Requirement]:
        """Return dependencies as a project writes them, without the versions of those that have a
        source of their own, as uv.lock writes them."""
        if isinstance(texts, (str, dict)):
            example = json.dumps(texts if isinstance(texts, str) else "NAME")
            raise unread(f"the dependencies in `{file}` are not a list", f"write `[{example}]`")
        elsewhere = set()
        for name, source in sources.items():
            for entry in [source] if isinstance(source, dict) else source:
                if "index" not in entry:
                    elsewhere.add(normal(name))

        wanted = []
        for text in texts:
            try:
                item = requirement_in(text)
            except ValueError as error:
                message = f"`{shown(text)}` in `{file}` is not a requirement: {shown(str(error))}"
                raise unread(message, "write for example `numpy>=1.26`") from None
            if normal(item.name) in elsewhere:
                item = item._replace(versions=SpecifierSet())
            wanted.append(item)
        return wanted

    def _require_same(
        self,
        lock: str,
        file: str,
        command: str,
        locked: Iterable[JsonMapping] | None,
        wanted: Iterable[Requirement],
        extras: Collection[str] = (),
        own: str = "",
    ) -> None:
        """Raise JobError if the direct dependencies that apply here differ. `own` is the name of
        the project itself."""
        before = set()
        for entry in locked or ():
            if self.applies(entry.get("marker"), extras):
                versions = versions_in(entry.get("specifier", ""))
                extras_of_entry = frozenset(entry.get("extras", ()))
                before.add((normal(entry["name"]), versions, extras_of_entry))

        now = set()
        names_own_extra = False  # which uv resolves
        for item in wanted:
            name = normal(item.name)
            if name == own:
                names_own_extra = True
            elif self.applies(item.marker):
                now.add((name, item.versions, item.extras))
        if names_own_extra:
            now |= before

        if before != now:
            differing = sorted({name for name, *_ in before ^ now})
            names = quoted(differing)
            raise stale(f"`{lock}` does not match `{file}`: {names}", f"run `{command}`")

    def applies(self, marker: object, extras: Collection[str] = ()) -> bool:
        """Return whether an environment marker applies. uv writes an extra of a conflict as
        `extra-7-project-cpu`."""
        if marker is None or marker == "":
            return True
        endings = tuple(f"-{name}" for name in (*self.extras, *self.groups))

        def decide(match: re.Match[str]) -> str:
            name = match["name"]
            is_of_conflict = re.match(r"(?:extra|group)-\d+-", name) is not None
            is_on = name in extras or (is_of_conflict and name.endswith(endings))
            if is_on == (match["operator"] == "=="):
                return "python_version >= '0'"
            return "python_version < '0'"

        text = _EXTRA.sub(decide, str(marker))
        values: dict[str, str | frozenset[str]] = {
            **self.platform.environment,
            "extras": self.extras,
            "dependency_groups": self.groups,
        }
        return applies(text, values)


_EXTRA = re.compile(r"\bextra (?P<operator>==|!=) '(?P<name>[^']*)'")


def _toml(what: str, text: str) -> JsonMapping:
    """Parse a text, which errors call `what`."""
    hint = "correct it, or write it again with `uv lock`"
    try:
        return load_toml(text)
    except RecursionError:
        raise unread(f"{what} is nested too deeply", hint) from None
    except ValueError as error:
        raise unread(f"{what} is not valid TOML: {shown(str(error))}", hint) from None


def _check_version(file: str, version: object) -> None:
    """Raise JobError for a lock whose format is another than the one that this module reads."""
    if str(version).partition(".")[0] != "1":
        message = f"`{file}` has version {shown(str(version))} of its format"
        raise unread(
            message, "cloudtrain reads version 1: write the lock with a tool that writes it"
        )


def _get(table: JsonMapping, *keys: str) -> JsonMapping:
    """Return the table at nested keys, an empty one if there is none."""
    for key in keys:
        table = table.get(key, {})
    return table


def _texts_of_group(groups: JsonMapping, name: str, depth: int = _DEEPEST) -> Iterator[str]:
    """Yield the dependencies of a group, with those of the groups that it includes."""
    for item in groups.get(name, ()):
        if isinstance(item, str):
            yield item
        elif depth:
            yield from _texts_of_group(groups, item.get("include-group", ""), depth - 1)


def _folder_of(item: JsonMapping) -> str | None:
    """Return the folder of a local package, relative to the lock; None for other packages."""
    source: Mapping[str, str] = item.get("source", {})
    for kind in ("editable", "virtual", "directory"):
        if kind in source:
            return posixpath.normpath(source[kind])
    return None


class _Graph:
    """The packages of a uv.lock. Nine tenths of a lock are addresses of archives, of which only the
    hashes of some are needed. So the archives, which uv writes one a line, are cut out before the
    rest is parsed."""

    def __init__(self, reader: _Reader, text: str, file: str) -> None:
        self.reader = reader
        self.file = file
        self.archives: list[str] = []
        lock = _toml(f"`{file}`", _ARCHIVES.sub(self._cut, text))
        _check_version(file, lock.get("version"))
        reader.check_python(f"`{file}`", lock.get("requires-python"))
        self.packages: list[JsonMapping] = lock.get("package", [])
        self.manifest: JsonMapping = lock.get("manifest", {})
        self.by_name: dict[str, list[JsonMapping]] = {}
        self.applies = cache(reader.applies)  # a lock repeats its markers
        for item in self.packages:
            self.by_name.setdefault(item["name"], []).append(item)

    def _cut(self, match: re.Match[str]) -> str:
        """Keep the text of archives, and return a line with its number to stand for it."""
        number = len(self.archives)
        self.archives.append(match[0])
        newlines = "\n" * match[0].count("\n")  # errors name the lines of the file
        return f"{match['kind'] or 'sdist'} = {number}{newlines}"

    def _hashes_of(self, item: JsonMapping) -> tuple[str, ...]:
        """Return the hashes of a package's archives, in the form of pip. Raises JobError if no
        archive is for this platform."""
        text = ""
        for kind in ("sdist", "wheels"):
            archives = item.get(kind)
            if isinstance(archives, int):
                text += self.archives[archives]
            else:  # a lock that another program wrote in another layout
                text += json.dumps(archives, default=str)
        if "sdist" not in item and "git" not in item["source"]:
            wheels = re.findall(r'"([^"]+\.whl)"', text)
            self.reader.check_archives(f"`{item['name']}` of `{self.file}`", wheels)
        return tuple(sorted(set(re.findall(r'\bhash(?: =|":) "([^"]+)"', text))))

    def walk(
        self, roots: Iterable[tuple[JsonMapping, JsonMapping]], groups: Collection[str] = ()
    ) -> Requirements:
        """Return the packages that the roots need. Each root is a dependency and the package that
        it means."""
        packages: dict[str, Package] = {}
        folders: dict[str, str] = {}
        brought: dict[str, str] = {}
        waiting = [(dependency, item, True) for dependency, item in roots]
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        folder = posixpath.dirname(self.file)
        while waiting:
            dependency, item, is_root = waiting.pop()
            name = item["name"]
            version = item.get("version", "")
            extras = tuple(sorted(dependency.get("extra", ())))
            if (name, version, extras) in seen:
                continue
            seen.add((name, version, extras))

            if self.reader.prune and name == "torch":
                brought[name] = version
                continue
            place = _folder_of(item)
            if place is None:
                package = _uv_package(item, self._hashes_of(item), folder)
                if packages.setdefault(name, package) != package:
                    message = (
                        f"`{self.file}` has two versions of `{name}` for {self.reader.platform}"
                    )
                    raise unfit(message, _AGAIN)
            elif "virtual" not in item["source"]:
                folders[name] = posixpath.normpath(posixpath.join(folder, place))
            elif not is_root:
                folders[name] = ""  # nothing is installed for it

            further = [*item.get("dependencies", ())]
            for extra in extras:
                further += _get(item, "optional-dependencies").get(extra, ())
            for group in sorted(groups) if is_root else ():
                further += _get(item, "dev-dependencies").get(group, ())
            for needed in further:
                if self.applies(needed.get("marker")):
                    waiting.append((needed, self.package_for(needed), False))

        in_order = tuple(packages[name] for name in sorted(packages))
        return Requirements(self.file, "uv", in_order, folders, brought)

    def package_for(self, dependency: JsonMapping) -> JsonMapping:
        """Return the package that a dependency means. Raises JobError if the lock has none for this
        platform."""
        name = dependency["name"]
        version = dependency.get("version")
        choices = self.by_name.get(name, [])
        if version is not None:
            choices = [item for item in choices if item.get("version") == version]
        if len(choices) > 1:
            if "source" in dependency:
                source = dependency["source"]
                of_source = [item for item in choices if item.get("source") == source]
                choices = of_source or choices
            choices = [item for item in choices if self._is_for_platform(item)]
        if not choices:
            message = f"`{self.file}` has no version of `{name}` for {self.reader.platform}"
            raise unfit(
                message,
                "run `uv lock`, after widening `requires-python` or `environments` of `[tool.uv]`",
            )
        return choices[0]

    def _is_for_platform(self, item: JsonMapping) -> bool:
        markers = item.get("resolution-markers")
        return not markers or any(map(self.applies, markers))


_ARCHIVES = re.compile(r"(?m)^(?P<kind>wheels) = \[\n(?: +\{.*\},\n)*\]\n|^sdist = \{.*\}\n")


def _uv_package(item: JsonMapping, hashes: tuple[str, ...], folder: str) -> Package:
    """Return a package of a uv.lock in `folder`. A commit needs no hashes."""
    source = item.get("source", {})
    if not source.keys() & {"registry", "git", "url", "path"}:
        raise unread(
            f"the lock does not say where `{shown(item['name'])}` comes from", "run `uv lock` again"
        )
    url = _address(source, folder)
    if "git" in source:
        address, _, commit = source["git"].partition("#")
        place, _, query = address.partition("?")
        match = re.search(r"(?:^|&)subdirectory=([^&]+)", query)
        inner = match[1].replace("%2F", "/") if match else None
        url = _in_folder(f"git+{place}@{commit}", inner)
        hashes = ()
    index = _other_index(source.get("registry", ""))
    return Package(item["name"], item.get("version", ""), hashes, index, url)


def _address(source: JsonMapping, folder: str) -> str:
    """Return the path of an archive in the bundle, or its address; empty without either."""
    if "path" in source:
        return f"./{posixpath.normpath(posixpath.join(folder, source['path']))}"
    return _in_folder(str(source.get("url", "")), source.get("subdirectory"))


def _in_folder(url: str, folder: str | None) -> str:
    """Return the address of a package that is in a folder of what the URL names."""
    return url if folder is None else f"{url}#subdirectory={folder}"


def _other_index(index: str) -> str:
    """Return the address of an index that is not PyPI, otherwise an empty text."""
    return "" if index == PYPI else index
