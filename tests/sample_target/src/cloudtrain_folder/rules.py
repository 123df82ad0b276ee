"""The rules of the target `folder`."""

from collections.abc import Iterator

from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Nature, Subject, rule


@rule("FO101", Level.ERROR, Nature.FACT)
def no_root(subject: Subject) -> Iterator[Fault]:
    """No folder is named for the runs.

    Runs, their code and their output are kept below one folder, which the settings name.
    """
    if subject.settings.root is None:
        yield Fault("no folder is named for the runs", 'add `root = "PATH"` to `[folder]` in cloudtrain.toml')
