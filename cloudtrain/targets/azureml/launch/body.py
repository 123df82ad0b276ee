"""The parts of a job's body that decide what starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Request = Mapping[str, Any]
"""The body of `PUT jobs/NAME`: `{"properties": {...}}`."""


@dataclass(frozen=True)
class Body:
    """A request, read."""

    request: Request

    @property
    def _properties(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.request["properties"]
        return found

    def _section(self, field: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._properties.get(field) or {}
        return found

    @property
    def command(self) -> str:
        """The shell's command line, references in it."""
        return str(self._properties["command"])

    @property
    def experiment(self) -> str:
        """`Default` is where the service puts jobs without one."""
        return str(self._properties.get("experimentName") or "Default")

    @property
    def instances(self) -> int:
        """How many; one unless the body says so."""
        return _count(self._section("resources").get("instanceCount")) or 1

    @property
    def instance_type(self) -> str | None:
        """None on a cluster, which has its own."""
        return self._section("resources").get("instanceType")

    @property
    def environment(self) -> str:
        """The id of the environment."""
        return str(self._properties.get("environmentId") or "")

    @property
    def distribution(self) -> Mapping[str, Any]:
        """Empty without one."""
        return self._section("distribution")

    @property
    def kind(self) -> str:
        """`PyTorch`, `Mpi`, `TensorFlow`, `Ray`, or nothing."""
        return str(self.distribution.get("distributionType") or "")

    @property
    def processes_per_instance(self) -> int:
        """One where the body leaves it open, however many GPUs there are: so documented for PyTorch."""
        return _count(self.distribution.get("processCountPerInstance")) or 1

    @property
    def parameter_servers(self) -> int:
        """TensorFlow's; none where the body leaves it open."""
        return _count(self.distribution.get("parameterServerCount"))

    @property
    def workers(self) -> int:
        """TensorFlow's; one for each instance where the body leaves it open."""
        return _count(self.distribution.get("workerCount")) or self.instances

    @property
    def variables(self) -> dict[str, str]:
        """The job's own environment variables. The service replaces no references in them, only in the command."""
        return {name: str(value) for name, value in self._section("environmentVariables").items()}

    @property
    def inputs(self) -> Mapping[str, Mapping[str, Any]]:
        """By name."""
        return _mappings(self._section("inputs"))

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """By name."""
        return _mappings(self._section("outputs"))


def _count(value: Any) -> int:
    """A number of instances or processes; 0 for what is none. A user's overrides may hold anything, and the rules say
    what is wrong with it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _mappings(named: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {name: item for name, item in named.items() if isinstance(item, Mapping)}
