"""One training image of AWS, with its CUDA version, training toolkit and SageMaker libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from cloudtrain.errors import JobError, Problem, did_you_mean, quoted
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject

# The two tables behind the image catalogue. Each is read on first use.
#
# `images.json` is generated from the SDKs; `image_facts.json` is written by hand, each fact with
# its source.

DATA = Path(__file__).with_name("data")


class ImageEntry(NamedTuple):
    """One image of the SDKs' lists, with all its Python versions, devices and regions."""

    version: str
    repository: str
    python: Sequence[str]
    devices: Sequence[str]
    sdk: int
    registry: int
    base: str = ""
    suffix: Mapping[str, str] = {}
    """The end of the tag, by device."""
    bare: bool = False
    """Whether the tag leaves out device and Python, as all tags from PyTorch 2.11 on do."""
    beside: str = ""
    """The repository whose registries an image is taken to share that no SDK lists."""
    in_test: str = ""
    """The ISO date on which AWS was still testing the image; empty for released images."""

    @property
    def accounts(self) -> Mapping[str, str]:
        """Map each region to the account whose registry has the image."""
        return registries()[self.registry]


def _read(name: str) -> JsonMapping:
    content: JsonObject = json.loads((DATA / name).read_text(encoding="utf-8"))
    return content


@cache
def tables() -> JsonMapping:
    return _read("images.json")


@cache
def facts() -> JsonMapping:
    return _read("image_facts.json")


@cache
def registries() -> tuple[Mapping[str, str], ...]:
    """Return tables that map regions to accounts. Images of the same accounts and regions share a
    table."""
    found: list[Mapping[str, str]] = []
    for table in tables()["registries"]:
        account_of: dict[str, str] = {}
        for account, regions in table.items():
            account_of |= dict.fromkeys(regions.split(), account)
        found.append(account_of)
    return tuple(found)


@cache
def rows(framework: str) -> tuple[ImageEntry, ...]:
    """Return a framework's images, oldest first.

    The framework `pytorch-smp` stands for PyTorch with model parallelism library v2, which has
    separate images.
    """
    listed = tables()["frameworks"]
    registry_of = {row["repository"]: row["registry"] for row in listed["huggingface"]}
    entries: list[ImageEntry] = []
    for row in (*listed[framework], *facts()["unlisted"].get(framework, ())):
        python = [in_range("python", framework, row["version"], "python")]
        registry = registry_of.get(row.get("beside"))
        entries.append(ImageEntry(**{"python": python, "registry": registry, **row}))
    return tuple(sorted(entries, key=lambda entry: numbers(entry.version)))


def end_of_patches(framework: str, version: str) -> str:
    """Return the date on which AWS ends its security patches, such as `2026-08-06`; empty if it is
    unknown. Of versions that AWS no longer lists, it is `2024-03-15 or earlier`."""
    return in_range("patches", framework, version, "end")


def in_range(table: str, framework: str, version: str, field: str) -> str:
    """Return one fact about a framework's version: `field` of the row in `table` whose range
    contains the version; empty if no row's range contains it."""
    wanted = numbers(version)
    for fact in facts()[table]:
        if fact["framework"] != framework:
            continue
        if wanted < numbers(fact["from"]):
            continue
        last = numbers(fact["to"])  # empty for an open range
        if wanted[: len(last)] <= last:
            return str(fact[field])
    return ""


@cache
def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, for comparisons: (2, 10, 0) for `2.10.0`."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def whole_version(version: str, choices: Collection[str]) -> str | None:
    """Return `version` if it is in `choices`; for `2.8`, its newest patch release in `choices`;
    otherwise None."""
    if version in choices:
        return version
    if not re.fullmatch(r"\d+\.\d+", version):
        return None
    patches = [one for one in choices if one.startswith(f"{version}.")]
    return max(patches, key=numbers, default=None)


def newest(versions: Iterable[str]) -> str:
    return max(versions, key=numbers)


SMP2_REPOSITORY = "smdistributed-modelparallel"


