"""AWS's training images: the addresses that the SDK sent, short versions, and errors that say what to type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.sagemaker.catalogue.images import (
    device_of,
    has_other_toolkit,
    image_of_uri,
    resolve_image,
    smp_versions,
    tables,
    versions,
)
from tests.hints import suggested

GOLDEN = Path(__file__).parents[2] / "golden" / "sagemaker_sdk_v2"
WEST = "763104351884.dkr.ecr.us-west-2.amazonaws.com"
SMP2 = "658645717510.dkr.ecr.us-west-2.amazonaws.com/smdistributed-modelparallel"

SENT = {
    "pt_torchdist": ("pytorch", "2.8.0", "ml.g5.12xlarge", {}),
    "pt_torchdist_p5": ("pytorch", "2.8", "ml.p5.48xlarge", {"python": "3.12"}),
    "pt_no_such_instance": ("pytorch", "2.8.0", "ml.zz9.xlarge", {}),
    "pt_smddp": ("pytorch", "2.2.0", "ml.p4d.24xlarge", {"python": "py310"}),
    "pt_smp1_mpi": ("pytorch", "1.13.1", "ml.p4d.24xlarge", {}),
    "pt_smp2_torchdist": ("pytorch", "2.3.1", "ml.p5.48xlarge", {"smp2": True}),
    "pt_smp2_241_py311_p4d": ("pytorch", "2.4.1", "ml.p4d.24xlarge", {"smp2": True}),
    "pt_smp2_251_py311_p5": ("pytorch", "2.5", "ml.p5.48xlarge", {"smp2": True}),
    "pt_smp2_torchdist_pt28_py311": ("pytorch", "2.8.0", "ml.p5.48xlarge", {"smp2": True}),
    "pt_torchdist_trn1_111": ("pytorch", "1.11.0", "ml.trn1.32xlarge", {}),
    "hf_torchdist": ("huggingface", "4.56.2", "ml.p4d.24xlarge", {"base": "pytorch2.8.0"}),
    "tf_mwms": ("tensorflow", "2.19.0", "ml.g5.12xlarge", {}),
    "tf_smddp": ("tensorflow", "2.11.0", "ml.p4d.24xlarge", {"python": "3.9"}),
    "tf_smp1": ("tensorflow", "2.6", "ml.p4d.24xlarge", {}),
}
"""Recorded request of SDK 2 to framework, version, instance type and the rest."""


def recorded(case: str) -> str:
    """The image of a recorded request."""
    request = json.loads((GOLDEN / f"{case}.json").read_text())["request"]
    return str(request["AlgorithmSpecification"]["TrainingImage"])


def problem(framework: str, version: str | None = None, **more: Any) -> Problem:
    """The one problem of an image that there is not."""
    with pytest.raises(JobError) as caught:
        resolve_image(framework, version, **({"region": "us-west-2"} | more))
    (found,) = caught.value.problems
    assert found.hint
    return found


@pytest.mark.parametrize("case", SENT)
def test_the_address_is_the_one_that_the_sdk_sent(case: str) -> None:
    """Framework, version and instance type give the image of the recorded request."""
    framework, version, instance, more = SENT[case]
    assert resolve_image(
        framework, version, region="us-west-2", instance=instance, **more
    ).uri == recorded(case)


@pytest.mark.parametrize("uri", sorted({recorded(case) for case in SENT}))
def test_an_address_tells_what_the_version_told(uri: str) -> None:
    """Reading an address gives the image that led to it, all fields."""
    image = image_of_uri(uri)
    assert image is not None
    again = resolve_image(
        image.framework, image.version, region="us-west-2", device=image.device, python=image.python,
        base=image.base or None, smp2=image.smp == 2, instance="ml.p5.48xlarge",
    )  # fmt: skip
    assert again == image


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-west-1", "763104351884.dkr.ecr.eu-west-1.amazonaws.com"),
        ("af-south-1", "626614931356.dkr.ecr.af-south-1.amazonaws.com"),
        ("cn-north-1", "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "442386744353.dkr.ecr.us-gov-west-1.amazonaws.com"),
        ("il-central-1", "780543022126.dkr.ecr.il-central-1.amazonaws.com"),
        ("us-isof-south-1", "454834333376.dkr.ecr.us-isof-south-1.csp.hci.ic.gov"),
    ],
)
def test_each_region_has_its_own_registry(region: str, host: str) -> None:
    """Account and domain follow the region and its partition."""
    assert (
        resolve_image("pytorch", "2.3", region=region).uri
        == f"{host}/pytorch-training:2.3.0-gpu-py311"
    )


@pytest.mark.parametrize(
    ("framework", "version", "device", "tag"),
    [
        ("pytorch", "2.9", "gpu", "pytorch-training:2.9.0-gpu-py312"),
        ("pytorch", "2.10", "cpu", "pytorch-training:2.10.0-cpu-py313"),
        ("pytorch", "2.13", "gpu", "pytorch:2.13-cu133-amzn2023-sagemaker"),
        ("pytorch", "2.11", "cpu", "pytorch:2.11-cpu-amzn2023-sagemaker"),
        ("tensorflow", "2.21", "gpu", "tensorflow-training:2.21.0-gpu-py312"),
        (
            "huggingface",
            "5.3",
            "gpu",
            "huggingface-pytorch-training:2.9.0-transformers5.3.0-gpu-py312-cu130-ubuntu22.04",
        ),
    ],
)
def test_images_that_came_after_sdk_2(framework: str, version: str, device: str, tag: str) -> None:
    """What only SDK 3 knows has its address too, and says so."""
    image = resolve_image(framework, version, region="us-west-2", device=device)
    assert (image.uri, image.sdk) == (f"{WEST}/{tag}", 3)


def test_the_newest_version_is_the_default() -> None:
    """Without a version: the newest that the region has, and with a Python: the newest that has it."""
    assert resolve_image("pytorch", region="us-west-2").version == "2.14"
    assert resolve_image("pytorch", region="cn-north-1").version == "2.13"
    assert resolve_image("pytorch", region="us-west-2", python="3.11").version == "2.5.1"
    assert resolve_image("pytorch", region="us-west-2", smp2=True).version == "2.5.1"
    assert resolve_image("huggingface", "4.17", region="us-west-2").base == "pytorch1.10.2"


@pytest.mark.parametrize(
    ("version", "engine", "python", "cuda"),
    [
        ("4.28.1", "2.0.0", (3, 10), "11.8"),
        ("4.36.0", "2.1.0", (3, 10), "12.1"),
        ("4.49.0", "2.5.1", (3, 11), "12.4"),
        ("5.3.0", "2.9.0", (3, 12), "13.0"),
        ("5.13.1", "2.11.0", (3, 12), "13.0"),
    ],
)
def test_hugging_face_images(version: str, engine: str, python: tuple[int, int], cuda: str) -> None:
    """Those that AWS lists at 2026-08-21, by version and by address: for GPUs only."""
    image = resolve_image("huggingface", version, region="us-west-2")
    assert (image.engine, image.python_version, image.cuda) == (("pytorch", engine), python, cuda)
    assert image_of_uri(image.uri) == image
    assert (image.in_test, image.toolkit) == ("2026-08-21" if version == "5.13.1" else "", "5.1.1")
    with pytest.raises(JobError, match="CPUs"):
        resolve_image("huggingface", version, region="us-west-2", device="cpu")


def test_an_image_in_test_is_no_default() -> None:
    """Who names its version gets it; who names none, or one that is nowhere, is led to a released one."""
    address = f"{WEST}/huggingface-pytorch-training:2.11.0-transformers5.13.1-gpu-py312-cu130-amzn2023-sagemaker"
    assert resolve_image("huggingface", "5.13", region="us-west-2").uri == address
    assert resolve_image("huggingface", region="us-west-2").version == "5.3.0"
    assert "the newest is `5.3.0`" in problem("huggingface", "5.99").message


def test_the_newest_python_is_the_default() -> None:
    """An image with several Pythons: the newest, unless the job names one."""
    assert resolve_image("tensorflow", "1.15", region="us-west-2").tag == "1.15.5-gpu-py37"
    assert (
        resolve_image("tensorflow", "1.15", region="us-west-2", python="3.6").tag
        == "1.15.5-gpu-py36"
    )


def test_an_old_image_has_another_tag_for_a100() -> None:
    """The images of 2020 need a CUDA of their own on ml.p4d, and for SageMaker's libraries."""
    for more in ({"instance": "ml.p4d.24xlarge"}, {"smdistributed": True}):
        assert (
            resolve_image("pytorch", "1.6", region="us-west-2", **more).tag
            == "1.6.0-gpu-py36-cu110-ubuntu18.04"
        )
    assert (
        resolve_image("pytorch", "1.6", region="us-west-2", instance="ml.p3.2xlarge").tag
        == "1.6.0-gpu-py36"
    )


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("1.12.1", (True, 1)), ("1.13.1", (True, 1)), ("2.0.0", (True, 1)), ("2.0.1", (True, 0)), ("2.2.0", (True, 0)),
        ("2.5.1", (True, 0)), ("2.6.0", (False, 0)), ("2.13", (False, 0)),
    ],
)  # fmt: skip
def test_which_libraries_an_image_has(version: str, inside: tuple[bool, int]) -> None:
    """SageMaker's libraries end: model parallelism v1 after PyTorch 2.0.0, data parallelism after 2.5."""
    image = resolve_image("pytorch", version, region="us-west-2")
    assert (image.smddp, image.smp) == inside
    on_cpu = resolve_image("pytorch", version, region="us-west-2", device="cpu")
    assert (on_cpu.smddp, on_cpu.smp, on_cpu.cuda) == (False, 0, "")


