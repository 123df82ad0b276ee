"""The options of mpirun for ranks on one machine, in a form that both Open MPI 4 and 5 accept.

Version 4 accepts two forms that version 5 does not (seen with 4.1.4, 4.1.8 and 5.0.11):

    -bind-to none           a long option with one dash: 5 takes `none` for the program, or refuses
                            the option
    -x A=1 -x A=2           an option twice: in 4 the last one counts, in 5 the first one, or it is
                            an error
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from shlex import split

_ONCE = ("-np", "--bind-to", "--map-by", "--rank-by")
"""Options with one value. If an option is repeated, its last value counts."""

_PROCESSES = ("-n", "--n", "-c", "--np")
"""Other names of `-np`."""

_VALUES = {
    **dict.fromkeys((*_ONCE, "-x", "-H", "-N"), 1),
    **dict.fromkeys(
        (
            "--am --host --hostfile --machinefile --npernode --npersocket --output-filename "
            "--path --prefix --tune --wdir"
        ).split(),
        1,
    ),
    **dict.fromkeys("-mca --mca -gmca --gmca".split(), 2),
}
"""How many words follow an option, where that is known. No word follows the other options."""

_FLAGS = (
    "--bycore --bynode --byslot --display-allocation --display-map --display-topo "
    "--merge-stderr-to-stdout --nolocal "
    "--nooversubscribe --oversubscribe --pernode --quiet --report-bindings --tag-output "
    "--timestamp-output --verbose"
).split()

_LONG = {
    name[1:]: name
    for name in (*_VALUES, *_FLAGS)
    if name.startswith("--") and name[1:] not in _VALUES
}
"""Long options by their spelling with one dash, except `-mca`, which both versions accept."""


def mpirun_options(processes: int, options: str) -> list[str]:
    """Return the arguments between `mpirun` and the program: cloudtrain's options, then the job's.

    Raises:
        ValueError: a quotation mark of the job's options is not closed.
    """
    ours = ["--bind-to", "none", "-np", str(processes)]
    return ["--allow-run-as-root", "--oversubscribe", *portable([*ours, *split(options)])]


def portable(words: Sequence[str]) -> list[str]:
    """Convert mpirun's options to a form that Open MPI 4 and 5 both accept. Unknown options are
    kept."""
    last: dict[str, tuple[str, ...]] = {}
    rest = iter(words)
    for number, word in enumerate(rest):
        name = "-np" if word in _PROCESSES else _LONG.get(word, word)
        option = (name, *islice(rest, _VALUES.get(name, 0)))
        # of several options with one key, the last one counts
        key = str(number)
        if name == "-x":
            key = " ".join(option).partition("=")[0]
        elif name in _ONCE:
            key = name
        last.pop(key, None)
        last[key] = option
    return [word for option in last.values() for word in option]
