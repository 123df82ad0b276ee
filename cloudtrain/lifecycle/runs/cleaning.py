"""Cleanup of the state folder: unused archives and environments, and interrupted removals."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.lifecycle.runs.find import run
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.lifecycle.store.store import UNFINISHED
from cloudtrain.system.files import LEFT_OVER, METRICS, READING, folder_size, remove_folder

ARCHIVE_AGE = 24 * 3600.0
"""Seconds after which the archive of a submit's code is certainly no longer being sent, and an
incomplete environment is no longer being built."""

ENVIRONMENT_AGE = 14 * ARCHIVE_AGE
"""Seconds after which an environment that no submit has requested is removed."""


def clean(state_dir: Path) -> None:
    """Remove archives of code that no submit has used for a day and environments that no submit has
    used for two weeks, and finish interrupted removals.

    Raises:
        OSError: a folder cannot be removed.
    """
    folders = list(_folders(state_dir / "bundles"))
    folders += filter(Path.is_dir, (state_dir / METRICS).glob(f"{READING}*"))
    for folder in folders:
        if folder.stat().st_mtime < time.time() - ARCHIVE_AGE:
            remove_folder(folder)
    with read_store(state_dir) as store:
        _clean_environments(state_dir, are_used=bool(store.newest(states=UNFINISHED, limit=1)))
        for folder in _folders(state_dir / "runs"):
            if folder.name.endswith(LEFT_OVER) or store.was_removed(folder.name):
                remove_folder(folder.with_name(folder.name.removesuffix(LEFT_OVER)))


def _folders(parent: Path) -> Iterator[Path]:
    """Yield the folders and links to folders in `parent`; nothing if it does not exist."""
    with suppress(FileNotFoundError):
        yield from list(filter(Path.is_dir, parent.iterdir()))


# Environments. A link KEY leads to KEY-RANDOM/env, once that is complete; KEY.log and KEY.lock lie
# beside it. The time of KEY-RANDOM is when a submit last asked for the environment.

_ENVIRONMENTS = "environments"


def kept_environments(state_dir: Path) -> list[dict[str, Any]]:
    """Return facts about the complete environments on this machine as JSON data, the last used
    first: its key, folder, and size in bytes; when a submit last asked for it; its Python; the file
    that it was built from with the number of packages, both None if no run says it; and the runs
    that used it, newest first."""
    links = list(filter(Path.exists, environment_links(state_dir)))
    found = []
    with read_store(state_dir) as store:
        # what the request of a run in the environment contains, on any target
        users = store.naming(f"/{_ENVIRONMENTS}/{link.name}" for link in links)
        for link, runs in zip(links, users.values(), strict=True):
            home = link.resolve().parent
            record = store.kept(runs[0]) if runs else None
            plan = {} if record is None else record.plan
            wanted = plan.get("environment", {}).get("requirements", {})
            packages = wanted.get("packages")
            facts = {
                "key": link.name,
                "folder": str(home),
                "size": folder_size(home),
                "used": home.stat().st_mtime,
                "python": _python_of(link / "pyvenv.cfg"),
                "requirements": wanted.get("file"),
                "packages": None if packages is None else len(packages),
                "runs": runs,
            }
            found.append(facts)
    return sorted(found, key=lambda facts: float(facts["used"]), reverse=True)


def _python_of(file: Path) -> str | None:
    """Return the version of Python that an environment's configuration names."""
    settings = file.read_text("utf-8", "replace") if file.exists() else ""
    version = re.search(r"(?m)^version(?:_info)? = (\d[\d.]*\d)", settings)
    return version and version[1]


def remove_environments(keys: Sequence[str], state_dir: Path) -> None:
    """Remove environments: all, or none if one does not exist or is used by a run that has not
    ended (UsageError)."""
    runs = {item["key"]: item["runs"] for item in kept_environments(state_dir)}
    for key in keys:
        if key not in runs:
            hint = (
                did_you_mean(key, runs)
                or "`cloudtrain submit job.yaml --build-environment` builds one"
            )
            raise UsageError(f"there is no environment `{key}`", hint=hint, code="CT929")
        for name in runs[key]:
            state = run(name).state
            if not state.is_final:
                hint = f"`cloudtrain wait {name}` waits for it, `cloudtrain stop {name}` stops it"
                raise UsageError(f"`{name}` is {state} in `{key}`", hint=hint, code="CT954")

    for key in dict.fromkeys(keys):
        _remove_environment(state_dir / _ENVIRONMENTS / key)


def environment_links(state_dir: Path) -> list[Path]:
    """Return the links of all environments, also of those whose folder is gone, by their key."""
    return sorted(filter(Path.is_symlink, (state_dir / _ENVIRONMENTS).glob("*")))


def _clean_environments(state_dir: Path, *, are_used: bool) -> None:
    """Remove the remains of interrupted builds, and broken links. Also remove environments that no
    submit has used for two weeks. If `are_used`, unfinished runs may use these environments, so
    they are kept."""
    links = {link.resolve().parent: link for link in environment_links(state_dir)}

    # Listed before anything is removed: a link that is gone is no longer known as one.
    folders = [item for item in _folders(state_dir / _ENVIRONMENTS) if not item.is_symlink()]
    for folder in folders:
        age = time.time() - folder.stat().st_mtime
        link = links.get(folder.resolve())
        if link is not None and age > ENVIRONMENT_AGE and not are_used:
            _remove_environment(link)
        elif link is None and age > ARCHIVE_AGE:
            remove_folder(folder)
    for link in links.values():
        if link.is_symlink() and not link.exists():
            _remove_environment(link)


def _remove_environment(link: Path) -> None:
    """Remove an environment's link first, so that no submit finds half of it; then its folder, log
    and lock."""
    home = link.resolve().parent
    for ending in ("", ".log", ".lock"):
        link.with_name(link.name + ending).unlink(missing_ok=True)
    if home.parent == link.parent.resolve():  # no other folder, wherever the link leads
        remove_folder(home)
