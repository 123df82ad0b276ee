"""Requirements, versions and environment markers are read as `packaging` reads them."""

from __future__ import annotations

import itertools

import pytest
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Packaging
from packaging.specifiers import SpecifierSet

from cloudtrain.job.pep508 import (
    applies,
    are_met,
    conflict_in,
    requirement_in,
    versions_in,
)
from cloudtrain.job.requirements import Platform

REQUIREMENTS = (
    "numpy", "numpy>=1", "numpy >= 1, <2", "numpy (>=1)", "numpy[mkl,x_y]==1.*", "numpy[]", "numpy[mkl,]", "a==1,",
    "a@ https://x/y.whl", "a @ https://x/y.whl ; os_name=='nt'", "a~=1.2", "a~=1", "a>=1.0+cu1", "a==1+cu1", "a===foo",
    "a=1", "a==", "a[", "a;", "a; foo=='x'", "a;python_version<'3.8'", "-a", "a-", "_a", "a>=1.0.*", "a==1.0rc1.*",
    "a!=1.*", "a,>=1", "a @ x y", "a>=1 b", "a\n>=1", "a\u00a0>=1", "a==1.0.post1.dev2", "a==1!2.0", "a>=v1.0",
    "a==1.0-1", "a;'x' in sys_platform", "a==\u0967", "a;python_version", "a;(os_name=='nt'", "a;os_name=='nt')",
    "a;T", "a;os_name=='nt' os_name=='nt'", "a;()", "a;os_name=='nt' and", "a[x]>=1,!=1.5,<2;os_name!='nt'",
)  # fmt: skip
MARKERS = (
    "python_version>='3.8'", "python_version<'3.10'", "python_full_version<'3.12.1'", "'3.11'<=python_version",
    "sys_platform=='linux' and platform_machine=='x86_64'", "sys_platform=='win32' or python_version=='3.12'",
    "(sys_platform=='win32' or os_name=='posix') and python_version!='3.12'", "'linux' in sys_platform",
    "sys_platform in 'linux darwin'", "sys_platform not in 'linux darwin'", "'nux' not in sys_platform",
    "python_version in '3.11 3.12'", "python_version~='3.10'", "implementation_name!='pypy'", "extra=='x'",
    "extra!='x'", "python_version=='3.12.*'", "sys_platform=='linux' or sys_platform=='win32' and python_version<'3'",
    "((os_name=='posix'))", "os_name=='nt' or (os_name=='posix' and (python_version>'3' or extra=='y'))",
)  # fmt: skip
VERSIONS = ("1", "1.0", "1.2.3", "2.0", "1.10", "1.2.3.4", "2!1.0", "1.5.1")
WANTED = ("1.2", "1.2.3", "1.10", "2.0", "1.0.0")
SPELLINGS = (
    "==1.0", "==1", "== 1.0.0", "==1.10", "==1.0rc1", "==1.0.RC-1", "==1.0-preview.1", "~=1.0", "~=1.0.0", ">=1.0.post1",
    ">=1.post1", "==1.0a0", "==1.0alpha0", ">=1.0.0.dev1", ">=1.dev1", "==10", "==100.0",
)  # fmt: skip


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_the_same_texts_are_requirements(text: str) -> None:
    """No other text is one."""
    try:
        expected = str(Packaging(text).specifier)
    except InvalidRequirement:
        with pytest.raises(ValueError, match=r"."):
            requirement_in(text)
    else:
        assert sorted(str(requirement_in(text).versions).split(",")) == sorted(expected.split(","))


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_apply_on_the_same_machines(marker: str) -> None:
    """With and without a patch level of Python."""
    for python in ("3.10", "3.12", "3.12.4"):
        environment = Platform(python).environment
        expected = Marker(marker).evaluate({**environment, "extra": ""})
        assert applies(marker, {**environment, "extra": ""}) == expected


def test_versions_compare_equally() -> None:
    """Each operator, with series and epochs."""
    clauses = [
        f"{word}{version}"
        for word in ("==", "!=", ">=", "<=", ">", "<", "~=")
        for version in WANTED
    ]
    for version, text in itertools.product(VERSIONS, [*clauses, "==1.*", "!=1.2.*", ">=1,<2"]):
        expected = SpecifierSet(text).contains(version, prereleases=True)
        assert are_met(versions_in(text), version) == expected, (version, text)


def test_spellings_of_a_version_are_equal() -> None:
    """A project and its lock may write it differently."""
    for first, second in itertools.product(SPELLINGS, repeat=2):
        expected = SpecifierSet(first) == SpecifierSet(second)
        assert (versions_in(first) == versions_in(second)) == expected, (
            first,
            second,
        )


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