def test_hugging_face_has_what_its_base_has() -> None:
    """Libraries, toolkit and CUDA are those of the framework below."""
    image = resolve_image("huggingface", "4.17", region="us-west-2", base="tensorflow2.6")
    assert (image.engine, image.smddp, image.smp, image.cuda) == (
        ("tensorflow", "2.6.3"),
        True,
        1,
        "11.2",
    )
    image = resolve_image("huggingface", "4.56", region="us-west-2")
    assert (image.engine, image.smddp, image.smp, image.cuda) == (
        ("pytorch", "2.8.0"),
        False,
        0,
        "12.9",
    )


def test_every_toolkit_of_today_has_a_shell_in_between() -> None:
    """No image is known to hold sagemaker-training 5.1.3, the first without a shell; the oldest images hold none."""
    images = [
        resolve_image("pytorch", version, region="us-west-2")
        for version in versions("pytorch", "gpu")
    ]
    assert {image.toolkit for image in images} == {None, "5.1.1"}
    assert [image.version for image in images if image.toolkit is None][-1] == "1.5.0"


def test_a_library_version_is_no_pytorch_version() -> None:
    """SDK 2 gives an address for PyTorch 2.8.0 with the model parallelism library; nothing says that it exists."""
    image = resolve_image(
        "pytorch", "2.8.0", region="us-west-2", instance="ml.p5.48xlarge", smp2=True
    )
    assert image.uri == f"{SMP2}:2.8.0-gpu-py311-cu121"
    assert image.doubt is not None
    assert "2.3.1, 2.4.1, 2.5.1" in image.doubt
    assert tables()["smp_aliases"]["2.5.1"] == "2.8.0"
    assert all(
        resolve_image("pytorch", real, region="us-west-2", smp2=True).doubt is None
        for real in smp_versions()
    )


