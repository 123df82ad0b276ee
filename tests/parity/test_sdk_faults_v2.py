"""Where version 2 of the SDK loses or refuses what the job says: both are shown, the SDK's own way and cloudtrain's."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.errors import JobError, TargetError
from cloudtrain.job.training import TrainingJob
from tests.parity.conftest import Sent
from tests.parity.jobs import CASES, KEY, ROLE, SMDDP_IMAGE, Case, groups, machine, plan_of
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)

ARCHIVE = "s3://my-bucket/code/sourcedir.tar.gz"


def pytorch(session: Any, **arguments: Any) -> Any:
    """The SDK's PyTorch estimator, as its documentation has one write it."""
    from sagemaker.pytorch import PyTorch

    common = {
        "entry_point": "train.py",
        "source_dir": ARCHIVE,
        "role": ROLE,
        "sagemaker_session": session,
    }
    version = {
        "framework_version": "2.8.0",
        "py_version": "py312",
        "output_path": "s3://my-bucket/out",
    }
    return PyTorch(**(common | version | arguments))


def two_groups() -> list[Any]:
    """A GPU group and a CPU group, as objects of the SDK."""
    from sagemaker.instance_group import InstanceGroup

    return [InstanceGroup("gpu", "ml.p4d.24xlarge", 2), InstanceGroup("cpu", "ml.c5.18xlarge", 2)]


def launch_keys(request: dict[str, Any]) -> dict[str, str]:
    """The hyperparameters that tell the toolkit what to start."""
    script = {"program", "submit_directory", "container_log_level", "job_name", "region"}
    names = {
        name: text
        for name, text in request["HyperParameters"].items()
        if name.startswith("sagemaker_")
    }
    return {
        name: text for name, text in names.items() if name.removeprefix("sagemaker_") not in script
    }


def test_torch_groups_are_dropped(session: Any, sent: Sent) -> None:
    """The SDK drops the groups of torch_distributed, and every group would run torchrun alone; the plan keeps them."""
    both = two_groups()
    distribution = {"torch_distributed": {"enabled": True}, "instance_groups": [both[0]]}
    theirs = sent(
        pytorch(session, instance_groups=both, distribution=distribution), {"job_name": "a"}
    )
    ours = plan_of(CASES["groups_torch"])
    assert launch_keys(theirs) == {"sagemaker_torch_distributed_enabled": "true"}
    groups_key = {"sagemaker_distribution_instance_groups": '["gpu"]'}
    assert launch_keys(ours.request) == launch_keys(theirs) | groups_key
    assert "sagemaker_distribution_instance_groups" in ours.to_python()


def test_smddp_on_groups_has_no_type(session: Any, sent: Sent) -> None:
    """On a heterogeneous cluster the SDK sends the instance type `null`; the plan names that of the group."""
    both = two_groups()
    distribution = {
        "smdistributed": {"dataparallel": {"enabled": True}},
        "instance_groups": [both[0]],
    }
    estimator = pytorch(
        session,
        instance_groups=both,
        distribution=distribution,
        framework_version="2.2.0",
        py_version="py310",
    )
    theirs = launch_keys(sent(estimator, {"job_name": "a"}))
    assert theirs["sagemaker_instance_type"] == "null"
    ours = launch_keys(plan_of(CASES["groups_smddp"]).request)
    assert ours == theirs | {"sagemaker_instance_type": '"ml.p4d.24xlarge"'}


def test_groups_with_a_checkpoint_crash(session: Any, sent: Sent, wire: Wire) -> None:
    """Groups, a checkpoint and the debugger: the SDK crashes before it sends; the generic class sends the plan."""
    checkpoint = {
        "checkpoint_s3_uri": "s3://data/ckpt",
        "checkpoint_local_path": "/opt/ml/checkpoints",
    }
    with pytest.raises(TypeError, match="NoneType"):
        pytorch(session, instance_groups=two_groups(), **checkpoint).fit(job_name="a", wait=False)
    wire.calls.clear()
    ours = plan_of(CASES["groups_checkpoint_debugger"])
    estimator = ours.to_estimator(session)
    assert type(estimator).__name__ == "Estimator"
    assert sent(estimator, ours.fit_arguments()) == ours.request


def test_smddp_on_p5_is_refused(session: Any, sent: Sent, wire: Wire) -> None:
    """The SDK refuses smddp on p5, but by a part of the name that p5en does not have; the plan can be sent all the same."""
    distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}
    arguments = {
        "distribution": distribution,
        "framework_version": "2.2.0",
        "py_version": "py310",
        "instance_count": 2,
    }
    with pytest.raises(ValueError, match="do not support p5"):
        pytorch(session, instance_type="ml.p5.48xlarge", **arguments).fit(job_name="a", wait=False)
    wire.calls.clear()
    accepted = sent(
        pytorch(session, instance_type="ml.p5en.48xlarge", **arguments), {"job_name": "a"}
    )
    assert launch_keys(accepted)["sagemaker_instance_type"] == '"ml.p5en.48xlarge"'
    wire.calls.clear()
    job = {
        "distribution": {"type": "smddp"},
        "resources": machine("ml.p5.48xlarge", 2),
        **SMDDP_IMAGE,
    }
    ours = plan_of(Case(job))
    assert "refuses smdistributed on p5" in ours.to_python()
    assert sent(ours.to_estimator(session), ours.fit_arguments()) == ours.request


