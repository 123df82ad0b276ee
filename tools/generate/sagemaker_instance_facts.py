"""What `sagemaker_instances.py` cannot read from an installed package: each table with its source.

Names are EC2's here; SageMaker's have `ml.` before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

P2 = "aws.amazon.com/ec2/instance-types/p2; GPUs: SageMaker SDK 2.257.7 image_uri_config/instance_gpu_info.json"
P3 = "aws.amazon.com/ec2/instance-types/p3; GPUs: SageMaker SDK 2.257.7 image_uri_config/instance_gpu_info.json"
P6E = "aws.amazon.com/ec2/instance-types/p6; docs.aws.amazon.com/AWSEC2 efa-acc-inst-types (4 x 400 Gbps of 8 cards)"
TRN2 = "EC2 DescribeInstanceTypes; Neuron: sagemaker-training 5.1.4, aws.amazon.com/ec2/instance-types/trn2"

SPECS: dict[str, dict[str, Any]] = {
    "p2.xlarge": {"vcpus": 4, "memory_gib": 61, "gpus": 1, "gpu": "K80-12GB", "gpu_memory_gib": 12,
                  "network": "High", "source": P2},
    "p2.8xlarge": {"vcpus": 32, "memory_gib": 488, "gpus": 8, "gpu": "K80-12GB", "gpu_memory_gib": 12,
                   "network": "10 Gigabit", "network_gbps": 10, "source": P2},
    "p2.16xlarge": {"vcpus": 64, "memory_gib": 732, "gpus": 16, "gpu": "K80-12GB", "gpu_memory_gib": 12,
                    "network": "25 Gigabit", "network_gbps": 25, "source": P2},
    "p3.2xlarge": {"vcpus": 8, "memory_gib": 61, "gpus": 1, "gpu": "V100-16GB", "gpu_memory_gib": 16,
                   "network": "Up to 10 Gigabit", "network_gbps": 10, "source": P3},
    "p3.8xlarge": {"vcpus": 32, "memory_gib": 244, "gpus": 4, "gpu": "V100-16GB", "gpu_memory_gib": 16,
                   "network": "10 Gigabit", "network_gbps": 10, "source": P3},
    "p3.16xlarge": {"vcpus": 64, "memory_gib": 488, "gpus": 8, "gpu": "V100-16GB", "gpu_memory_gib": 16,
                    "network": "25 Gigabit", "network_gbps": 25, "source": P3},
    "p6e-gb200.36xlarge": {"vcpus": 144, "memory_gib": 960, "gpus": 4, "gpu": "GB200-186GB", "gpu_memory_gib": 185,
                           "architecture": "arm64", "interconnect": "rdma", "fabric": "efa", "interfaces": 8,
                           "network": "1600 Gigabit", "network_gbps": 1600, "nvme_gb": 22500, "source": P6E},
}  # fmt: skip
"""Complete rows of types that moto's copy of EC2's DescribeInstanceTypes lacks."""

CORRECTIONS: dict[str, dict[str, Any]] = {
    # EC2 says 8 cores and 512 GiB a device. 128 are the physical cores; in the default LNC=2
    # configuration two act as one, and the container's toolkit starts 64 processes
    # (sagemaker-training 5.1.4 hard-codes 64 for this type). 16 x 512 GiB would be 8 TiB;
    # aws.amazon.com/ec2/instance-types/trn2 says 1.5 TB, which is 96 GiB a device.
    "trn2.48xlarge": {"neuron_cores": 64, "neuron_memory_gib": 96, "source": TRN2},
}
"""Cells where EC2's answer differs from what a job finds."""

GPU_NAMES: dict[tuple[str, int], str] = {
    ("A100", 40960): "A100-40GB",
    ("A100", 81920): "A100-80GB",
    ("A10G", 22888): "A10G-24GB",
    ("B200", 183359): "B200-180GB",
    ("B300", 275040): "B300-288GB",
    ("H100", 81920): "H100-80GB",
    ("H200", 144384): "H200-141GB",
    ("L4", 22888): "L4-24GB",
    ("L40S", 45776): "L40S-48GB",
    ("RTX PRO 4500", 32768): "RTX-PRO-4500-32GB",
    ("RTX PRO Server 6000", 98304): "RTX-PRO-6000-96GB",
    ("T4", 16384): "T4-16GB",
    ("V100", 32768): "V100-32GB",
}
"""Maps EC2's GPU name and MiB to the maker's product name, which people write."""