@pytest.mark.parametrize(
    ("arguments", "more", "path", "message", "hint"),
    [
        (("pytorch", "2.9.3"), {}, "environment.version", "no image of PyTorch `2.9.3` for GPUs; the newest is `2.14`", "use `2.9.0`"),
        (("pytorch", "3.0"), {}, "environment.version", "the newest is `2.14`", "use `2.14`; or give"),
        (("pytorch", "2.15.1"), {}, "environment.version", "the newest is `2.14`", "`environment.image`"),
        (("tensorflow", "2.15"), {}, "environment.version", "no image of TensorFlow `2.15`", "use `2.16.2`, or the newest, `2.21.0`"),
        (("pytorch", "newest"), {}, "environment.version", "no image of PyTorch `newest`", "use `2.14`"),
        (("pytorch", "2.6"), {"instance": "ml.trn1.2xlarge"}, "environment.version", "for Trainium; the newest is `2.9.0`", "`environment.image`"),
        (("pytorch", "2.6"), {"smp2": True}, "environment.version", "library v2 `2.6` for GPUs; the newest is `2.5.1`", "use `2.5.1`"),
        (("pytorch", "2.8"), {"python": "3.13"}, "environment.python", "PyTorch 2.8.0 has Python 3.12, not 3.13", "use `3.12`"),
        (("pytorch", "1.6"), {"python": "3.12"}, "environment.python", "has Python 3 and 3.6, not 3.12", "use `3` or `3.6`"),
        (("pytorch", "2.5.1"), {"python": "3.12", "smp2": True}, "environment.python", "2.5.1 has Python 3.11, not 3.12", "use `3.11`"),
        (("pytorch", "2.8"), {"python": "three"}, "environment.python", "`three` is not a version of Python", "`3.12`"),
        (("pytorh", "2.8"), {}, "environment.framework", "no images of `pytorh`", suggested("pytorch")),
        (("huggingface", "4.56"), {"device": "cpu"}, "environment.framework", "no image of Hugging Face for CPUs", "another instance type"),
        (("tensorflow", "2.19"), {"smp2": True}, "environment.framework", "is for PyTorch on GPUs, not TensorFlow on GPUs", "framework: pytorch"),
        (("huggingface", "4.56"), {"base": "pytorch2.9"}, "environment.base", "Hugging Face 4.56.2 is built on `pytorch2.9`", "use `pytorch2.8.0`"),
        (("pytorch", "2.8"), {"base": "pytorch2.8"}, "environment.base", "`base` applies to Hugging Face images", "remove `base`"),
        (("pytorch", "9" * 5000), {}, "environment.version", "no image of PyTorch", "use `2."),
        (("pytorch", "2.8"), {"region": "us-wst-2"}, "", "`us-wst-2` is not a region of AWS", "`us-west-2`"),
        (("pytorch", "2.5"), {"region": "cn-north-1", "smp2": True}, "environment", "`cn-north-1` has no image", "17 regions"),
        (("pytorch", "2.0"), {"instance": "ml.p2.xlarge"}, "resources.instance_type", "does not run on `ml.p2.xlarge`", "`ml.g5.xlarge`"),
    ],
)  # fmt: skip
def test_an_image_that_there_is_not(
    arguments: tuple[str, str], more: dict[str, Any], path: str, message: str, hint: str
) -> None:
    """The error names the field and the numbers, and the hint says what to type."""
    found = problem(*arguments, **more)
    assert found.dotted == path
    assert message in found.message
    assert hint in (found.hint or "")


