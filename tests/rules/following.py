"""Does what a hint says, as a user would: its words become changes of the job, the settings or the files.

A hint is one or several ways out (`..., or ...`), and each way is one or several steps (`..., and ...`). Every step that
can be typed is read by its words alone; a way with no such step is one for a human, and is left out.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import yaml

import cloudtrain as ct
from cloudtrain.documents.document import read_document
from cloudtrain.job.overrides import override
from cloudtrain.machines.overlay import read_overlay
from cloudtrain.plans.plan import Finding
from tests.hints import suggested, words_before_name
from tests.rules import sagemaker_rule_cases as aws
from tests.rules import test_rules as local

Path = tuple[str | int, ...]

FILLED = {
    "REGISTRY/REPOSITORY:TAG": "ghcr.io/me/train:1", ":TAG": ":rocm7.0", ":VERSION": ":5", "versions/VERSION": "versions/5",
    "iam::ACCOUNT:": "iam::123456789012:", ":role/NAME": ":role/R", "DIGEST": "0a" * 32, "/PATH": "/x", "=PATH": "=/",
    "s3://BUCKET/KEY": "s3://my-bucket/key", "s3://...": "s3://my-bucket/ckpt",
    "inputs.NAME}": "inputs.train}", '"NAME"': '"w-s"', "datastores/NAME/paths": "datastores/blobs/paths",
    "azureml://...": "azureml://datastores/workspaceblobstore/paths/ckpt",
    "AAAA...": "AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample me@host",
    '"..."': '"99999999-2222-3333-4444-555555555555"',
}  # fmt: skip
"""What a user writes for the words in capitals."""

OVERRIDES = ("sagemaker_overrides", "azureml_overrides")


class Human(Exception):
    """A step that says what to do, but not what to type."""


class Follower:
    """A case that is changed step by step."""

    def __init__(self, case: Any, finding: Finding, ignore: tuple[str, ...] = ()) -> None:
        self.case = case
        self.finding = finding
        self.ignore = ignore
        made = (
            ct.TrainingJob(**{"name": "job", "entry_point": "train.py", **case.job})
            if _local(case)
            else case.training_job
        )
        self.job: dict[str, Any] = made.model_dump(mode="json", exclude_unset=True)
        self.target: dict[str, Any] = (
            case.target.model_dump(exclude_unset=True)
            if _local(case)
            else copy.deepcopy(case.target)
        )
        self.files = dict(case.files)
        self.account = None if _local(case) else case.account
        self.service = (
            "local" if _local(case) else "sagemaker" if isinstance(case, aws.Case) else "azureml"
        )

    def changed(self) -> Any:
        """The case after the steps."""
        if _local(self.case):
            return replace(
                self.case, job=self.job, target=ct.Local(**self.target), files=self.files
            )
        unset = dict.fromkeys(("entry_point", "resources", "environment", "max_runtime"))
        return replace(
            self.case,
            job=unset | self.job,
            target=self.target,
            account=self.account,
            files=self.files,
        )

    # Where a value stands

    def at(self, path: Path) -> Any:
        """What the job says there; None for nothing."""
        found: Any = self.job
        for part in path:
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and isinstance(part, int) and part < len(found):
                found = found[part]
            else:
                return None
        return found

    def put(self, path: Path, value: Any) -> None:
        """Write it there; mappings on the way are made. A mapping is merged with what is there."""
        holder: Any = self.job
        for part in path[:-1]:
            holder = holder[part] if isinstance(holder, list) else holder.setdefault(part, {})
        if path == ("distribution",):
            value = {"type": self.job.get("distribution", {}).get("type", "none")} | value
        old = holder[path[-1]] if isinstance(holder, list) else holder.get(path[-1])
        if isinstance(old, dict) and isinstance(value, dict):
            for key, inner in value.items():
                self.put((*path, key), inner)
        else:
            holder[path[-1]] = value
        if path == ("distribution", "type"):
            override(self.job, [f"distribution.type={value}"])

    def drop(self, path: Path) -> None:
        """Remove it, and what is empty then."""
        holder = self.at(path[:-1])
        if not holder or (isinstance(holder, dict) and path[-1] not in holder):
            raise Human(f"nothing at {path}")
        holder.pop(path[-1])
        if not holder and len(path) > 1:
            self.drop(path[:-1])

    def rename(self, path: Path, name: str) -> None:
        """Another key for the same value."""
        holder = self.at(path[:-1])
        holder[name] = holder.pop(path[-1])

    # The steps

    def value(self, text: str) -> None:
        """A suggestion of X, or `write X`: a value, or a key, at the place of the finding."""
        path = self.finding.path
        old, key = self.at(path), str(path[-1]) if path else ""
        quoted = self.finding.message
        text = (
            yaml.safe_load(text)
            if text in ("true", "false")
            else int(text)
            if isinstance(old, int) and text.isdecimal()
            else text
        )
        names = (
            path[:1] != ("metrics",)
            and f"`{key}`" in quoted
            and f"`{old}`" not in quoted
            and ":" not in str(text)
        )
        if names:
            self.rename(path, text)
            return
        if not path or isinstance(old, list) or (isinstance(old, dict) and path[0] in OVERRIDES):
            raise Human("where?")
        if path[0] == "resources" and path[-1] in ("gpu", "interconnect"):
            self.job["resources"] = {
                "instance_count": self.job["resources"].get("instance_count", 1)
            }
            path, old = ("resources", "instance_type", self.service), None
        if isinstance(old, dict) and self.service in old and len(set(old.values())) > 1:
            path, old = (*path, self.service), old.get(self.service)
        if (
            isinstance(old, str)
            and isinstance(text, str)
            and (start := re.match(r"(inputs|outputs)\.", text))
        ):
            wrong = re.search(rf"\$\{{\{{({start[1]}\.[^}}]*)\}}\}}", quoted)
            assert wrong
            self.put(path, old.replace(wrong[1], text))
        else:
            self.put(path, text)

    def mapping(self, text: str, under: str | None) -> None:
        """`field: value`, under a field that is named, beside the finding's place, or at the top."""
        data, path = yaml.safe_load(text), self.finding.path
        ((name, value),) = data.items()
        if under:
            home: Path = tuple(under.split("."))
        elif path and path[-1] == name:
            home = path[:-1]
        elif name in ct.TrainingJob.model_fields:
            home = ()
        else:
            home = path if isinstance(self.at(path), dict) or not path[1:] else path[:-1]
        self.put((*home, name), value)

    def setting(self, text: str) -> None:
        """A line of `cloudtrain.toml`, under the target's table."""
        ((name, value),) = read_document(text, "toml").data.items()
        if self.account is not None and name in self.account._fields:
            left = tuple(item for item in self.account.missing if item != name)
            self.account = self.account._replace(**{name: value, "missing": left})
        elif name in ("ssh_public_key", "log_dir"):
            (service,) = self.target["services"]
            self.target["services"] = {service: self.target["services"][service] | {name: value}}
        else:
            self.target[name] = value

    def instances(self, table: str, line: str, needs: str = "") -> None:
        """A line of `instances.toml`, with the columns that it needs beside it."""
        more = "".join(f"{column} = 64\n" for column in re.findall(r"`(\w+)`", needs))
        overlay = read_overlay(
            read_document(f"{table}\n{line}\n{more}", "toml").data, "instances.toml"
        )
        self.account = self.account._replace(overlay=overlay)

    def number(self, field: str, value: str) -> None:
        """`set FIELD to VALUE`."""
        if field in self.target:
            self.target[field] = int(value)
            return
        path = self.finding.path
        written: Any = int(value) if value.isdecimal() else value
        if "." in field:
            home: Path = tuple(field.split("."))
        elif field in ct.TrainingJob.model_fields:
            home = (field,)
        else:
            home = (*path[:-1], field) if path and path[-1] == field else (*path, field)
        self.put(home, written)

    def remove(self, name: str, home: str | None) -> None:
        """`remove NAME`, from the job, the overrides or the settings."""
        path = self.finding.path
        bare = re.split(r"[:=]", name)[0].strip()
        if home == "docker_args" or name.startswith("-x "):
            place = self.target if home == "docker_args" else self.job["distribution"]
            field = "docker_args" if home == "docker_args" else "options"
            old = place[field]
            words = [*old] if isinstance(old, tuple) else shlex.split(old)
            if name.startswith("-x "):
                at = next(
                    number
                    for number, word in enumerate(words)
                    if word.partition("=")[0] == name[3:]
                )
                words[at - 1 : at + 1] = []
            kept = [word for word in words if not word.startswith(name)]
            place[field] = (tuple(kept) if home == "docker_args" else shlex.join(kept)) or None
            if not kept:
                del place[field]
        elif home and ("." in home or home in ct.TrainingJob.model_fields):
            above = tuple(home.split("."))
            self.drop(
                (*above, name) if name in (self.at(above) or {}) else (*above, *name.split("."))
            )
        elif path and bare in (path[-1], self.at(path)):
            self.drop(path)
        elif bare in self.target:
            del self.target[bare]
        elif bare in self.job:
            del self.job[bare]
        else:
            self.drop((*path[:-1], bare) if path[1:] else (*path, bare))

    def file(self, line: str) -> None:
        """A line of `.cloudtrainignore`."""
        self.files[".cloudtrainignore"] = self.files.get(".cloudtrainignore", "") + f"{line}\n"

    def allow(self) -> None:
        """A comment in the line that the message names."""
        place = re.search(r"`([^`]+):(\d+)`", self.finding.message)
        assert place
        lines = self.files[place[1]].splitlines()
        lines[int(place[2]) - 1] += "  # gitleaks:allow"
        self.files[place[1]] = "\n".join(lines)

    def move(self, name: str) -> None:
        """A file that the job names gets another name."""
        self.files[name] = self.files.pop(self.at(self.finding.path))
        self.put(self.finding.path, name)

    def apart(self, one: str, two: str) -> None:
        """Two outputs get places of their own."""
        names = re.findall(r"output `(\w+)`|the checkpoint", self.finding.message)[:2]
        for name, place in zip(names, (one, two), strict=True):
            self.put((*(("outputs", name) if name else ("checkpoint",)), self.service), place)

    def alone(self, name: str) -> None:
        """One instance of that type."""
        self.put(("resources", "instance_type", self.service), name)
        self.put(("resources", "instance_count"), 1)

    def fewer(self, count: int) -> None:
        """Without so many entries of a mapping."""
        holder = self.at(self.finding.path)
        for key in list(holder)[:count]:
            del holder[key]

    def shorter(self, most: int) -> None:
        """The beginning of a text."""
        self.put(self.finding.path, self.at(self.finding.path)[:most])

    def flags(self, text: str) -> None:
        """What is typed after the command."""
        words = iter(shlex.split(text))
        for flag in words:
            value = next(words)
            if flag == "--set":
                _, changes = override(self.job, [value])
                assert not changes.problems, changes.problems
            elif flag == "--ignore":
                self.ignore += (value,)
            else:
                field = {"--instances": "instance_count"}.get(flag, flag[2:].replace("-", "_"))
                self.target[field] = int(value) if value.isdecimal() else value


