"""The contents of an image that decide how a job starts, and the features of its version of the
training toolkit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from cloudtrain.targets.sagemaker.catalogue.images import Image, numbers

Framework = Literal["pytorch", "tensorflow", "generic"]


class ImageContents(NamedTuple):
    """The facts about an image that decide how a job starts.

    Attributes:
        framework: the framework whose toolkit runs; `generic` for images without
            SAGEMAKER_TRAINING_MODULE.
        toolkit: the version of sagemaker-training.
        smddprun: whether the data-parallel library is installed.
        smddpmprun: whether the model-parallel library's wrapper is installed.
        torch: the version of PyTorch; None if unknown.
        training_module: the value of SAGEMAKER_TRAINING_MODULE in the image; None if unknown.
    """

    framework: Framework
    toolkit: str
    smddprun: bool = False
    smddpmprun: bool = False
    torch: str | None = None
    python: str = "python"
    training_module: str | None = None

    @property
    def version(self) -> tuple[int, ...]:
        return numbers(self.toolkit)

    def sets_efa(self, instance_type: str) -> bool:
        """Return whether the toolkit makes libfabric use EFA on instances of this type."""
        return self._knows(_EFA_SINCE, instance_type)

    def sets_rdma(self, instance_type: str) -> bool:
        """Return whether the toolkit lets EFA read and write GPU memory on instances of this
        type."""
        return self._knows(_RDMA_SINCE, instance_type)

    def _knows(self, since: Mapping[str, str], instance_type: str) -> bool:
        for version, names in since.items():
            if instance_type in names.split():
                return self.version >= numbers(version)
        return False


_EFA_SINCE = {
    "0": "ml.g4dn.8xlarge ml.g4dn.12xlarge ml.g5.48xlarge ml.p3dn.24xlarge ml.p4d.24xlarge "
    "ml.p4de.24xlarge "
    "ml.trn1.32xlarge",
    "4.9": "ml.p5.48xlarge",
    "5.1": "ml.p6e-gb200.36xlarge",
    "5.1.2": "ml.p5e.48xlarge",
}
_RDMA_SINCE = {
    "0": "ml.p4d.24xlarge ml.p4de.24xlarge ml.trn1.32xlarge",
    "5.1": "ml.p6e-gb200.36xlarge",
    "5.1.2": "ml.p5.48xlarge ml.p5e.48xlarge",
}
"""The toolkit's own lists of instance types, by the version that first has them.

The lists were read in 4.7.4, 4.9.0 and 5.0.0 to 5.1.4. They never had p5en, p6-b200, p6-b300, g6,
g6e, trn1n and trn2.
"""


def contents_of(image: Image | None, derived_from: Framework | None = None) -> ImageContents:
    """Return the parts of an image's contents that decide how the job starts.

    A user's own image is assumed to have no framework toolkit, except if it is derived from an AWS
    image.
    """
    if image is None and derived_from is not None:
        module = f"sagemaker_{derived_from}_container.training:main"
        return ImageContents(
            derived_from, _NEWEST_TOOLKIT, smddprun=True, smddpmprun=True, training_module=module
        )
    if image is None or image.toolkit is None:
        return ImageContents("generic", _NEWEST_TOOLKIT)
    name, version = image.engine
    framework: Framework = "tensorflow" if name == "tensorflow" else "pytorch"
    return ImageContents(
        framework,
        image.toolkit,
        smddprun=image.smddp,
        smddpmprun=image.smp == 1,
        torch=version if framework == "pytorch" else None,
        training_module=f"sagemaker_{framework}_container.training:main",
    )


_NEWEST_TOOLKIT = "5.1.4"
"""The sagemaker-training version assumed for a user's own image with the toolkit."""
