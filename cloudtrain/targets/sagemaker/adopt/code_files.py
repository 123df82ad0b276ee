"""The files of a code folder that the SageMaker SDK sends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.code.data import files_below
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.sagemaker.adopt.trainers import is_trainer

_IGNORED = {".env", ".git", "__pycache__", ".DS_Store", ".cache", ".ipynb_checkpoints"}
"""The default of `ignore_patterns` in version 3 (sagemaker-train 1.27.0)."""


def sent_files(original: Original, folder: Path) -> Iterator[str]:
    """Yield the paths of the files that the SDK sends. Version 2 packs the whole folder, with
    folders that are empty: their paths end with a slash."""
    is_version_3 = is_trainer(original.request)
    for file in files_below(folder):
        if not is_version_3 or _IGNORED.isdisjoint(file.path.split("/")):
            yield file.path

    if not is_version_3:
        for place, folders, names in os.walk(folder):
            if not folders and not names:
                yield f"{os.path.relpath(place, folder)}/"