@pytest.mark.parametrize(
    ("uri", "facts"),
    [
        (f"{WEST}/pytorch-training:2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker", ("pytorch", "2.9.0", "gpu", "py312", "13.0", "5.1.1", False, 0)),
        (f"{WEST}/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker", ("pytorch", "2.5.1", "gpu", "py311", "12.4", "5.1.1", True, 0)),
        (f"{WEST}/pytorch-training:2.8.0-cpu-py312@sha256:0f", ("pytorch", "2.8.0", "cpu", "py312", "", "5.1.1", False, 0)),
        ("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/tensorflow-training:2.19.0-gpu-py312", ("tensorflow", "2.19.0", "gpu", "py312", "12.5", "5.1.1", False, 0)),
        (f"{WEST}/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04", ("pytorch", "2.9.0", "neuron", "py312", "", "5.1.1", False, 0)),
        (f"{WEST}/huggingface-pytorch-training:1.10.2-transformers4.17.0-gpu-py38-cu113-ubuntu20.04", ("huggingface", "4.17.0", "gpu", "py38", "11.3", "5.1.1", True, 1)),
        (f"{SMP2}:2.4.1-gpu-py311-cu121", ("pytorch", "2.4.1", "gpu", "py311", "12.1", "5.1.1", True, 2)),
        ("public.ecr.aws/deep-learning-containers/pytorch:2.13-cu133-amzn2023-sagemaker", ("pytorch", "2.13", "gpu", "py312", "13.3", "5.1.1", False, 0)),
        ("public.ecr.aws/deep-learning-containers/pytorch:2.13.1-cpu-amzn2023-sagemaker-v1.2", ("pytorch", "2.13.1", "cpu", "py312", "", "5.1.1", False, 0)),
    ],
)  # fmt: skip
def test_what_an_address_tells(uri: str, facts: tuple[object, ...]) -> None:
    """Short and full tags, old and new names, all partitions and the public registry."""
    image = image_of_uri(uri)
    assert image is not None
    assert (
        image.framework, image.version, image.device, image.python, image.cuda, image.toolkit, image.smddp, image.smp
    ) == facts  # fmt: skip
    assert image.uri == uri.partition("@")[0]


@pytest.mark.parametrize(
    "tag",
    ["pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-ec2", "pytorch:2.12.1-cu130-amzn2023"],
)
def test_an_image_for_ec2_has_no_toolkit(tag: str) -> None:
    """AWS publishes each image twice; the one for EC2 starts nothing on SageMaker."""
    image = image_of_uri(f"{WEST}/{tag}")
    assert image is not None
    assert image.toolkit is None
    assert "image for EC2" in (image.doubt or "")