class Image(NamedTuple):
    framework: str
    """`pytorch`, `tensorflow` or `huggingface`."""
    version: str
    """The framework's full version, such as `2.8.0`; for `huggingface`, the version of
    transformers."""
    python: str
    """`py312`; empty if the address does not name a Python version."""
    device: str
    """`gpu`, `cpu` or `neuron`."""
    registry: str
    """The registry's host, such as `763104351884.dkr.ecr.us-west-2.amazonaws.com`."""
    repository: str
    tag: str
    base: str = ""
    """For Hugging Face images: the base framework, such as `pytorch2.8.0`."""
    cuda: str = ""
    """`12.9`; empty if the image has no CUDA or its version is unknown."""
    toolkit: str | None = None
    """The newest version of sagemaker-training in any build of the image; older builds have older
    versions.

    None: unknown or not installed.
    """
    smddp: bool = False
    """Whether the image contains SageMaker's data parallel library."""
    smp: int = 0
    """The version of SageMaker's model parallelism library in the image: 1, 2, or 0 for none."""
    sdk: int = 0
    """The oldest major version of the SageMaker SDK that lists this image: 2, 3, or 0 for
    neither."""
    doubt: str | None = None
    """The reason why the image may be missing or broken although it has an address."""
    in_test: str = ""
    """The ISO date on which AWS was still testing the image; empty for released images."""

    @property
    def uri(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def engine(self) -> tuple[str, str]:
        """Return the framework and its version; for Hugging Face images, the base framework, such
        as PyTorch."""
        if self.framework == "huggingface":
            return split_base(self.base)
        return self.framework, self.version

    @property
    def python_version(self) -> tuple[int, ...]:
        """Return the Python version: (3, 12) for the tag `py312`, (3,) for `py3`; empty if the
        address names none."""
        return numbers(_python_version(self.python))


def describe_image(
    framework: str,
    version: str,
    python: str,
    device: str,
    address: tuple[str, str, str],
    base: str = "",
) -> Image:
    """Return an image with the facts from its `address` (registry, repository, tag) and the
    hand-written facts."""
    registry, repository, tag = address
    engine = (framework, version)
    if framework == "huggingface":
        engine = split_base(base)
    words = tag.split("-")
    # full tags contain `sagemaker`; images with short tags in the older repositories are all made
    # for SageMaker
    has_short_tag = "ec2" not in words and repository not in ("pytorch", "tensorflow")
    inside: JsonObject
    if has_short_tag or "sagemaker" in words:
        inside = _libraries(engine, device, repository)
    else:
        doubt = (
            f"`{tag}` is an image for EC2: it has no training toolkit, and nothing starts the "
            "script"
        )
        inside = {"doubt": doubt}
    if device == "gpu":
        inside["cuda"] = _cuda(engine, tag)
    for row in rows(framework):
        if (row.version, row.base, row.repository) == (version, base, repository):
            inside["sdk"] = row.sdk
            inside["in_test"] = row.in_test
            break
    if repository == SMP2_REPOSITORY:
        inside["sdk"] = 2
    return Image(framework, version, python, device, registry, repository, tag, base, **inside)


def packages_of(image: Image) -> Mapping[str, str] | None:
    """Return the packages of an image with their versions, by normalized name; None if AWS has not
    published its lock. `tools/generate/sagemaker_packages.py` writes the table."""
    if image.framework != "pytorch":
        return None
    by_image: Mapping[str, Mapping[str, str]] = _read("image_packages.json")["images"]
    return by_image.get(f"{_line_of(image.version)} {image.device}")


def _line_of(version: str) -> str:
    """Return the first two numbers of a version: `2.8` for `2.8.0`."""
    return ".".join(version.split(".")[:2])


def split_base(base: str) -> tuple[str, str]:
    """Split `pytorch2.8.0` into framework and version."""
    match = re.fullmatch(r"([a-z]+)(.*)", base)
    assert match is not None, base
    return match[1], match[2]


def _libraries(engine: tuple[str, str], device: str, repository: str) -> JsonObject:
    """Return the fields of `Image` for the toolkit and SageMaker's libraries. Only GPU images have
    the libraries."""
    framework, version = engine
    found: JsonObject = {"toolkit": in_range("toolkit", framework, version, "version") or None}
    if repository == SMP2_REPOSITORY:
        found["smp"] = 2
        entry = facts()["smp2"].get(version)
        if entry:
            found["smddp"] = entry["smddp"]
        else:
            published = ", ".join(smp_versions())
            found["doubt"] = (
                f"the SDK takes `{version}` for a PyTorch version, but AWS has published images of "
                f"the model parallelism library v2 only for PyTorch {published}"
            )
    elif device == "gpu":
        for fact in facts()["smp1"]:
            if framework == fact["framework"] and version in fact["versions"]:
                found["smp"] = 1
        found["smddp"] = bool(in_range("smddp", framework, version, "source"))
    return found


def _cuda(engine: tuple[str, str], tag: str) -> str:
    """Return the CUDA version, such as `12.9`, from the tag (`cu129`) if it names one, or else from
    `facts()`."""
    match = re.search(r"(?:^|-)cu(\d+)(\d)(?:-|$)", tag)
    if match:
        return f"{match[1]}.{match[2]}"
    framework, version = engine
    of_framework = facts()["cuda"].get(framework, {})
    return str(of_framework.get(_line_of(version), ""))


# Find the contents of an AWS image by its address.

_ADDRESS = (
    r"(?P<registry>public\.ecr\.aws/(?:deep-learning-containers|neuron)|"
    r"(?P<account>\d{12})\.dkr\.ecr\.[a-z0-9.-]+)"
    r"/(?P<repository>[a-z0-9._/-]+):(?P<tag>[\w.-]+)(?:@sha256:[0-9a-f]+)?"
)

_WITH_OTHER_TOOLKITS = (
    r"[^:]*/(mxnet-training|autogluon-training|sagemaker-(mxnet|scikit-learn|xgboost|chainer|"
    r"rl-[a-z-]+)|\S+-trcomp-training)[:@].*"
)
"""AWS's images outside of the catalogue whose toolkits start scripts (repositories in SDK
2.257.7)."""


def has_other_toolkit(uri: str) -> bool:
    """Return whether an AWS image, or a copy of it, has a training toolkit whose launchers
    cloudtrain does not know."""
    return image_of_uri(uri) is None and re.fullmatch(_WITH_OTHER_TOOLKITS, uri) is not None


def image_of_uri(uri: str) -> Image | None:
    """Return the catalogue entry of an AWS image, by its address.

    Returns None for images that are not from AWS, and for addresses that do not name the version:
    `latest`, or no tag.
    """
    match = re.fullmatch(_ADDRESS, uri)
    if match is None or match["repository"] not in facts()["repositories"]:
        return None
    repository = match["repository"]
    account = match["account"]
    is_of_aws = any(account in table.values() for table in registries())
    if account and not is_of_aws:
        return None
    framework: str
    framework, device = facts()["repositories"][repository]
    named_device = re.search(_DEVICE, match["tag"])
    if named_device is not None:
        device = device or named_device.lastgroup
    version, *words = match["tag"].split("-")
    if not device or not re.fullmatch(r"\d+(\.\d+)+", version):
        return None

    entries = [row for row in rows(framework) if row.repository == repository]
    base = ""
    if framework == "huggingface":
        engine = "tensorflow" if "tensorflow" in repository else "pytorch"
        known = [split_base(row.base)[1] for row in entries]
        base = engine + (whole_version(version, known) or version)
        entries = [row for row in entries if row.base == base]
        named = re.search(r"-transformers([^-]+)", match["tag"])
        if named is None:
            return None
        version = named[1]
    # the SDK copies a short version such as `1.13` into the tag, and AWS moves that tag to the
    # newest patch release
    version = whole_version(version, _versions_of(entries)) or version

    python = next((word for word in words if re.fullmatch(r"py\d+", word)), "")
    if not python:
        engine, engine_version = split_base(base) if base else (framework, version)
        python = in_range("python", engine, engine_version, "python")
    address = (match["registry"], repository, match["tag"])
    return describe_image(framework, version, python, device, address, base)


_DEVICE = r"-(?:(?P<gpu>gpu|cu\d+)|(?P<cpu>cpu)|(?P<neuron>neuron[^-]*))(?=-|$)"
"""Matches the part of a tag that names the device. A CUDA version such as `cu129` means `gpu`."""


# AWS's own training images: find the address for a framework and version, or the contents for an
# address.
#
# Addresses equal those of the SageMaker SDK (2.257.7) for the same framework, version, Python,
# device and region; later images come from the tables of SDK 3. `image_data` names the sources.

_TITLES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "huggingface": "Hugging Face"}
DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "neuron": "Trainium"}
_SMP2 = "SageMaker's model parallelism library v2"
_OWN_IMAGE = "give the address of an image as `environment.image`"
_TOO_NEW_FOR_P2 = {"pytorch": (1, 13), "tensorflow": (2, 12)}
"""The versions from which SDK 2 refuses ml.p2 types."""


