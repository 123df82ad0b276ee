"""Requirements, versions and markers are read by `packaging`, and stricter where a line of a list is made of them."""

from __future__ import annotations

import pytest

from cloudtrain.job.pep508 import applies, are_met, conflict_in, requirement_in, versions_in
from cloudtrain.job.requirements import Platform

FOREIGN = (
    "a\n>=1", "a>=1\n--evil", "a @ https://h/x\n--evil", "a; os_name == 'a\n--evil'", "a\u2028", "a\u00a0>=1", "a\x0b", "a\0",
    "a==\u0967", "a @ https://h/x --evil", "a --evil", "a=1", "a;foo=='x'", "a; os_name ~= 'x'", "-a", f"a=={'9' * 5000}",
)  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_a_text_that_no_line_may_hold_is_no_requirement(text: str) -> None:
    """Line breaks, other letters, options, and comparisons at which pip ends."""
    with pytest.raises(ValueError, match=r"."):
        requirement_in(text)


def test_what_a_machine_leaves_open() -> None:
    """A version that is none of Python's counts as enough; an extra that nobody asks for is off."""
    assert are_met(versions_in(">=1"), "unknown")
    assert not are_met(versions_in(">=2.13"), "2.13.0a0+nv26.11")
    machine = Platform("3.12").environment
    assert not applies("extra == 'x'", machine)
    assert applies("python_version >= '3.10' and extra != 'x'", machine)


@pytest.mark.parametrize(
    ("versions", "is_conflict"),
    [
        ("==1,==2", True), (">=2,<2", True), (">=2,<=2", False), (">1,<1.1", False), ("==1.2.*,!=1.2", False),
        ("==1.2.*,==1.3.*", True), ("~=1.2,>=2", True), ("==1.0,>=1", False), ("==2,<2", True), ("<1,!=0", False),
        ("==1.0,==1.0.0", False), ("==1+cu1,==1", False), (">1,<1", True), ("===x,==1", False),
    ],
)  # fmt: skip
def test_versions_that_none_meets(versions: str, is_conflict: bool) -> None:
    """Only where it is certain."""
    assert conflict_in(versions_in(versions)) is is_conflict


@pytest.mark.parametrize(
    "text", ["(" * 5000, "os_name" * 2000, "'" * 9999, "a " * 4000, "(" * 90 + "os_name=='x'"]
)
def test_a_long_marker_is_refused_at_once(text: str) -> None:
    """Whatever it repeats."""
    with pytest.raises(ValueError, match="marker"):
        applies(text, {})