@pytest.mark.parametrize(
    "uri",
    [
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/my-image:latest",
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312",
        f"{WEST}/pytorch-training",
        f"{WEST}/pytorch-training:latest",
        f"{WEST}/pytorch-training@sha256:00",
        f"{WEST}/pytorch-inference:2.6.0-gpu-py312",
        f"{WEST}/huggingface-pytorch-training:2.8.0-gpu-py312",
        "pytorch/pytorch:2.8.0-cuda12.9-cudnn9-runtime",
        "",
    ],
)
def test_other_images_are_the_users_own(uri: str) -> None:
    """Nothing is guessed of an image that is not AWS's, or whose tag says too little."""
    assert image_of_uri(uri) is None


@pytest.mark.parametrize(
    ("tag", "version", "engine"),
    [
        ("pytorch-training:1.13-gpu-py39", "1.13.1", "1.13.1"),
        ("pytorch-training:2.10-cpu-py313", "2.10.0", "2.10.0"),
        ("pytorch:2.11-cu130-amzn2023-sagemaker", "2.11", "2.11"),
        ("tensorflow-training:2.9-gpu-py39", "2.9.2", "2.9.2"),
        (
            "huggingface-pytorch-training:1.13-transformers4.26-gpu-py39-cu117-ubuntu20.04",
            "4.26.0",
            "1.13.1",
        ),
        ("pytorch-training:2.5.0-gpu-py311", "2.5.0", "2.5.0"),
        ("pytorch-training:7.7-gpu-py39", "7.7", "7.7"),
    ],
)
def test_a_short_tag_is_the_newest_patch_release(tag: str, version: str, engine: str) -> None:
    """AWS moves a short tag to the newest patch release; the address stays as it was written."""
    found = image_of_uri(f"{WEST}/{tag}")
    assert found is not None
    assert (found.version, found.engine[1], found.uri) == (version, engine, f"{WEST}/{tag}")


def test_the_device_follows_the_family() -> None:
    """As in the SDK: g and p are GPUs, trn is Trainium, all else is CPU."""
    devices = {
        name: device_of(name)
        for name in ("ml.g6e.xlarge", "ml.p5.4xlarge", "ml.trn2.48xlarge", "ml.c7i.large")
    }
    assert list(devices.values()) == ["gpu", "gpu", "neuron", "cpu"]


def test_the_lists_are_in_order() -> None:
    """Frameworks, and versions from the oldest to the newest."""
    assert set(tables()["frameworks"]) == {"pytorch", "tensorflow", "huggingface", "pytorch-smp"}
    assert versions("pytorch")[-5:] == ("2.10.0", "2.11", "2.12", "2.13", "2.14")
    assert versions("pytorch", "neuron") == ("1.11.0", "1.13.1", "2.1.2", "2.5.1", "2.8.0", "2.9.0")
    assert versions("huggingface")[0] == "4.4.2"


@pytest.mark.parametrize(
    ("framework", "version", "tag"),
    [
        ("pytorch", None, "pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"),
        ("pytorch", "2.8", "pytorch-training-neuronx:2.8.0-neuronx-py311-sdk2.26.0-ubuntu22.04"),
        (
            "huggingface",
            "4.55.4",
            "huggingface-pytorch-training-neuronx:2.7.0-transformers4.55.4-neuronx-py310-sdk2.26.0-ubuntu22.04",
        ),
    ],
)
def test_trainium_has_new_images_too(framework: str, version: str | None, tag: str) -> None:
    """Those of torch-neuronx, by version; and their addresses tell what is inside."""
    image = resolve_image(framework, version, region="us-west-2", instance="ml.trn1.32xlarge")
    assert image.uri == f"{WEST}/{tag}"
    assert image_of_uri(image.uri) == image


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("pytorch-training:2.8.0-gpu-py312-trcomp-training@sha256:ab", False),
        ("huggingface-pytorch-trcomp-training:1.11.0-gpu", True),
        ("mxnet-training:1.9.0-gpu-py38", True),
    ],
)
def test_a_toolkit_that_cloudtrain_knows_is_no_other(name: str, other: bool) -> None:
    """An image of the catalogue has a known toolkit, whatever its tag says."""
    assert has_other_toolkit(f"{WEST}/{name}") == other