def versions(framework: str, device: str | None = None) -> tuple[str, ...]:
    """Return the versions of a framework that have an image for `device`, or for any device, oldest
    first."""
    found: dict[str, None] = {}
    for row in rows(framework):
        if device is None or device in row.devices:
            found[row.version] = None
    return tuple(found)


def _versions_of(entries: Iterable[ImageEntry]) -> list[str]:
    return [entry.version for entry in entries]


def patched_instead(image: Image, today: str) -> dict[str, str]:
    """Map the versions to ask for instead of `image`, oldest first, to the end of their patches;
    empty if unknown.

    They are those that AWS still patches on that ISO date. Hugging Face's images have no dates of
    their own: of them it is the newest one, if it is newer.
    """
    if image.framework == "huggingface":
        released = [row for row in rows("huggingface") if not row.in_test]
        last = newest(row.version for row in released if image.device in row.devices)
        if numbers(last) <= numbers(image.version):
            return {}
        return {last: ""}

    with_date: dict[str, str] = {}
    without_date: dict[str, str] = {}
    for version in versions(image.framework, image.device):
        end = end_of_patches(image.framework, version)
        if not end:
            without_date[_line_of(version)] = end
        elif end >= today:
            with_date[_line_of(version)] = end
    return with_date or without_date


def smp_versions() -> tuple[str, ...]:
    """Return the PyTorch versions that have an image of model parallelism library v2, oldest
    first."""
    return tuple(facts()["smp2"])


