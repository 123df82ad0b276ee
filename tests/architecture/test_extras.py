"""Optional dependencies: missing ones are named with the pip line, broken ones are passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain._extras import require
from cloudtrain.errors import MissingExtra


def test_a_missing_extra_names_the_pip_line() -> None:
    """The hint can be pasted."""
    with pytest.raises(MissingExtra) as caught:
        require("no_such_sdk.client", extra="sagemaker")
    assert caught.value.hint == "pip install 'cloudtrain[sagemaker]'"


def test_an_installed_one_is_returned() -> None:
    """The module itself."""
    assert require("json.decoder", extra="torch").__name__ == "json.decoder"


def test_a_broken_one_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import error inside the module is the module's own."""
    (tmp_path / "broken_sdk.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        require("broken_sdk", extra="sagemaker")
