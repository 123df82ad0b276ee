"""Options of mpirun, which Open MPI 4 and 5 read in different ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime.mpi_options import mpirun_options, portable


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "-bind-to core -map-by ppr:1:node -display-map",
            "-np 2 --bind-to core --map-by ppr:1:node --display-map",
        ),
        ("-x A=1 -x B -x A=2", "--bind-to none -np 2 -x B -x A=2"),
        ("--np 4", "--bind-to none -np 4"),
        ("-n 1 --map-by slot", "--bind-to none -np 1 --map-by slot"),
        (
            "-mca plm_rsh_args -verbose --mca a -np",
            "--bind-to none -np 2 -mca plm_rsh_args -verbose --mca a -np",
        ),
        ("-x A=-verbose -q --unknown", "--bind-to none -np 2 -x A=-verbose -q --unknown"),
        ("--bind-to", "-np 2 --bind-to"),
    ],
)
def test_options_mean_in_5_what_they_mean_in_4(options: str, expected: str) -> None:
    """Long options get two dashes, and of one that counts once the last stays; values are never taken for options."""
    assert mpirun_options(2, options) == [
        "--allow-run-as-root",
        "--oversubscribe",
        *expected.split(),
    ]


@given(
    st.lists(
        st.sampled_from(
            ["-mca a b", "--mca a -np", "-x A", "-x B=1", "-map-by slot", "-n 3", "x", "-q"]
        )
    )
)
def test_nothing_is_lost(options: list[str]) -> None:
    """What was made portable stays as it is, and every option that may come twice is still there."""
    words = [word for option in options for word in option.split()]
    once = portable(words)
    assert portable(once) == once
    assert {word.lstrip("-") for word in once} == {
        "np" if word == "-n" else word.lstrip("-") for word in words
    }