_Q = r"`(?P<{}>[^`]+)`"
_STEPS: list[tuple[str, Callable[[Follower, re.Match[str]], None]]] = [
    (rf"add (?:the line )?{_Q.format('line')} to `\.cloudtrainignore`", lambda do, m: do.file(m["line"])),
    (
        rf"write {_Q.format('line')}(?P<needs> with [^\[]*)? under `(?P<table>\[[^`]+\..*\])` in `instances.toml`",
        lambda do, m: do.instances(m["table"], m["line"], m["needs"] or ""),
    ),
    (
        r"write `(?P<table>\[[^`]+\])` and below it (?P<lines>`[^\]]+`) into `instances.toml`",
        lambda do, m: do.instances(m["table"], "\n".join(re.findall("`([^`]+)`", m["lines"]))),
    ),
    (r"(?:set|and) `(?P<field>[\w.]+)` to (?:at least |at most )?`?(?P<value>\d[\w.]*)`?", lambda do, m: do.number(m["field"], m["value"])),
    (r"`(?P<flags>--(?:ignore|set|python|instances|launcher)[ =][^`]+)`", lambda do, m: do.flags(m["flags"])),
    (rf"(?:folder of its own|read a folder): {_Q.format('text')}", lambda do, m: do.value(m["text"])),
    (r"leave `(?P<name>\w+)` out", lambda do, m: do.target.pop(m["name"])),
    (r"leave out `--(?P<flag>[\w-]+)`", lambda do, m: do.target.pop(m["flag"].replace("-", "_"))),
    (r"write `gitleaks:allow` into a comment in that line", lambda do, m: do.allow()),
    (rf"rename it, to {_Q.format('name')}", lambda do, m: do.move(m["name"])),
    (r"list what it needs in a file", lambda do, m: do.files.update({"requirements.txt": "numpy\n"})),
    (r"make it an input", lambda do, m: do.put(("inputs", "train", do.service), do.at(do.finding.path))),
    (rf"write {_Q.format('text')} where its path belongs", lambda do, m: do.put(("command",), f"{do.job['command']} {m['text']}")),
    (r"write `(?P<one>[^`= ]+)` and `(?P<two>[^`= ]+)`$", lambda do, m: do.apart(m["one"], m["two"])),
    (r"remove (?P<count>\d+) of them", lambda do, m: do.fewer(int(m["count"]))),
    (r"shorten it to (?P<most>[\d,]+) characters", lambda do, m: do.shorter(int(m["most"].replace(",", "")))),
    (rf"instead of {_Q.format('name')}", lambda do, m: do.drop((*do.finding.path[:-1], m["name"]))),
    (
        r"(?:write|add|and|use)(?: for example)? `(?P<text>[A-Za-z_][^`]*?: [^`]+)`(?: under `(?P<under>[^`]+)`)?",
        lambda do, m: do.mapping(m["text"], m["under"]),
    ),
    (r"(?:write|add|and)(?: for example)? `(?P<text>[a-z_]+ = [^`]+)`", lambda do, m: do.setting(m["text"])),
    (rf"remove {_Q.format('name')}(?: (?:here )?from (?:`(?P<home>[^`]+)`|the (?:job|target)))?", lambda do, m: do.remove(m["name"], m["home"])),
    (r"(?:remove it|leave it out|remove one of them|remove the tier here)\b", lambda do, m: do.drop(do.finding.path)),
    (rf"use one {_Q.format('text')}", lambda do, m: do.alone(m["text"])),
    (
        rf"(?:{words_before_name(suggested('')).strip()}|write(?: for example| it as)?|use(?: for example| [Vv]ersion| PyTorch)?|call (?:it|one)) {_Q.format('text')}(?! is | lists )",
        lambda do, m: do.value(m["text"]),
    ),
]  # fmt: skip
"""The words of a step, and what it does. A part of a hint is read by the first that fits."""

