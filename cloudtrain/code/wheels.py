"""Makes wheels of the user's own packages that a lock names. No build backend runs, so a plan needs
no network, and equal files give equal bytes. A project is refused if its backend would put in more
or less than it does by default."""

from __future__ import annotations

import ast
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
from cloudtrain.code.ignore import IGNORE_FILE
from cloudtrain.code.tree import Tree
from cloudtrain.documents.document import load_toml
from cloudtrain.job.locks import Table, read_lock
from cloudtrain.job.requirements import Package, Platform, Read, Requirements, normal, unfit

_BACKENDS = load_toml(Path(__file__).with_name("backends.toml").read_text("utf-8"))


def read_own_lock(
    tree: Tree, file: str, read: Read, platform: Platform | None, **options: Any
) -> Requirements:
    """Read a lock with `read_lock`, and make wheels of its folders. Raises JobError also if one
    cannot be made."""
    wanted, wheels = read_lock(file, read, platform, **options), dict[str, bytes]()
    packages, hashes = (
        [*wanted.packages],
        {f"./{entry.path}": f"sha256:{entry.sha256}" for entry in tree.entries},
    )
    for item in packages:
        if item.url.startswith(".") and hashes.get(item.url) not in item.hashes:
            hint = (
                f"run `uv lock`; if an ignore file leaves it out, add `!{item.url[2:]}` to "
                f"`{IGNORE_FILE}`"
            )
            raise unfit(
                f"the bundle has no file `{item.url}` with the content that `{wanted.file}` locks",
                hint,
            )
    for name, folder in sorted(item for item in wanted.folders.items() if item[1]):
        if folder.startswith(".."):
            hint = "set `source_dir` to a folder that holds it"
            raise unfit(f"`{name}` comes from a folder outside the source folder: `{folder}`", hint)
        hint = (
            f'build it: `uv build --wheel {folder}`, and set `{name} = {{ path = "WHEEL" }}` '
            "in `[tool.uv.sources]`"
        )
        if folder == (posixpath.dirname(wanted.file) or "."):
            hint = (
                "if nothing imports it as an installed package, set `package = false` in "
                "`[tool.uv]`"
            )
        try:
            version, content = _wheel(tree, name, wanted.folders)
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, OSError) as error:
            reason = str(error).splitlines()[0]
            if isinstance(error, KeyError):
                reason = f"in the bundle it has no {reason}"
            message = (
                f"cloudtrain cannot make a wheel of `{name}` in the folder `{folder}`: {reason}"
            )
            raise unfit(message, f"{hint}; then run `uv lock`") from None
        path = f"cloudtrain-wheels/{normal(name).replace('-', '_')}-{version}-py3-none-any.whl"
        packages.append(
            Package(
                name, version, (f"sha256:{hashlib.sha256(content).hexdigest()}",), url=f"./{path}"
            )
        )
        wheels[path] = content
    return wanted._replace(packages=tuple(packages), wheels=wheels)


