"""Clusters, the sizes of the location, what is used of the quotas, and the quotas themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

_PROVIDER = "Microsoft.MachineLearningServices"


@dataclass
class Cluster:
    """An AmlCompute cluster. The service writes sizes in upper case."""

    name: str
    size: str
    most: int = 4
    least: int = 0
    priority: str = "Dedicated"
    state: str = "Succeeded"
    nodes: int = 0
    more: Json = field(default_factory=dict)

    def describe(self, workspace: str, location: str) -> Json:
        scale = {
            "maxNodeCount": self.most,
            "minNodeCount": self.least,
            "nodeIdleTimeBeforeScaleDown": "PT2M",
        }
        details = {
            "vmSize": self.size.upper(), "vmPriority": self.priority, "scaleSettings": scale, "osType": "Linux",
            "allocationState": "Steady", "currentNodeCount": self.nodes, "targetNodeCount": self.nodes,
            "remoteLoginPortPublicAccess": "Disabled", "isolatedNetwork": False, "enableNodePublicIp": True,
            "errors": None,
        }  # fmt: skip
        return {
            "id": f"{workspace}/computes/{self.name}",
            "name": self.name,
            "type": f"{_PROVIDER}/workspaces/computes",
            "location": location,
            "properties": {
                "computeType": "AmlCompute", "computeLocation": location, "provisioningState": self.state,
                "createdOn": "2026-01-01T00:00:00.0000000+00:00", "isAttachedCompute": False,
                "disableLocalAuth": False, "properties": details, **self.more,
            },
        }  # fmt: skip


@dataclass
class Size:
    """A size as the location lists it; prices in US dollars per hour by tier of VM."""

    name: str
    family: str
    cores: int
    gpus: int
    memory_gb: float
    prices: dict[str, float] = field(default_factory=dict)
    capabilities: dict[str, str] = field(default_factory=dict)
    """What Microsoft.Compute says beyond: RdmaEnabled, ..."""

    def describe(self) -> Json:
        prices = [
            {"retailPrice": price, "osType": "Linux", "vmTier": tier} for tier, price in self.prices.items()
        ]  # fmt: skip
        return {
            "name": self.name, "family": self.family, "vCPUs": self.cores, "gpus": self.gpus, "osVhdSizeMB": 1047552,
            "maxResourceVolumeMB": 1024000, "memoryGB": self.memory_gb, "lowPriorityCapable": True, "premiumIO": True,
            "estimatedVMPrices": {"billingCurrency": "USD", "unitOfMeasure": "OneHour", "values": prices},
            "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
        }  # fmt: skip

    def sku(self, location: str) -> Json:
        capabilities = {
            "vCPUs": str(self.cores), "MemoryGB": f"{self.memory_gb:g}", "CpuArchitectureType": "x64",
            **({"GPUs": str(self.gpus)} if self.gpus else {}), **self.capabilities,
        }  # fmt: skip
        return {
            "resourceType": "virtualMachines", "name": self.name, "tier": "Standard",
            "size": self.name.removeprefix("Standard_"), "family": self.family, "locations": [location],
            "capabilities": [{"name": name, "value": value} for name, value in capabilities.items()],
            "restrictions": [],
        }  # fmt: skip


SIZES = (
    Size(
        "Standard_ND96isr_H100_v5",
        "standardNDISRH100V5Family",
        96,
        8,
        1900,
        {"Standard": 98.32},
        {"RdmaEnabled": "True"},
    ),
    Size(
        "Standard_NC24ads_A100_v4",
        "StandardNCADSA100v4Family",
        24,
        1,
        220,
        {"Standard": 3.67, "LowPriority": 0.73},
    ),
    Size("Standard_DS3_v2", "standardDSv2Family", 4, 0, 14, {"Standard": 0.293}),
)


@dataclass
class Quota:
    """Of a family: how many vCPUs are used, and how many there may be."""

    family: str
    limit: int
    used: int = 0
    shown: str = ""


class Computes:
    """The service. `add` makes a cluster; `sizes` and `quotas` are lists that tests may change."""

    def __init__(self, workspace: str, subscription: str, location: str) -> None:
        self.workspace, self.subscription, self.location = workspace, subscription, location
        self.clusters: dict[str, Cluster] = {}
        self.sizes = list(SIZES)
        self.quotas = [Quota(size.family, 192) for size in SIZES]
        self.skus_allowed = True
        self.page_size = 100
        self.add("gpu-cluster", "Standard_ND96isr_H100_v5")
        self.add("cpu-cluster", "Standard_DS3_v2")

    def add(self, name: str, size: str, **more: Any) -> Cluster:
        self.clusters[name] = Cluster(name, size, **more)
        return self.clusters[name]

    def exists(self, arm_id: str) -> bool:
        return arm_id.rsplit("/", 1)[-1] in self.clusters

    @property
    def routes(self) -> list[Route]:
        places = f"{{SUB}}/providers/{_PROVIDER}/locations/{{location}}"
        return [
            Route("GET", "{WS}/computes", "workspaces/computes", self._list),
            Route("GET", "{WS}/computes/{name}", "workspaces/computes", self._get),
            Route("GET", f"{places}/vmSizes", "locations/vmSizes", self._sizes),
            Route("GET", f"{places}/usages", "locations/usages", self._usages),
            Route("GET", f"{places}/quotas", "locations/quotas", self._quotas),
            Route("GET", "{SUB}/providers/Microsoft.Compute/skus", "skus", self._skus),
        ]

    def _list(self, request: Request) -> Reply:
        found = [
            cluster.describe(self.workspace, self.location) for cluster in self.clusters.values()
        ]
        start = int(request.query.get("$skip", 0))
        end = start + self.page_size
        body: Json = {"value": found[start:end]}
        if end < len(found):
            version = request.query["api-version"]
            path = f"{self.workspace}/computes?api-version={version}&%24skip={end}"
            body["nextLink"] = f"https://{request.headers['host']}{path}"
        return answer(body)

    def _get(self, request: Request, name: str) -> Reply:
        if name not in self.clusters:
            return Reply(404)  # without a body, as recorded in 2023
        return answer(self.clusters[name].describe(self.workspace, self.location))

    def _sizes(self, request: Request, location: str) -> Reply:
        return answer({"value": [size.describe() for size in self.sizes]})

    def _usages(self, request: Request, location: str) -> Reply:
        """One entry for each family in the workspace, and one for all of them."""
        found = [self._usage(quota) for quota in self.quotas]
        used = sum(quota.used for quota in self.quotas)
        total = self._usage(
            Quota("TotalDedicatedCores", 1000, used, "Total Cluster Dedicated Regional vCPUs")
        )
        return answer({"value": [total, *found]})

    def _usage(self, quota: Quota) -> Json:
        shown = quota.shown or f"{_words(quota.family)} Cluster Dedicated vCPUs"
        place = f"{self.subscription}/providers/{_PROVIDER}/locations/{self.location}"
        return {
            "id": f"{place}/usages/{quota.family}", "type": f"{_PROVIDER}/usages", "amlWorkspaceLocation": self.location,
            "unit": "Count", "currentValue": quota.used, "limit": quota.limit,
            "name": {"value": quota.family, "localizedValue": shown},
        }  # fmt: skip

    def _quotas(self, request: Request, location: str) -> Reply:
        found = []
        for quota in self.quotas:
            usage = self._usage(quota)
            place = f"{self.workspace}/quotas/{quota.family}"
            kept = {key: usage[key] for key in ("name", "limit", "unit", "amlWorkspaceLocation")}
            found.append({"id": place, "type": f"{_PROVIDER}/workspaces/quotas", **kept})
        return answer({"value": found})

    def _skus(self, request: Request) -> Reply:
        if not self.skus_allowed:
            message = "The client does not have authorization to perform action 'Microsoft.Compute/skus/read'."
            raise Refused(403, "AuthorizationFailed", message)
        return answer({"value": [size.sku(self.location) for size in self.sizes]})


def _words(family: str) -> str:
    """`standardNDISRH100V5Family` as the portal says it."""
    return f"Standard {family.removeprefix('standard').removeprefix('Standard').removesuffix('Family')} Family"
