"""Execute the notebooks, and keep them with their outputs: `make notebooks`.

python tools/notebooks.py            all of them
python tools/notebooks.py 01 04      those whose names begin so

A notebook runs in a new home, without a proxy that leads to the network. What belongs to this machine is not kept: its
folders and its name, the times of the cells, the states of widgets, all but the last state of a progress bar.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
LARGEST = 300_000
"""Bytes of a notebook with its outputs."""

PICTURE = "image/png"
ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
OVERWRITTEN = re.compile(r"^.*\r(?!$)", re.MULTILINE)


CHECK = "\nassert _exit_code == 0, f'the command ended with code {_exit_code}'"
"""Stands after the commands of a cell while it is executed: IPython goes on when one has failed."""


def execute(path: Path, timeout: float, folder: Path = FOLDER, **variables: str) -> Any:
    """Return the notebook with the outputs of a run from its first cell to its last, in `folder`.

    An error of a cell is an error here, and so is a command of it that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search("^!", cell.source, re.MULTILINE):
            cell.source += CHECK
    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    # Not in a folder of the caller's: PyTorch's data loaders hang where the path of their sockets
    # has over 107 letters.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as new:
        home = Path(new).resolve()
        (home / "tmp").mkdir()
        client.execute(env=_environ(home) | variables)
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
    places = {f"{ROOT}/": "~/cloudtrain/", str(home): "~", f"//{os.uname().nodename}/": "//laptop/"}
    return _reduced(notebook, places)


def sources_hash(notebook: Any) -> str:
    """Return a hash of the code, by which outputs of other code are found."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def _environ(home: Path) -> dict[str, str]:
    """Return the variables of somebody who has only this checkout."""
    nowhere = dict.fromkeys(
        ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], "http://127.0.0.1:9"
    )
    here = dict.fromkeys(["NO_PROXY", "no_proxy"], "127.0.0.1,localhost")
    return nowhere | here | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "USER": "you",
        "LOGNAME": "you",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }  # fmt: skip


def _reduced(notebook: Any, places: Mapping[str, str]) -> Any:
    """Return the notebook with what is the same on every machine. `places` are texts, and what stands for them."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "executed": sources_hash(notebook),
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                _reduce(output, places)
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Join what was printed in pieces."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _reduce(output: Any, places: Mapping[str, str]) -> None:
    if output.output_type == "stream":
        output.text = _anywhere(output.text, places)
        return
    output.metadata = {}
    data = {
        kind: value for kind, value in output.data.items() if not kind.startswith("application/")
    }
    if PICTURE in data:  # the text beside it is its class
        output.data = {PICTURE: _smaller(data[PICTURE])}
    else:
        output.data = {kind: _anywhere(text, places) for kind, text in data.items()}


def _smaller(picture: str) -> str:
    """Return a plot with at most 900 pixels across and 32 colours: a fifth of its bytes, and as easy to read."""
    image = Image.open(BytesIO(b64decode(picture))).convert("RGBA")
    image.thumbnail((900, 2000), Image.Resampling.LANCZOS)
    file = BytesIO()
    image.quantize(32, method=Image.Quantize.FASTOCTREE).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def _anywhere(text: str, places: Mapping[str, str]) -> str:
    """Return a text without colours, overwritten lines and places of this machine."""
    text = OVERWRITTEN.sub("", ESCAPE.sub("", text.replace("\r\n", "\n"))).replace("\r", "")
    for place, word in places.items():
        text = text.replace(place, word)
    return text


def main(names: list[str]) -> None:
    """Execute and write the notebooks whose names begin with one of `names`."""
    import matplotlib.font_manager  # looks for fonts once, and not with a message in a notebook

    fonts = matplotlib.get_cachedir()
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not path.name.startswith(tuple(names)):
            continue
        nbformat.write(execute(path, timeout=3600, MPLCONFIGDIR=fonts), path)
        size = path.stat().st_size
        print(f"{path.name}: {size // 1000} kB", flush=True)
        if size > LARGEST:
            raise SystemExit(
                f"{path.name} has more than {LARGEST // 1000} kB: make its pictures smaller"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