def device_of(instance: str) -> str:
    """Return `gpu`, `cpu` or `neuron`, which the SDK decides by the family of the instance type."""
    family = _family(instance)
    if family.startswith("trn"):
        return "neuron"
    return "gpu" if family.startswith(("g", "p")) else "cpu"


def resolve_image(
    framework: str,
    version: str | None = None,
    *,
    region: str,
    device: str | None = None,
    instance: str = "",
    python: str | None = None,
    base: str | None = None,
    smp2: bool = False,
    smdistributed: bool = False,
) -> Image:
    """Return the image of a framework and version.

    Args:
        framework: `pytorch`, `tensorflow` or `huggingface`.
        version: full, `2.8.0`, or short, `2.8`, for its newest patch release. Default: the newest
            version.
        region: the region where the job runs; each has its own registry.
        device: `gpu`, `cpu` or `neuron`. Default: the device of `instance`.
        instance: the instance type. It selects between two variants of a few old images and of the
            first SMP v2 image.
        python: `3.12` or `py312`. Default: the newest Python of the version.
        base: for Hugging Face, the base framework, such as `pytorch2.8.0` or `pytorch2.8`.
        smp2: return the image of model parallelism library v2; `version` is then the PyTorch
            version.
        smdistributed: the job uses an smdistributed library, which matters for the old images.
    """
    if framework not in _TITLES:
        message = f"SageMaker has no images of `{framework}`"
        _fail("framework", message, f"{did_you_mean(framework, _TITLES)} Or {_OWN_IMAGE}")
    device = device or device_of(instance or "ml.g5.xlarge")
    query = _Query(framework, region, device, _python_tag(python), smp2)
    if smp2:
        return _smp2_image(query, version, instance)

    row = _row(query, version, base)
    too_new = _TOO_NEW_FOR_P2.get(framework, (99,))
    if _family(instance) == "p2" and numbers(row.version) >= too_new:
        message = (
            f"the image of {query.title} {row.version} does not run on `{instance}`, "
            "whose GPUs are too old"
        )
        hint = "choose a newer type, for example `ml.g5.xlarge`"
        raise JobError([Problem(("resources", "instance_type"), message, hint, code="CT033")])

    python_tag = _chosen_python(query, row)
    words = [row.version]
    if row.base:
        words = [split_base(row.base)[1], f"transformers{row.version}"]
    if not row.bare:
        words.append("neuronx" if row.repository.endswith("neuronx") else device)
        words.append(python_tag)
    suffix = row.suffix.get(device)
    if not suffix:
        suffix = _older_suffix(query, row, python_tag, instance, smdistributed)
    if suffix:
        words.append(suffix)
    address = _address(query, row, "-".join(words))
    return describe_image(framework, row.version, python_tag, device, address, row.base)


