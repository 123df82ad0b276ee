"""Bring the rest of the repository into the documents' site; `mkdocs.yml` names this file.

tools/site/landing.py makes the first page. READMEs are the pages of their folders, notebooks become pages, and files that a
page links to are copied. The reference of job files, of Python and of the runtime is made from the code. Links keep
their targets.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")

COLUMNS = re.compile(r"\S {2,}\S+ {2,}\S")
"""A line of a table, which must not wrap."""

SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and files that are not in docs/."""
    sys.path[:0] = [str(ROOT / "tools" / folder) for folder in ("site", "generate")]
    from landing import landing_page

    for page, text in (_made_of_code() | {"index.md": landing_page()}).items():
        files.append(File.generated(config, page, content=text))
    waiting = [
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
    ]
    waiting += [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("training_scripts/*/README.md"),
        *ROOT.glob("docs/*/*.md"),
    ]
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        if not file.is_relative_to(ROOT / "docs"):
            content = notebook_page(file) if file.suffix == ".ipynb" else file.read_bytes()
            files.append(File.generated(config, _place(file), content=content))
        if file.suffix == ".md":
            linked = {_linked(file, match[1]) for match in LINK.finditer(file.read_text("utf-8"))}
            new = {one for one in linked if one.is_file()} - seen
            seen |= new
            waiting += sorted(new)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to the places that `on_files` chose."""
    source = _source(page.file.src_uri)
    if source is None:
        return markdown

    def moved(match: re.Match[str]) -> str:
        target = _linked(source, match[1])
        place = (
            os.path.relpath(_place(target), Path(page.file.src_uri).parent)
            if target.exists()
            else match[1]
        )
        return Path(place).as_posix() + (match[2] or "")

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Serve from docs/assets what the theme would fetch from the web, so that the search works offline."""
    return output.replace(
        SHIM, Path(os.path.relpath(OWN_SHIM, Path(page.file.dest_uri).parent)).as_posix()
    )


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the page that is shown for missing pages."""
    return output_content.replace(SHIM, f"/{OWN_SHIM}")


def _linked(source: Path, link: str) -> Path:
    """Return the file that a link of a file leads to; for a folder, its README."""
    target = Path(os.path.normpath(source.parent / link))
    return target / "README.md" if target.is_dir() else target


def _place(file: Path) -> str:
    """Return the place of a repository's file in the site."""
    path = file.relative_to(ROOT).as_posix().removeprefix("docs/")
    path = "readme.md" if path == "README.md" else re.sub(r"/README\.md$", "/index.md", path)
    return re.sub(r"\.ipynb$", ".md", path)


@cache
def _source(place: str) -> Path | None:
    """Return the repository's file that a page is made from; None for pages made from code."""
    if place == "index.md":
        return None
    name = "README.md" if place == "readme.md" else re.sub(r"index\.md$", "README.md", place)
    candidates = [ROOT / "docs" / place, ROOT / name, ROOT / place]
    candidates.append(ROOT / re.sub(r"\.md$", ".ipynb", place))
    return next((file for file in candidates if file.is_file()), None)


