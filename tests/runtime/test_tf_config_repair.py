"""`TF_CONFIG` is made what tf.distribute accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudtrain.runtime import SetupError, apply_tf_config, read_tf_config


def test_an_empty_ps_list_is_dropped() -> None:
    """Azure ML sends `"ps": []`, which would make a parameter server job of it."""
    variables = {
        "TF_CONFIG": '{"cluster": {"worker": ["a:1"], "ps": []}, "task": {"type": "worker", "index": 0}}'
    }
    apply_tf_config(variables)
    assert json.loads(variables["TF_CONFIG"])["cluster"] == {"worker": ["a:1"]}


def test_master_becomes_chief_in_cluster_and_task() -> None:
    """TensorFlow 2 refuses the word `master` that SageMaker writes."""
    variables = {
        "TF_CONFIG": '{"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}'
    }
    apply_tf_config(variables)
    repaired = json.loads(variables["TF_CONFIG"])
    assert repaired == {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}


def test_an_index_is_a_number() -> None:
    """Some launchers write it as text, with which tf.distribute would look for a task of that name."""
    variables = {
        "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}}'
    }
    apply_tf_config(variables)
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


SAGEMAKER: dict[str, Any] = {
    "cluster": {
        "master": ["algo-1:2222"],
        "worker": ["algo-2:2222"],
        "ps": ["algo-1:2223", "algo-2:2223"],
    },
    "environment": "cloud",
    "task": {"type": "worker", "index": 0},
}


def test_the_servers_and_their_places_stay_as_sagemaker_has_them() -> None:
    """Only the chief's name changes: workers, servers, addresses and everything else reach tf.distribute unchanged."""
    variables = {"TF_CONFIG": json.dumps(SAGEMAKER), "SM_HOSTS": '["algo-1","algo-2"]'}
    apply_tf_config(variables)
    repaired = json.loads(variables["TF_CONFIG"])
    assert repaired["cluster"].pop("chief") == ["algo-1:2222"]
    assert repaired == SAGEMAKER | {
        "cluster": {k: v for k, v in SAGEMAKER["cluster"].items() if k != "master"}
    }
    assert variables["SM_HOSTS"] == '["algo-1","algo-2"]'


def test_what_is_right_already_stays() -> None:
    """Twice repaired is once repaired."""
    variables = {"TF_CONFIG": json.dumps(SAGEMAKER)}
    apply_tf_config(variables)
    once = variables["TF_CONFIG"]
    apply_tf_config(variables)
    assert variables["TF_CONFIG"] == once


def test_without_tf_config_nothing_is_written() -> None:
    """A process that TensorFlow did not start gets no `TF_CONFIG`."""
    variables: dict[str, str] = {}
    apply_tf_config(variables)
    assert variables == {}
    assert read_tf_config(variables) is None


@pytest.mark.parametrize("member", ["cluster", "task"])
@pytest.mark.parametrize("value", [[1], "x", 3])
def test_what_is_no_object_is_named(member: str, value: object) -> None:
    """One line says which part of a `TF_CONFIG` makes no sense."""
    with pytest.raises(SetupError, match=f"`{member}` in `TF_CONFIG` is not a JSON object"):
        read_tf_config(
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {}, member: value})}
        )