_VERB = re.compile(r"[a-z]+(?: [A-Za-z]+)*? (?=`)")
_OR = re.compile(r"[,;]? [oO]r (?!more\b|less\b|newer\b)|; |\? Or ")
_COMMAND = re.compile(r"`(?:--|az |cloudtrain |docker )")


def ways(hint: str) -> list[str]:
    """The ways out that a hint offers; one that begins with a value has the verb of the one before it."""
    found: list[str] = []
    verb = ""
    for part in _OR.split(hint):
        text = f"{verb}{part}" if part.startswith("`") and not _COMMAND.match(part) else part
        begun = _VERB.match(text)
        verb = begun[0] if begun else verb
        found.append(text)
    return found


def followed(case: Any, finding: Finding) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Every way out that can be typed: its words, the case after it, and the rules that it ignores."""
    for way in ways(finding.hint or ""):
        text = way
        for capitals, word in FILLED.items():
            text = text.replace(capitals, word)
        do, taken = Follower(case, finding), 0
        spans: list[tuple[int, int]] = []
        try:
            for pattern, step in _STEPS:
                for match in re.finditer(pattern, text):
                    if not any(match.start() < end and start < match.end() for start, end in spans):
                        spans.append(match.span())
                        step(do, match)
                        taken += 1
        except Human:
            continue
        if taken:
            yield way, do.changed(), do.ignore


def _local(case: Any) -> bool:
    return isinstance(case, local.Case)
