"""Write what the SageMaker service accepts, from the service model of the installed botocore.

python tools/generate/sagemaker_shapes.py            write cloudtrain/targets/sagemaker/catalogue/data/shapes.json
python tools/generate/sagemaker_shapes.py --check    exit code 1 when that file is not what botocore says

It contains only the requests that cloudtrain sends, with names, types and limits, without documentation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from written import write_or_check

DATA = Path(__file__).parents[2] / "cloudtrain" / "targets" / "sagemaker" / "catalogue" / "data"
TARGET = DATA / "shapes.json"

OPERATIONS = ("CreateTrainingJob", "CreateProcessingJob")

LIMITS = ("min", "max", "pattern", "enum")


def document() -> str:
    """Return the whole file."""
    import botocore
    from botocore.loaders import create_loader

    model = create_loader().load_service_model("sagemaker", "service-2")
    inputs = {name: model["operations"][name]["input"]["shape"] for name in OPERATIONS}
    shapes: dict[str, Any] = {}
    for name in inputs.values():
        collect(model["shapes"], name, shapes)
    head = json.dumps({"botocore": botocore.__version__, "operations": inputs})
    lines = [
        f"{json.dumps(name)}:{json.dumps(shapes[name], separators=(',', ':'))}"
        for name in sorted(shapes)
    ]
    return f'{head[:-1]},"shapes":{{\n' + ",\n".join(lines) + "\n}}\n"


def collect(model: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    """Add a shape and all shapes that it refers to."""
    if name in found:
        return
    shape = model[name]
    entry = {"type": shape["type"]} | {limit: shape[limit] for limit in LIMITS if limit in shape}
    references = {
        part: shape[part]["shape"] for part in ("member", "key", "value") if part in shape
    }
    found[name] = entry
    entry |= references
    if shape["type"] == "structure":
        entry["members"] = {
            member: reference["shape"] for member, reference in shape["members"].items()
        }
        entry |= {"required": shape["required"]} if shape.get("required") else {}
    for reference in (*references.values(), *entry.get("members", {}).values()):
        collect(model, reference, found)


def main() -> int:
    """Write or check the file."""
    return write_or_check(TARGET, document(), __file__)


if __name__ == "__main__":
    sys.exit(main())
