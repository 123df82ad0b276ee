"""The shell scripts of Slurm are files, which `source` others and get values."""

import re
import subprocess
from pathlib import Path

from cloudtrain.targets.slurm.shell import shell_script

FOLDER = Path(shell_script.__code__.co_filename).parent


def test_a_value_is_not_searched_for_other_values() -> None:
    """A user's text that looks like the mark of a value arrives as it was written."""
    text = shell_script("setup", lines="echo @python@ $'\\n'\nsource leave.sh")
    assert "\necho @python@ $'\\n'\nsource leave.sh\n" in text


def test_every_script_is_one_text_that_bash_reads() -> None:
    """A script that was sent needs no other file, and has no mark of a value left."""
    values = re.compile("@[a-z]+@")
    files = [file for file in FOLDER.glob("*.sh") if not values.search(file.read_text())]
    texts = [shell_script(file.stem) for file in files]
    assert len(texts) >= 30
    together = "\n".join(f"f{number}() {{\n{text}\n}}" for number, text in enumerate(texts))
    assert "\nsource " not in together
    subprocess.run(["bash", "-n"], input=together, text=True, check=True)


def test_every_file_is_used() -> None:
    """No file stands in the folder of scripts that no other file or module names."""
    python = "".join(file.read_text() for file in FOLDER.parent.rglob("*.py"))
    shell = "".join(file.read_text() for file in FOLDER.glob("*.sh"))
    for file in FOLDER.glob("*.sh"):
        assert f'"{file.stem}"' in python or f"source {file.name}\n" in shell, file.name
