"""What torchrun's own parser does with the arguments of a script."""

from __future__ import annotations

from types import ModuleType

import pytest

from cloudtrain.runtime.torchrun_words import guard_program, misread

pytestmark = pytest.mark.torch

NAMES = [
    "log",
    "run",
    "max",
    "node",
    "local",
    "start",
    "master",
    "rdzv",
    "lo",
    "n",
    "log_dir",
    "module",
    "role",
    "lr",
]


@pytest.fixture(scope="module")
def torchrun() -> ModuleType:
    """The launcher of the PyTorch that is installed."""
    return pytest.importorskip("torch.distributed.run")


def arrives(run: ModuleType, words: list[str], program: list[str]) -> bool:
    """Whether torchrun finds the script and all of its arguments."""
    try:
        options = run.parse_args(["--nproc_per_node", "2", *words])
    except SystemExit:
        return False
    return [options.training_script, *options.training_script_args] == program


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["--{}", "--{}=3"])
def test_no_argument_is_taken(torchrun: ModuleType, name: str, form: str) -> None:
    """With `--` before the script every argument arrives, and without it where nothing is misread."""
    program = ["train.py", form.format(name), "3"]
    assert arrives(torchrun, guard_program(program), program)
    assert arrives(torchrun, ["--", *program], program)


def test_every_short_form_is_known(torchrun: ModuleType) -> None:
    """Each beginning of each of torchrun's options is misread by this torch, or our table says that it is not."""
    spelled = {
        option[2:end]
        for action in torchrun.get_args_parser()._actions
        for option in action.option_strings
        if option.startswith("--")
        for end in range(3, len(option) + 1)
    }
    assert len(spelled) > 200
    for name in spelled:
        program = ["train.py", f"--{name}"]
        if not arrives(torchrun, program, program):
            assert misread(program) == [f"--{name}"]
        assert arrives(torchrun, guard_program(program), program)