def notebook_page(file: Path) -> str:
    """Return a notebook as a page: its texts, its code, and the outputs that `make notebooks` wrote."""
    parts: list[str] = []
    for cell in json.loads(file.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts.extend(map(_output, cell.get("outputs", ())))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return the richest form of one output."""
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'<img alt="the plot" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
        )
    if "text/html" in data:
        page = "\n".join(line for line in "".join(data["text/html"]).splitlines() if line.strip())
        return f'<div class="notebook-output">\n{page}\n</div>'
    text = "".join(output.get("text") or data.get("text/plain") or [])
    kind = ".printed .columns" if len(COLUMNS.findall(text)) > 1 else ".printed"
    return f"```{{.text {kind}}}\n{text.rstrip()}\n```"


def _made_of_code() -> dict[str, str]:
    return {
        "reference/job.md": "\n".join(_job_reference()),
        "reference/api.md": "\n".join(_api_reference()),
        "reference/runtime.md": "\n".join(_runtime_reference()),
    }


def _job_reference() -> Iterator[str]:
    """Yield the fields of a job file, from the JSON Schema."""
    from cloudtrain.job.schema import job_schema

    schema = job_schema()
    yield "# Job files\n\nA job in YAML, TOML or JSON. `cloudtrain schema` prints the JSON Schema of this page.\n"
    yield from _model("A training job", schema)
    for name, model in sorted(schema["$defs"].items()):
        if "properties" in model:
            yield from _model(name, model)


def _model(title: str, model: dict[str, Any]) -> Iterator[str]:
    required = model.get("required", ())
    yield f"## {title}\n\n{model.get('description', '')}\n\n| field | type | default | meaning |\n|---|---|---|---|"
    for name, field in model["properties"].items():
        default = (
            "required"
            if name in required
            else f"`{json.dumps(field['default'])}`"
            if field.get("default")
            else ""
        )
        meaning = " ".join(field.get("description", "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_type(field)} | {default} | {meaning} |"
    yield ""


def _type(field: dict[str, Any]) -> str:
    """Describe in words what a field takes."""
    if kinds := field.get("properties", {}).get("type", {}).get("enum"):
        return "fields of its `type`, below: " + ", ".join(f"`{kind}`" for kind in kinds)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "any" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value is not None)
    for kinds in (field.get("anyOf"), field.get("oneOf")):
        if kinds:
            return " or ".join(
                dict.fromkeys(_type(kind) for kind in kinds if kind.get("type") != "null")
            )
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return f"names to {_type(inner)}" if isinstance(inner, dict) else "object"
    return {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "`true` or `false`",
    }.get(str(field.get("type")), "any")


GROUPS = {
    "Functions": (
        "plan",
        "submit",
        "check",
        "run",
        "runs",
        "recover",
        "load_job",
        "bundled_job",
        "diff",
        "adopt",
        "load_sweep",
    ),
    "Jobs": (
        *(
            "TrainingJob",
            "Resources",
            "InstanceGroup",
            "Environment",
            "Input",
            "Output",
            "Checkpoint",
            "Spot",
        ),
        *("ProcessingJob", "ProcessingInput", "ProcessingOutput"),
    ),
    "Distributions": (
        "Torch",
        "DeepSpeed",
        "MPI",
        "Horovod",
        "TensorFlow",
        "SMDDP",
        "SMP",
        "NoDistribution",
    ),
    "Targets": ("Local", "SageMaker", "AzureML", "Slurm"),
    "Plans and runs": (
        "Plan",
        "Finding",
        "Level",
        "Run",
        "RunRef",
        "RunState",
        "RunStatus",
        "LogLine",
    ),
    "Sweeps and adoption": (
        "Sweep",
        "Range",
        "Objective",
        "StopEarly",
        "SweepRun",
        "Trial",
        "Adoption",
    ),
    "Errors": (
        "CloudtrainError",
        "JobError",
        "PreflightError",
        "RunNotFound",
        "SettingsError",
        "TargetError",
    ),
}


def _api_reference() -> Iterator[str]:
    """Yield every public name of `cloudtrain`."""
    import cloudtrain

    rest = sorted({*cloudtrain.__all__} - {name for names in GROUPS.values() for name in names})
    yield "# Python\n\n`import cloudtrain as ct`; every name is loaded on first use.\n"
    for title, names in (GROUPS | ({"More": tuple(rest)} if rest else {})).items():
        yield f"## {title}\n"
        yield from (f"::: cloudtrain.{name}\n" for name in names)


def _runtime_reference() -> Iterator[str]:
    """Yield every public name of `cloudtrain.runtime`."""
    from cloudtrain import runtime

    yield "# The script's API\n\n`from cloudtrain import runtime`. [The runtime](../guides/runtime.md) says how it is used.\n"
    yield from (f"::: cloudtrain.runtime.{name}\n" for name in runtime.__all__)