class _Query(NamedTuple):
    framework: str
    region: str
    device: str
    python: str | None
    smp2: bool

    @property
    def title(self) -> str:
        return _SMP2 if self.smp2 else _TITLES[self.framework]


def _row(query: _Query, version: str | None, base: str | None) -> ImageEntry:
    candidates = [row for row in rows(query.framework) if query.device in row.devices]
    if not candidates:
        message = f"SageMaker has no image of {query.title} for {DEVICES[query.device]}"
        _fail("framework", message, f"choose another instance type or framework, or {_OWN_IMAGE}")

    released = [row for row in candidates if not row.in_test]
    if version is None:  # the newest in the region that has the wanted Python, or else the newest
        here = [row for row in released if query.region in row.accounts] or released
        fitting = [row for row in here if query.python in (None, *row.python)] or here
        whole = newest(_versions_of(fitting))
    else:
        known = whole_version(version, _versions_of(candidates))
        whole = known or _unknown_version(query, version, _versions_of(released))
    of_version = [row for row in candidates if row.version == whole]
    return _pick_base(query, of_version, base)


def _unknown_version(query: _Query, version: str, choices: Sequence[str]) -> NoReturn:
    last = newest(choices)
    line = numbers(version)[:2]
    newer = [one for one in sorted(choices, key=numbers) if line and numbers(one)[:2] > line]
    near = whole_version(_line_of(version), choices) or next(iter(newer), last)
    use = f"use `{near}`"
    if near != last:
        use += f", or the newest, `{last}`"
    message = (
        f"SageMaker has no image of {query.title} `{version}` for {DEVICES[query.device]}; the "
        f"newest is `{last}`"
    )
    _fail("version", message, f"{use}; or {_OWN_IMAGE}")


def _pick_base(query: _Query, candidates: Sequence[ImageEntry], base: str | None) -> ImageEntry:
    """Return the entry with the wanted base framework. Default: the entry with the newest
    PyTorch."""
    if base is None:
        return max(candidates, key=lambda row: (row.base.startswith("pytorch"), numbers(row.base)))
    if query.framework != "huggingface":
        message = f"`base` applies to Hugging Face images, and this is {query.title}"
        _fail("base", message, "remove `base`")
    fitting = [row for row in candidates if row.base == base or row.base.startswith(f"{base}.")]
    if not fitting:
        message = f"no image of Hugging Face {candidates[0].version} is built on `{base}`"
        bases = quoted(row.base for row in candidates)
        _fail("base", message, f"use {bases}")
    return max(fitting, key=lambda row: numbers(row.base))


def _python_tag(python: str | None) -> str | None:
    if python is None:
        return None
    match = re.fullmatch(r"(?:py)?(\d)\.?(\d*)(?:\.\d+)?", python)
    if match is None:
        _fail("python", f"`{python}` is not a version of Python", "write for example `3.12`")
    return f"py{match[1]}{match[2]}"


