"""Puts the training scripts into the wheel, each folder whole, and a README without links into the
checkout."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Called by hatchling, as pyproject.toml says."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description that a package index shows, which has no files beside it."""
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_links(text)}


def without_links(text: str) -> str:
    """Leave out pictures, and of links only the words, unless they lead to an address of the
    web."""
    text = re.sub(r"!\[[^]]*\]\((?!https://)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https://)[^)]*\)", r"\1", text)


class TrainingScripts(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling, as pyproject.toml says."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Copy the files that a bundle of each folder has. An editable installation reads the
        checkout's folders."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from cloudtrain.code.walk import walk  # needs the standard library alone
        from cloudtrain.errors import JobError

        # hatchling takes a file to one place only, and a shared one has two
        self._scripts = TemporaryDirectory()
        for folder in Path(self.root, "training_scripts").iterdir():
            found = walk(str(folder))
            if found.problems:
                raise JobError(found.problems)
            for file in found.files:
                copy = Path(self._scripts.name, folder.name, file.path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.place, copy)
        build_data["force_include"][self._scripts.name] = "cloudtrain/_training_scripts"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the copies."""
        if version != "editable":
            self._scripts.cleanup()
