"""The service's shapes and botocore's own validator agree, on requests made at random from the shapes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.targets.sagemaker.catalogue import shapes
from cloudtrain.targets.sagemaker.catalogue.shapes import violations
from tests.examples import examples
from tests.guards import skip_older_botocore

OURS_ALONE = {"pattern", "enum", "max"}
"""Kinds of violation that botocore leaves to the service."""

DEPTH = 3
"""Below this, optional fields are left out, so that a request stays small."""

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.just([]), st.just({})
)


def values(name: str, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a shape: mostly right, now and then junk, too little, or without a required field."""
    shape = shapes._model()["shapes"][name]
    good, bad = _KINDS[shape["type"]](shape, depth + 1)
    return st.integers(0, 60).flatmap(lambda roll: JUNK if roll == 0 else bad if roll < 3 else good)


Pair = tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]


def structures(shape: Any, depth: int) -> Pair:
    """With all required fields and some others; and with one removed, or one that there is not."""
    required = shape.get("required", ())
    fields = {
        name: st.deferred(lambda inner=inner: values(inner, depth))
        for name, inner in shape["members"].items()
    }
    optional = {
        name: field for name, field in fields.items() if name not in required and depth <= DEPTH
    }
    good = st.fixed_dictionaries({name: fields[name] for name in required}, optional=optional)
    changed = st.sampled_from([*shape["members"], "Nonsense"])
    bad = st.tuples(good, changed).map(
        lambda made: {k: v for k, v in made[0].items() if k != made[1]}
    )
    return good, st.one_of(bad, good.map(lambda made: {**made, "Nonsense": 1}))


def lists(shape: Any, depth: int) -> Pair:
    """A few; and none."""
    return st.lists(
        values(shape["member"], depth), min_size=min(shape.get("min", 0), 2), max_size=2
    ), st.just([])


def maps(shape: Any, depth: int) -> Pair:
    """A few; and one whose key is a number."""
    keys = st.sampled_from(["a", "b", "LONG_NAME"])
    return st.dictionaries(keys, values(shape["value"], depth), max_size=2), st.just({1: "x"})


def numbers(shape: Any, depth: int) -> Pair:
    """Within the limits; and about zero."""
    return st.integers(shape.get("min", 0), shape.get("max", 2**31 - 1)), st.integers(-10, 10)


def texts(shape: Any, depth: int) -> Pair:
    """A word of the enum, or long enough; and very short ones."""
    long_enough = st.just("s3://bucket/" + "a" * shape.get("min", 0))
    return st.sampled_from(shape["enum"]) if "enum" in shape else long_enough, st.text(max_size=2)


_KINDS: dict[str, Any] = {
    "structure": structures,
    "list": lists,
    "map": maps,
    "integer": numbers,
    "long": numbers,
    "string": texts,
    "boolean": lambda shape, depth: (st.booleans(), st.just("true")),
}


@cache
def input_shape(operation: str) -> Any:
    """botocore's own shape of a request."""
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    model = ServiceModel(create_loader().load_service_model("sagemaker", "service-2"))
    return model.operation_model(operation).input_shape


def botocores(request: Any, operation: str) -> str:
    """What botocore finds wrong with a request; empty when nothing."""
    from botocore.validate import ParamValidator

    return str(ParamValidator().validate(request, input_shape(operation)).generate_report())


@pytest.mark.parametrize("operation", ["CreateTrainingJob", "CreateProcessingJob"])
def test_both_find_the_same_requests_wrong(operation: str) -> None:
    """botocore refuses exactly the requests that have a violation, but for the kinds that it leaves to the service."""
    skip_older_botocore()
    seen = {True: 0, False: 0}

    @settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
    @given(request=values(shapes._model()["operations"][operation]))
    def check(request: Any) -> None:
        report = botocores(request, operation)
        ours = [
            violation
            for violation in violations(request, operation)
            if violation.kind not in OURS_ALONE
        ]
        assert bool(report) == bool(ours), (report, ours)
        seen[bool(ours)] += 1

    check()
    assert min(seen.values()) >= examples(150) // 15, seen