def test_torch_on_cpu_is_refused_by_version(session: Any, sent: Sent) -> None:
    """The SDK takes torch_distributed on CPU instances only with an image; the plan's estimator has one."""
    with pytest.raises(ValueError, match="only for GPU and Trainium"):
        pytorch(
            session,
            instance_type="ml.c5.9xlarge",
            instance_count=2,
            distribution={"torch_distributed": {"enabled": True}},
        )
    ours = plan_of(CASES["torch_cpu"])
    assert sent(ours.to_estimator(session), ours.fit_arguments()) == ours.request


def test_a_short_version_is_refused(session: Any) -> None:
    """The SDK takes no `2.8` with torch_distributed; for a job it is the newest 2.8."""
    with pytest.raises(ValueError, match=r"framework_version 2\.8 is not supported"):
        pytorch(
            session, framework_version="2.8", instance_type="ml.g5.12xlarge", instance_count=2,
            distribution={"torch_distributed": {"enabled": True}},
        )  # fmt: skip
    assert 'framework_version="2.8.0"' in plan_of(CASES["torch"]).to_python()


def test_a_misspelt_distribution_runs_one_process(session: Any, sent: Sent) -> None:
    """The SDK sends a misspelt distribution as a job without one; the job's model does not take it."""
    distribution = {"torch_distribtued": {"enabled": True}}
    arguments = {
        "instance_type": "ml.p4d.24xlarge",
        "instance_count": 2,
        "distribution": distribution,
    }
    assert launch_keys(sent(pytorch(session, **arguments), {"job_name": "a"})) == {}
    with pytest.raises(JobError, match="torch"):
        TrainingJob(name="a", entry_point="train.py", distribution={"type": "torhc"})


def test_the_generic_class_ignores_a_distribution(session: Any, sent: Sent) -> None:
    """`Estimator(distribution=...)` swallows it without a word, so one's own image gets the class that does not."""
    from sagemaker.estimator import Estimator

    image = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
    estimator = Estimator(
        image_uri=image, role=ROLE, instance_count=2, instance_type="ml.p4d.24xlarge", output_path="s3://b/o",
        entry_point="train.py", source_dir=ARCHIVE, sagemaker_session=session,
        distribution={"torch_distributed": {"enabled": True}},
    )  # fmt: skip
    assert launch_keys(sent(estimator, {"job_name": "a"})) == {}
    ours = plan_of(CASES["torch_own_image"])
    assert type(ours.to_estimator(session)).__name__ == "PyTorch"
    assert launch_keys(ours.request)["sagemaker_torch_distributed_enabled"] == "true"


def test_an_action_of_a_rule_is_lost(session: Any, sent: Sent) -> None:
    """The SDK drops `action_json` from a rule that it did not make itself; the plan sends it, and refuses the export."""
    from sagemaker.debugger import Rule

    rule = {"name": "r", "image": "i:1", "parameters": {"rule_to_invoke": "X", "action_json": "[]"}}
    names = {"instance_type", "container_local_output_path", "s3_output_path", "volume_size_in_gb"}
    theirs = Rule(name="r", image_uri="i:1", rule_parameters=dict(rule["parameters"]), collections_to_save=[],
                  **dict.fromkeys(names))  # fmt: skip
    estimator = pytorch(session, instance_type="ml.g5.xlarge", instance_count=1, rules=[theirs])
    parameters = sent(estimator, {"job_name": "a"})["DebugRuleConfigurations"][0]["RuleParameters"]
    assert parameters == {"rule_to_invoke": "X"}
    ours = plan_of(Case({}, {"debug_rules": [rule]}))
    assert ours.request["DebugRuleConfigurations"][0]["RuleParameters"] == rule["parameters"]
    with pytest.raises(TargetError, match="DebugRuleConfigurations"):
        ours.to_estimator(session)


def test_defaults_from_files_change_the_request(
    wire: Wire, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of the SDK's own takes defaults from a file and adds them; the session of the plan does not read it."""
    from boto3 import Session as Boto
    from sagemaker.session import Session

    defaults = tmp_path / "config.yaml"
    vpc = "{OutputDataConfig: {KmsKeyId: '" + KEY + "'}}"
    defaults.write_text(f"SchemaVersion: '1.0'\nSageMaker: {{TrainingJob: {vpc}}}\n")
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(defaults))
    plan = plan_of(Case({"resources": groups()}))
    plan.to_estimator(Session(Boto(region_name="us-west-2"))).fit(
        **plan.fit_arguments(), wait=False
    )
    plan.to_estimator().fit(**plan.fit_arguments(), wait=False)
    with_defaults, without = wire.training_jobs
    assert with_defaults["OutputDataConfig"]["KmsKeyId"] == KEY
    assert without == plan.request