SMDDP = frozenset({"p4d.24xlarge", "p4de.24xlarge"})
"""AWS's SMDDP documentation: "supports P4 and P4de instances"."""

SMDDP_IN_SDK = frozenset({"p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"})
"""SageMaker SDK 2.257.7 fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES."""


class Quote(NamedTuple):
    """US dollars an hour, on demand, from one source on one date (empty where the source has none)."""

    date: str
    source: str
    prices: dict[str, float]


PRICES = (
    # Studio-JupyterLab rates. Where a training rate is known too (g4dn, g5 and g6: ten types) they
    # are the same, to the cent. p4d and p5 replace 37.688 and 113.068, the prices before the cut of
    # June 2025.
    Quote("2026-09-01", "AWS Price List API, AmazonSageMaker, us-west-2, as quoted in the AV 3.0 Blueprint Lab", {
        "t3.medium": 0.05, "t3.large": 0.10, "t3.xlarge": 0.20, "t3.2xlarge": 0.399,
        "m5.large": 0.115, "m5.xlarge": 0.23, "m5.2xlarge": 0.461, "m5.4xlarge": 0.922,
        "c5.xlarge": 0.204, "c5.2xlarge": 0.408,
        "g4dn.xlarge": 0.7364, "g4dn.2xlarge": 0.94,
        "g5.xlarge": 1.41, "g5.2xlarge": 1.52, "g5.4xlarge": 2.03, "g5.8xlarge": 3.06, "g5.12xlarge": 7.09,
        "g5.24xlarge": 10.18, "g5.48xlarge": 20.36,
        "g6.xlarge": 1.127, "g6.2xlarge": 1.222, "g6.4xlarge": 1.654, "g6.12xlarge": 5.752, "g6.24xlarge": 8.344,
        "g6.48xlarge": 16.688,
        "p4d.24xlarge": 25.251286, "p5.48xlarge": 63.296,
        "g7e.2xlarge": 4.2039, "g7e.4xlarge": 4.9977, "g7e.8xlarge": 6.5853, "g7e.12xlarge": 10.3576,
        "g7e.24xlarge": 20.7152, "g7e.48xlarge": 41.4304,
    }),
    # One rate for notebooks, endpoints, processing and training, to within a cent, as the file
    # says. Three of g6e and g7e are the training rates that another public file read on 2026-06-19.
    Quote("2026-09-27", "AWS Price List API, AmazonSageMaker, us-east-1, as quoted in a public sagemaker_env.py", {
        "m5.large": 0.115, "m5.xlarge": 0.23, "m5.2xlarge": 0.461, "m5.4xlarge": 0.922, "m5.12xlarge": 2.765,
        "m5.24xlarge": 5.53,
        "m6i.large": 0.115, "m6i.xlarge": 0.23, "m6i.2xlarge": 0.461, "m6i.4xlarge": 0.922, "m6i.8xlarge": 1.843,
        "m6i.12xlarge": 2.765, "m6i.16xlarge": 3.686, "m6i.24xlarge": 5.53, "m6i.32xlarge": 7.373,
        "m7i.large": 0.121, "m7i.xlarge": 0.242, "m7i.2xlarge": 0.484, "m7i.4xlarge": 0.968, "m7i.8xlarge": 1.935,
        "m7i.12xlarge": 2.903, "m7i.16xlarge": 3.871, "m7i.24xlarge": 5.806, "m7i.48xlarge": 11.612,
        "c5.xlarge": 0.204, "c5.2xlarge": 0.408, "c5.4xlarge": 0.816, "c5.9xlarge": 1.836, "c5.18xlarge": 3.672,
        "c6i.xlarge": 0.204, "c6i.2xlarge": 0.408, "c6i.4xlarge": 0.816, "c6i.8xlarge": 1.632, "c6i.12xlarge": 2.448,
        "c6i.16xlarge": 3.264, "c6i.24xlarge": 4.896, "c6i.32xlarge": 6.528,
        "c7i.large": 0.107, "c7i.xlarge": 0.214, "c7i.2xlarge": 0.428, "c7i.4xlarge": 0.857, "c7i.8xlarge": 1.714,
        "c7i.12xlarge": 2.57, "c7i.16xlarge": 3.427, "c7i.24xlarge": 5.141, "c7i.48xlarge": 10.282,
        "r5.large": 0.151, "r5.xlarge": 0.302, "r5.2xlarge": 0.605, "r5.4xlarge": 1.21, "r5.8xlarge": 2.419,
        "r5.12xlarge": 3.629, "r5.16xlarge": 4.838, "r5.24xlarge": 7.258,
        "r6i.large": 0.151, "r6i.xlarge": 0.302, "r6i.2xlarge": 0.605, "r6i.4xlarge": 1.21, "r6i.8xlarge": 2.419,
        "r6i.12xlarge": 3.629, "r6i.16xlarge": 4.838, "r6i.24xlarge": 7.258, "r6i.32xlarge": 9.677,
        "r7i.large": 0.159, "r7i.xlarge": 0.318, "r7i.2xlarge": 0.635, "r7i.4xlarge": 1.27, "r7i.8xlarge": 2.54,
        "r7i.12xlarge": 3.81, "r7i.16xlarge": 5.08, "r7i.24xlarge": 7.62, "r7i.48xlarge": 15.241,
        "g4dn.xlarge": 0.7364, "g4dn.2xlarge": 0.94, "g4dn.4xlarge": 1.505, "g4dn.8xlarge": 2.72,
        "g4dn.12xlarge": 4.89, "g4dn.16xlarge": 5.44,
        "g5.16xlarge": 5.12,
        "g6.8xlarge": 2.518, "g6.16xlarge": 4.246,
        "g6e.xlarge": 2.61, "g6e.2xlarge": 2.8, "g6e.4xlarge": 3.76, "g6e.8xlarge": 5.66, "g6e.12xlarge": 13.12,
        "g6e.16xlarge": 9.47, "g6e.24xlarge": 18.83, "g6e.48xlarge": 37.66,
        "p4de.24xlarge": 31.5641,
        "p5.4xlarge": 7.912,
        "trn1.2xlarge": 1.54, "trn1.32xlarge": 24.73,
    }),
    Quote("", "aws-samples/foundation-model-benchmarking-tool src/fmbench/configs/pricing.yml@00ef155", {
        "p3.2xlarge": 3.825,
    }),
    Quote("", "goerlitz/nlp-classification notebooks/10kGNAD/sagemaker/README.md (from aws.amazon.com)", {
        "p3.8xlarge": 14.688, "p3.16xlarge": 28.152, "p3dn.24xlarge": 35.894,
    }),
)  # fmt: skip
"""Prices of the SageMaker instance. The first quote that has a type gives its price."""