def _wheel(tree: Tree, name: str, folders: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the version and the bytes of a wheel. Raises ValueError with the reason if it cannot
    be made."""
    prefix = "" if folders[name] == "." else f"{folders[name]}/"
    entries = {
        each.path: each
        for each in below(tree.entries, folders[name])
        if prefix + each.path not in tree.own_files
    }
    files = {
        path: Path(tree.location(entry._replace(path=prefix + path)))
        for path, entry in entries.items()
    }
    table = load_toml(files["pyproject.toml"].read_text("utf-8"))
    project, build, tool = (
        table["project"],
        table.get("build-system", {}),
        dict(_settings(table.get("tool", {}))),
    )
    kind = build.get("build-backend", "setuptools.build_meta").removesuffix(":__legacy__")
    backend = _BACKENDS.get(kind, {"packages": (), "changes": "(?!)"})
    unknown = {kind} if kind not in _BACKENDS or "backend-path" in build else set()
    unknown |= {normal(Requirement(each).name) for each in build.get("requires", ())} - {
        *backend["packages"]
    }
    own = {path: backend["files"][path] for path in backend.get("files", ()) if path in files}
    unknown |= {
        path for path, form in own.items() if re.search(form, files[path].read_text("utf-8"))
    }
    unknown |= {f"tool.{key}" for key in tool if re.match(backend["changes"], f"{key}={tool[key]}")}
    unknown |= {
        f"dynamic {each}" for each in project.get("dynamic", ()) if each in _BACKENDS["decisive"]
    }
    if unknown:
        raise ValueError(
            f"only its build backend can apply {', '.join(f'`{each}`' for each in sorted(unknown))}"
        )
    places = _places(project["name"], backend, tool, {*files})
    inside = [
        (path, place, target)
        for path in files
        for place, target in places
        if f"{path}/".startswith(f"{place}/")
    ]
    modules = {target + path[len(place) :]: path for path, place, target in inside}
    for path in modules.values():
        if entries[path].target or not path.isprintable() or re.search(_BACKENDS["compiled"], path):
            raise ValueError(f"`{escape_path(path)}` is a link, or not pure Python")
    version = str(Version(project.get("version") or _version(tool, files, modules)))
    info = f"{normal(name).replace('-', '_')}-{version}.dist-info"
    content = {
        target: (files[path].read_bytes(), entries[path].executable)
        for target, path in modules.items()
    }
    content |= {
        f"{info}/{file}": (text.encode(), False)
        for file, text in _metadata(project, version, folders).items()
    }
    return version, _archive(content, f"{info}/RECORD")


def _settings(table: Table, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values below a table with their dotted keys."""
    for key, value in table.items():
        yield from (
            _settings(value, f"{above}{key}.")
            if isinstance(value, dict)
            else [(f"{above}{key}", value)]
        )


def _places(name: str, backend: Table, tool: Table, files: set[str]) -> list[tuple[str, str]]:
    """Return where the modules are: in the project, and in the wheel."""
    plain, given, root = (
        re.sub(r"[-.]+", "_", name),
        *(tool.get(backend.get(key, "")) for key in ("names", "root")),
    )
    roots = backend.get("roots", ()) if root is None else [f"{root.strip('/')}/".lstrip("/")]
    names = (
        [*dict.fromkeys((plain, plain.lower()))]
        if given is None
        else [given]
        if isinstance(given, str)
        else given
    )
    if "tops" in backend:
        roots = ["src/"] if any(path.startswith("src/") for path in files) else [""]
        names = {match[1] for path in files if (match := re.match(backend["tops"][roots[0]], path))}
        given = names if roots[0] else None
    paths = [(root + each, each.split("/")[-1]) for root in roots for each in names]
    ways = [(at.replace(".", "/"), into.replace(".", "/")) for at, into in paths]
    found = [way for way in ways if f"{way[0]}/__init__.py" in files]
    found += [
        (f"{at}.py", f"{into}.py")
        for at, into in ways
        if f"{at}.py" in files and (given or not found)
    ]
    if len(found) != (1 if given is None else len(names)):
        raise ValueError(
            f"its build backend finds {'several modules' if found else 'no module'} of it"
        )
    return found


def _version(tool: Table, files: Mapping[str, Path], modules: Mapping[str, str]) -> str:
    """Return a dynamic version, which is read from the text of a module. The module is not run."""
    top = (
        tool.get("setuptools.dynamic.version.attr", "")
        .removesuffix(".__version__")
        .replace(".", "/")
    )
    top = top or min(modules).split("/")[0].removesuffix(".py")
    for path in (
        tool.get("hatch.version.path", ""),
        *(modules.get(top + end, "") for end in (".py", "/__init__.py")),
    ):
        body = ast.parse(files[path].read_bytes() if path in files else b"").body
        code = "\n".join(
            ast.unparse(node) for node in body if isinstance(node, ast.Assign | ast.AnnAssign)
        )
        if len(values := re.findall(r"(?m)^__version__(?:: \w+)? = (.*)$", code)) == 1 and values[
            0
        ].startswith("'"):
            return str(values[0]).strip("'")
    raise ValueError("its `version` is dynamic, and no text `__version__` in one of its modules")


def _metadata(project: Table, version: str, folders: Mapping[str, str]) -> dict[str, str]:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    lines += (
        [f"Requires-Python: {project['requires-python']}"] if "requires-python" in project else []
    )
    # an installer may take a stranger for a virtual package
    needs = map(Requirement, project.get("dependencies", ()))
    lines += [f"Requires-Dist: {item}" for item in needs if folders.get(normal(item.name)) != ""]
    for extra, texts in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {normal(extra)}")
        for item in map(Requirement, texts):
            asked = f"extra == '{normal(extra)}'"
            item.marker = Marker(f"({item.marker}) and {asked}" if item.marker else asked)
            lines.append(f"Requires-Dist: {item}")
    groups = {
        "console_scripts": project.get("scripts", {}),
        "gui_scripts": project.get("gui-scripts", {}),
    }
    groups |= project.get("entry-points", {})
    points = [
        f"[{group}]\n" + "".join(f"{key} = {groups[group][key]}\n" for key in groups[group])
        for group in groups
    ]
    wheel = "Wheel-Version: 1.0\nGenerator: cloudtrain\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {
        "METADATA": "\n".join((*lines, "")),
        "WHEEL": wheel,
        "entry_points.txt": "\n".join(points),
    }


def _archive(files: dict[str, tuple[bytes, bool]], record: str) -> bytes:
    """Return a wheel. It is not compressed, because libraries compress differently, and the bundle
    is compressed."""
    rows, output = f"{record},,\n", io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name in (*sorted(files), record):
            content, executable = files[name] if name != record else (rows.encode(), False)
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            rows += f'"{name.replace(chr(34), chr(34) * 2)}",sha256={digest},{len(content)}\n'
            info = zipfile.ZipInfo(name)  # of 1980-01-01
            info.create_system, info.external_attr = 3, (0o100755 if executable else 0o100644) << 16
            archive.writestr(info, content)
    return output.getvalue()
