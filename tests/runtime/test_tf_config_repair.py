"""`TF_CONFIG` is made what tf.distribute accepts."""

from __future__ import annotations

import json

from cloudtrain.runtime import apply_tf_config, read_tf_config


def test_an_empty_ps_list_is_dropped() -> None:
    """Azure ML sends `"ps": []`, which would make a parameter server job of it."""
    variables = {"TF_CONFIG": '{"cluster": {"worker": ["a:1"], "ps": []}, "task": {"type": "worker", "index": 0}}'}
    apply_tf_config(variables)
    assert json.loads(variables["TF_CONFIG"])["cluster"] == {"worker": ["a:1"]}


def test_master_becomes_chief_in_cluster_and_task() -> None:
    """TensorFlow 2 refuses the word `master` that SageMaker writes."""
    variables = {"TF_CONFIG": '{"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}'}
    apply_tf_config(variables)
    repaired = json.loads(variables["TF_CONFIG"])
    assert repaired == {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}


def test_without_tf_config_nothing_is_written() -> None:
    """A process that TensorFlow did not start gets no `TF_CONFIG`."""
    variables: dict[str, str] = {}
    apply_tf_config(variables)
    assert variables == {}
    assert read_tf_config(variables) is None