MACHINE_PRICES = (
    Quote("2026-11-09", "datareceipts/data-receipts 109-gpu-pricing/hyperscalers.json, us-east-1", {
        "p4d.24xlarge": 21.957642, "p4de.24xlarge": 27.44705, "p5.48xlarge": 55.04,
    }),
    Quote("2026-08-06", "dstackai/dstack pull request 4110, us-east-1", {"p5en.48xlarge": 63.296}),
    Quote("2026-08", "AWS GPU Instance Matrix, EC2 on demand, us-east-1", {
        "g6e.xlarge": 1.8610, "g6e.2xlarge": 2.2421, "g6e.4xlarge": 3.0042, "g6e.8xlarge": 4.5286,
        "g6e.12xlarge": 10.4926, "g6e.16xlarge": 7.5772, "g6e.24xlarge": 15.0655, "g6e.48xlarge": 30.1312,
        "g7e.2xlarge": 3.3631, "g7e.4xlarge": 3.9982, "g7e.8xlarge": 5.2682, "g7e.12xlarge": 8.2861,
        "g7e.24xlarge": 16.5722, "g7e.48xlarge": 33.1443, "p6-b200.48xlarge": 113.93, "p6-b300.48xlarge": 142.42,
    }),
    Quote("", "skypilot-org/skypilot-catalog catalogs/v8/aws/vms.csv@00148f2a, us-east-1", {
        "p3.16xlarge": 24.48, "p5.4xlarge": 6.88,
    }),
    Quote("", "aws-samples/foundation-model-benchmarking-tool src/fmbench/configs/pricing.yml@00ef155", {
        "g4dn.12xlarge": 3.912, "g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.12xlarge": 5.672, "g5.24xlarge": 8.144,
        "g5.48xlarge": 16.288, "g6.2xlarge": 0.9776, "g6.12xlarge": 4.6016, "g6.16xlarge": 3.3968,
        "g6.24xlarge": 6.6752, "g6.48xlarge": 13.3504, "p3.2xlarge": 3.06, "trn1.32xlarge": 21.5,
    }),
)  # fmt: skip
"""Prices of the bare EC2 instance."""
