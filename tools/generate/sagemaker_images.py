"""Write the image catalogue of SageMaker from the tables inside its two SDKs, which cannot be installed together.

python tools/generate/sagemaker_images.py --v2 VENV --v3 VENV            write it
python tools/generate/sagemaker_images.py --v2 VENV --v3 VENV --check    exit code 1 when it is out of date

It is cloudtrain/targets/sagemaker/catalogue/data/images.json. VENV is a virtual environment with `sagemaker` 2 (which
brings botocore), and one with `sagemaker-core` 2. Version 2's data is used unchanged; version 3 adds later versions and
regions. Images that have only Python 2 are left out. Facts that neither SDK has are in data/image_facts.json, written
by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from written import write_or_check

DATA = Path(__file__).parents[2] / "cloudtrain" / "targets" / "sagemaker" / "catalogue" / "data"
TARGET = DATA / "images.json"

LINES = {
    "pytorch": "pytorch",
    "pytorch-amzn2023": "pytorch",
    "tensorflow": "tensorflow",
    "huggingface": "huggingface",
    "huggingface-neuronx": "huggingface",
    "pytorch-neuron": "pytorch",
    "pytorch-smp": "pytorch-smp",
}
"""Maps the SDKs' tables to the frameworks of the catalogue."""

NAMES = {"trn": "neuron", "inf": "neuron"}
"""Maps the SDKs' words for a device to ours. For Hugging Face's training images they say `inf`, but mean Trainium."""

Table = dict[str, Any]


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--v2", type=Path, required=True)
    parser.add_argument("--v3", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = document(arguments.v2, arguments.v3)
    return write_or_check(TARGET, text, __file__)


def document(v2: Path, v3: Path) -> str:
    """Return the whole file."""
    registries: list[dict[str, str]] = []
    frameworks: dict[str, list[Table]] = {}
    for table, framework in LINES.items():
        old = rows(v2, "sagemaker/image_uri_config", table)
        new = rows(v3, "sagemaker/core/image_uri_config", table)
        for key, row in {**new, **old}.items():
            regions = {**new.get(key, row)["regions"], **row["regions"]}
            entry = {name: value for name, value in row.items() if name != "regions" and value}
            entry |= {"registry": index_of(regions, registries), "sdk": 2 if key in old else 3}
            frameworks.setdefault(framework, []).append(entry)
    for entries in frameworks.values():
        entries.sort(
            key=lambda entry: (
                *numbers(entry["version"]),
                entry.get("base", ""),
                entry["repository"],
            )
        )
    smp = json.loads((site(v2) / "sagemaker/image_uri_config/pytorch-smp.json").read_text())[
        "training"
    ]
    content = {
        "source": {
            "sagemaker": release(v2, "sagemaker"),
            "sagemaker-core": release(v3, "sagemaker_core"),
        },
        "suffixes": suffixes(
            v2, sorted({region for accounts in registries for region in accounts})
        ),
        "registries": [by_account(accounts) for accounts in registries],
        "smp_aliases": smp["version_aliases"],
        "frameworks": frameworks,
    }
    return compact(content)


def rows(environment: Path, folder: str, table: str) -> dict[tuple[str, ...], Table]:
    """Return each image of one table of one SDK, by version, base, repository and Pythons."""
    file = site(environment) / folder / f"{table}.json"
    if not file.exists():
        return {}
    content = json.loads(file.read_text())
    training = content.get("training", content)
    found = {}
    for version, entry in training.get("versions", {}).items():
        for inner, image in leaves(entry):
            row = row_of(version, inner, image, training.get("processors"))
            if row is not None:
                found[(version, inner, row["repository"])] = row
    return found


def leaves(entry: Table) -> list[tuple[str, Table]]:
    """Return the images of one version: one, or one for each base framework or Python, by that name."""
    if "registries" in entry:
        return [("", entry)]
    return [
        (key, value)
        for key, value in entry.items()
        if isinstance(value, dict) and "registries" in value
    ]


def row_of(version: str, inner: str, image: Table, devices: list[str]) -> Table | None:
    """Return one row of the catalogue; None for an image that has only Python 2."""
    by_python = inner.startswith("py") and inner[2:].isdigit()
    pythons = [inner] if by_python else image.get("py_versions", [])
    if pythons and not set(pythons) - {"py2"}:
        return None
    sdk = max(image.get("sdk_versions", [""]), key=numbers)
    tails = {
        NAMES.get(device, device): tail
        for device, tail in image.get("container_version", {}).items()
    }
    return {
        "version": version,
        "base": "" if by_python else inner,
        "repository": image["repository"],
        "python": [python for python in pythons if python != "py2"],
        "devices": [NAMES.get(device, device) for device in devices],
        "suffix": {device: f"{sdk}-{tail}" if sdk else tail for device, tail in tails.items()},
        "bare": not image.get("processor_in_tag", True),
        "regions": image["registries"],
    }


def index_of(regions: dict[str, str], registries: list[dict[str, str]]) -> int:
    """Return the index of a table of accounts in the list of all. A new table is added."""
    if regions not in registries:
        registries.append(regions)
    return registries.index(regions)


def by_account(accounts: dict[str, str]) -> dict[str, str]:
    """Invert a mapping of region to account, because most regions share one account."""
    found: dict[str, list[str]] = {}
    for region, account in sorted(accounts.items()):
        found.setdefault(account, []).append(region)
    return {account: " ".join(regions) for account, regions in found.items()}


def suffixes(environment: Path, regions: list[str]) -> dict[str, str]:
    """Map DNS suffix to regions, for all regions outside `amazonaws.com`, from that environment's botocore."""
    program = (
        "import json, sys; from botocore.loaders import create_loader; from botocore.regions import EndpointResolver;"
        "resolver = EndpointResolver(create_loader().load_data('endpoints'));"
        "found = {r: resolver.construct_endpoint('ecr', r) for r in sys.argv[1:]};"
        "print(json.dumps({r: e['hostname'].split('.', 2)[2] for r, e in found.items() if e}))"
    )
    command = [str(environment / "bin" / "python"), "-c", program, *regions]
    hosts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found: dict[str, list[str]] = {}
    for region in regions:
        suffix = hosts.get(region, "amazonaws.com")
        if suffix != "amazonaws.com":
            found.setdefault(suffix, []).append(region)
    return {suffix: " ".join(regions) for suffix, regions in found.items()}


def site(environment: Path) -> Path:
    """Return the environment's folder of installed packages."""
    return next(environment.glob("lib/python3*/site-packages"))


def release(environment: Path, name: str) -> str:
    """Return the version of a package installed there."""
    info = next(site(environment).glob(f"{name}-[0-9]*.dist-info"))
    return info.name.removesuffix(".dist-info").rpartition("-")[2]


def numbers(version: str) -> tuple[int, ...]:
    """Return `2.10.0` as (2, 10, 0), to sort by; letters are left out."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("."))


def compact(content: Table) -> str:
    """Return JSON with one image or table a line, so that a difference is readable."""
    lines = ["{"]
    for key in ("source", "suffixes", "smp_aliases"):
        lines.append(f"{json.dumps(key)}:{json.dumps(content[key])},")
    lines.append('"registries":[')
    lines.append(
        ",\n".join(json.dumps(table, separators=(",", ":")) for table in content["registries"])
    )
    lines.append('],\n"frameworks":{')
    blocks = []
    for framework, entries in content["frameworks"].items():
        body = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
        blocks.append(f"{json.dumps(framework)}:[\n{body}\n]")
    lines += [",\n".join(blocks), "}}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