def _chosen_python(query: _Query, row: ImageEntry, version: str | None = None) -> str:
    if query.python is None:
        return max(row.python, key=numbers)
    if query.python not in row.python:
        has = [_python_version(python) for python in row.python]
        message = (
            f"the image of {query.title} {version or row.version} has Python {' and '.join(has)}, "
            f"not {_python_version(query.python)}"
        )
        _fail("python", message, f"use {quoted(has, ' or ')}, or leave out `python`")
    return query.python


def _python_version(tag: str) -> str:
    """Return `3.12` for `py312`, and `3` for `py3`; empty for an empty tag."""
    digits = tag.removeprefix("py")
    version = f"{digits[:1]}.{digits[1:]}"
    return version.strip(".")


def _older_suffix(
    query: _Query, row: ImageEntry, python: str, instance: str, smdistributed: bool
) -> str:
    """Return the last part of the tag, `cu110-ubuntu18.04`, for images whose tag needs it; empty
    for all others.

    Called only for images without a suffix in the catalogue. Of these, Hugging Face images (with
    `row.base`) always need it. Some images of 2020 need it on p4d, or with an smdistributed
    library. The SDK uses the same rule.
    """
    if row.base:
        return "cu110-ubuntu18.04"
    if _family(instance) != "p4d" and not smdistributed:
        return ""
    key = f"{query.framework}-{row.version}-{query.device}-{python}"
    return str(facts()["older_gpu_tags"].get(key, ""))


def _address(query: _Query, row: ImageEntry, tag: str) -> tuple[str, str, str]:
    region = query.region
    account = row.accounts.get(region)
    if account is None:
        message = (
            f"`{region}` has no image of {query.title} {row.version} for {DEVICES[query.device]}"
        )
        regions = "one of the "
        near = get_close_matches(region, row.accounts, n=3)
        if near and not any(region in other.accounts for other in rows(query.framework)):
            message = f"`{region}` is not a region of AWS, as far as cloudtrain knows"
            hint = f"did you mean {quoted(near, ' or ')}?"
            raise JobError([Problem((), message, hint, code="CT034")])
        if near:
            regions = f"{quoted(near)} or another of the "
        hint = f"{_OWN_IMAGE}, or use {regions}{len(row.accounts)} regions that have it"
        raise JobError([Problem(("environment",), message, hint, code="CT034")])

    suffix = "amazonaws.com"
    for name, regions_of_suffix in tables()["suffixes"].items():
        if region in regions_of_suffix.split():
            suffix = name  # in China `amazonaws.com.cn`
    return f"{account}.dkr.ecr.{region}.{suffix}", row.repository, tag


def _smp2_image(query: _Query, version: str | None, instance: str) -> Image:
    """Return the image of model parallelism library v2.

    Like the SDK, this function also accepts a library version in place of the PyTorch version. The
    image's `doubt` then says that AWS has no such image.
    """
    if query.framework != "pytorch" or query.device != "gpu":
        other = f"{_TITLES[query.framework]} on {DEVICES[query.device]}"
        message = f"{_SMP2} is for PyTorch on GPUs, not {other}"
        _fail("framework", message, "use `framework: pytorch` and an instance type with GPUs")

    by_version = {row.version: row for row in rows("pytorch-smp")}
    # the library's version by that of PyTorch; the SDK accepts both
    aliases = tables()["smp_aliases"]
    real = smp_versions()
    whole = newest(real)
    if version is not None:
        known = whole_version(version, real) or whole_version(version, [*by_version, *aliases])
        whole = known or _unknown_version(query, version, real)

    row = by_version[aliases.get(whole, whole)]
    python = _chosen_python(query, row, whole)
    cuda = _smp2_cuda(whole, instance)
    address = _address(query, row, f"{whole}-gpu-{python}-{cuda}")
    return describe_image("pytorch", whole, python, "gpu", address)


def _smp2_cuda(version: str, instance: str) -> str:
    """The rule is that of sagemaker 2.257.7 (image_uris.py, get_training_image_uri)."""
    if "2.5" in version:
        return "cu124"
    is_newer = any(line in version for line in ("2.1", "2.2", "2.3", "2.4"))
    return "cu121" if is_newer or "p5" in instance else "cu118"


