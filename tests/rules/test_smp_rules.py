"""What the script must do for the parameters of SMP, and which batches its microbatches divide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rules.sagemaker_rule_cases import P4D, SMP1, SMP2, Case, pytorch
from tests.rules.test_sagemaker_rules import check

MakeSource = Callable[..., Path]

LIBRARY = "import smdistributed.modelparallel.torch as smp\nsmp.init()\n"
WITH_ALL = (
    LIBRARY
    + """
import train_lib
with smp.model_creation(tensor_parallelism=smp.tp_size() > 1):
    model = smp.DistributedModel(None)
optimizer = smp.DistributedOptimizer(None)
@smp.step
def train(model, batch):
    return model(batch)
"""
)
ON = {
    "tensor_parallel_degree": 4,
    "fp16": True,
    "shard_optimizer_state": True,
    "microbatches": 4,
    "partitions": 2,
}


def smp_job(
    script: str | dict[str, str], parameters: dict[str, Any], version: int = 1, **fields: Any
) -> Case:
    """A job for 16 GPUs with these parameters."""
    of_version = SMP1 if version == 1 else SMP2
    files = {"train.py": script} if isinstance(script, str) else script
    more = {"environment": pytorch("2.0.0" if version == 1 else "2.4.1"), **fields}
    distribution = of_version | {"parameters": parameters}
    return Case({"resources": P4D, "distribution": distribution, **more}, files=files)


def found(
    case: Case, code: str, make_source: MakeSource
) -> list[tuple[tuple[str | int, ...], str]]:
    """The places and messages of one rule."""
    return [(one.path, one.message) for one in check(case, make_source) if one.code == code]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import torch\ntorch.distributed.init_process_group()\n", "never imports"),
        ("import smdistributed.dataparallel.torch.torch_smddp\n", "never imports"),
        ("import smdistributed.modelparallel.torch as smp\nsmp.rank()\n", "never calls"),
        ({"train.py": "import helper\n", "helper.py": "import torch\n"}, "never imports"),
    ],
)
def test_a_script_without_the_library_ignores_all_of_it(
    script: str | dict[str, str], words: str, make_source: MakeSource
) -> None:
    """One finding names every parameter that is on, and none that is off."""
    case = smp_job(script, {**ON, "bf16": False, "sharded_data_parallel_degree": 1})
    ((path, message),) = found(case, "SM335", make_source)
    assert path == ("distribution", "parameters")
    assert words in message
    assert all(f"`{name}`" in message for name in ON)
    assert "bf16" not in message
    assert "sharded" not in message


@pytest.mark.parametrize(
    ("used", "parameters", "ignored"),
    [
        ("", ON, set(ON)),
        ("smp.DistributedModel(None)", ON, set(ON) - {"partitions"}),
        ("smp.DistributedOptimizer(None)", ON, set(ON) - {"fp16", "shard_optimizer_state"}),
        ("for step in range(3): pass", {"microbatches": 4}, {"microbatches"}),
        ("smp.nn.DistributedLinear(4, 4)", {"tensor_parallel_degree": 2}, set()),
        ("smp.tp_size()", {"tensor_parallel_degree": 2}, {"tensor_parallel_degree"}),
        ("smp.rdp_rank()", {"prescaled_batch": True}, set()),
        ("smp.dp_rank()", {"prescaled_batch": True}, {"prescaled_batch"}),
        ("", {"offload_activations": True}, {"offload_activations"}),
        ("", {"pipeline": "interleaved", "optimize": "speed", "ddp": True}, set()),
        ("", {"partitions": 1, "microbatches": 1, "tensor_parallel_degree": 1}, set()),
    ],
)
def test_a_parameter_needs_its_part_of_the_library(
    used: str, parameters: dict[str, Any], ignored: set[str], make_source: MakeSource
) -> None:
    """Each parameter that nothing applies is named at its place."""
    places = [path for path, _ in found(smp_job(LIBRARY + used, parameters), "SM335", make_source)]
    assert {path[-1] for path in places} == ignored
    assert all(path[:-1] == ("distribution", "parameters") for path in places)


@pytest.mark.parametrize(
    "script",
    [
        {"train.py": WITH_ALL, "train_lib.py": ""},
        {"train.py": "import train_lib\n", "train_lib.py": WITH_ALL},
        "from transformers import Trainer\nTrainer().train()\n",
        "from sagemaker_trainer import SageMakerTrainer\n",
        "from smdistributed.modelparallel.torch import *\ninit()\n",
        "import smdistributed.modelparallel.torch\ns = smdistributed.modelparallel.torch\ns.init()\n"
        "s.DistributedModel(s)\ns.DistributedOptimizer(s)\ns.set_tensor_parallelism(s)\ns.step(s)\n",
        "import runpy\nrunpy.run_path('other.py')\n",
        "from smdistributed.modelparallel import torch as s\ns.init()\ns.DistributedModel(s)\n"
        "s.DistributedOptimizer(s)\ns.set_tensor_parallelism(s)\ns.step(s)\n",
    ],
)
def test_what_may_apply_them_is_left_alone(
    script: str | dict[str, str], make_source: MakeSource
) -> None:
    """A module, another name of the library, a Trainer, and code that cannot be seen."""
    assert found(smp_job(script, ON), "SM335", make_source) == []


@pytest.mark.parametrize(
    ("script", "ignored"),
    [
        ("import torch.sagemaker as tsm\ntsm.init()\n", ["tensor_parallel_degree"]),
        ("import torch.sagemaker as tsm\ntsm.init()\ntsm.transform(tsm)\n", []),
        ("import torch\n", ["parameters"]),
        ("from torch import sagemaker as tsm\ntsm.init()\ntsm.transform(tsm)\n", []),
    ],
)
def test_version_2_needs_its_own_calls(
    script: str, ignored: list[str], make_source: MakeSource
) -> None:
    """Its library is a module of torch."""
    case = smp_job(script, {"tensor_parallel_degree": 8}, version=2)
    assert [path[-1] for path, _ in found(case, "SM335", make_source)] == ignored


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"hyperparameters": {"global_batch": 64}}, True),
        ({"hyperparameters": {"global-batch-size": 64}}, True),
        ({"hyperparameters": {"batch": 64}}, True),
        ({"hyperparameters": {"per_device_train_batch_size": 4}}, True),
        ({"hyperparameters": {"train-batch": 64}}, True),
        ({"hyperparameters": {"global_batch": 63}}, False),
        ({"hyperparameters": {"eval_batch_size": 64}}, False),
        ({"hyperparameters": {"micro_batch_size": 64}}, False),
        ({"hyperparameters": {"batches": 64}}, False),
    ],
)
def test_microbatches_divide_every_batch(
    fields: dict[str, Any], is_told: bool, make_source: MakeSource
) -> None:
    """Whatever the script calls it, except the batches of an evaluation."""
    case = smp_job(WITH_ALL, {"microbatches": 3}, **fields)
    places = [path for path, _ in found(case, "SM330", make_source)]
    assert places == [("distribution", "parameters", "microbatches")] * is_told


@pytest.mark.parametrize("name", ["tensor_parallel_degree", "sharded_data_parallel_degree"])
def test_degrees_divide_the_processes(name: str, make_source: MakeSource) -> None:
    """As the partitions do."""
    for degree, is_told in ((6, True), (8, False)):
        case = smp_job(WITH_ALL, {name: degree})
        places = [path for path, _ in found(case, "SM329", make_source)]
        assert places == [("distribution", "parameters", name)] * is_told