def _family(instance: str) -> str:
    """Return the family of an instance type: `p4d` for `ml.p4d.24xlarge`."""
    return instance.removeprefix("ml.").partition(".")[0]


def _fail(field: str, message: str, hint: str) -> NoReturn:
    raise JobError([Problem(("environment", field), message, hint, code="CT034")])


# The contents of an image that decide how a job starts, and the features of its version of the
# training toolkit.

Framework = Literal["pytorch", "tensorflow", "generic"]


class ImageContents(NamedTuple):
    """The facts about an image that decide how a job starts.

    Attributes:
        framework: the framework whose toolkit runs; `generic` for images without
            SAGEMAKER_TRAINING_MODULE.
        toolkit: the version of sagemaker-training.
        smddprun: whether the data-parallel library is installed.
        smddpmprun: whether the model-parallel library's wrapper is installed.
        torch: the version of PyTorch; None if unknown.
        training_module: the value of SAGEMAKER_TRAINING_MODULE in the image; None if unknown.
    """

    framework: Framework
    toolkit: str
    smddprun: bool = False
    smddpmprun: bool = False
    torch: str | None = None
    python: str = "python"
    training_module: str | None = None

    @property
    def version(self) -> tuple[int, ...]:
        return numbers(self.toolkit)

    def sets_efa(self, instance_type: str) -> bool:
        """Return whether the toolkit makes libfabric use EFA on instances of this type."""
        return self._knows(_EFA_SINCE, instance_type)

    def sets_rdma(self, instance_type: str) -> bool:
        """Return whether the toolkit lets EFA read and write GPU memory on instances of this
        type."""
        return self._knows(_RDMA_SINCE, instance_type)

    def _knows(self, since: Mapping[str, str], instance_type: str) -> bool:
        for version, names in since.items():
            if instance_type in names.split():
                return self.version >= numbers(version)
        return False


_EFA_SINCE = {
    "0": "ml.g4dn.8xlarge ml.g4dn.12xlarge ml.g5.48xlarge ml.p3dn.24xlarge ml.p4d.24xlarge "
    "ml.p4de.24xlarge "
    "ml.trn1.32xlarge",
    "4.9": "ml.p5.48xlarge",
    "5.1": "ml.p6e-gb200.36xlarge",
    "5.1.2": "ml.p5e.48xlarge",
}
_RDMA_SINCE = {
    "0": "ml.p4d.24xlarge ml.p4de.24xlarge ml.trn1.32xlarge",
    "5.1": "ml.p6e-gb200.36xlarge",
    "5.1.2": "ml.p5.48xlarge ml.p5e.48xlarge",
}
"""The toolkit's own lists of instance types, by the version that first has them.

The lists were read in 4.7.4, 4.9.0 and 5.0.0 to 5.1.4. They never had p5en, p6-b200, p6-b300, g6,
g6e, trn1n and trn2.
"""


def contents_of(image: Image | None, derived_from: Framework | None = None) -> ImageContents:
    """Return the parts of an image's contents that decide how the job starts.

    A user's own image is assumed to have no framework toolkit, except if it is derived from an AWS
    image.
    """
    if image is None and derived_from is not None:
        module = f"sagemaker_{derived_from}_container.training:main"
        return ImageContents(
            derived_from, _NEWEST_TOOLKIT, smddprun=True, smddpmprun=True, training_module=module
        )
    if image is None or image.toolkit is None:
        return ImageContents("generic", _NEWEST_TOOLKIT)
    name, version = image.engine
    framework: Framework = "tensorflow" if name == "tensorflow" else "pytorch"
    return ImageContents(
        framework,
        image.toolkit,
        smddprun=image.smddp,
        smddpmprun=image.smp == 1,
        torch=version if framework == "pytorch" else None,
        training_module=f"sagemaker_{framework}_container.training:main",
    )


_NEWEST_TOOLKIT = "5.1.4"
"""The sagemaker-training version assumed for a user's own image with the toolkit."""
