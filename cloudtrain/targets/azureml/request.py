"""The fields of a job's body that determine its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Request = Mapping[str, Any]
"""The body of `PUT jobs/NAME`: `{"properties": {...}}`."""


@dataclass(frozen=True)
class Body:
    """A request, with properties that read its fields."""

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
        """Return the shell's command line, in which references are not yet replaced."""
        return str(self._properties["command"])

    @property
    def experiment(self) -> str:
        """Return the experiment's name; the service puts jobs without an experiment into `Default`."""
        return str(self._properties.get("experimentName") or "Default")

    @property
    def instances(self) -> int:
        """Return the number of instances. Default: one."""
        return _count(self._section("resources").get("instanceCount")) or 1

    @property
    def instance_type(self) -> str | None:
        """Return the instance type; None on a cluster, which has its own type."""
        return self._section("resources").get("instanceType")

    @property
    def environment(self) -> str:
        """Return the id of the environment."""
        return str(self._properties.get("environmentId") or "")

    @property
    def distribution(self) -> Mapping[str, Any]:
        """Return the distribution; empty if the body has none."""
        return self._section("distribution")

    @property
    def kind(self) -> str:
        """Return the distribution's type: `PyTorch`, `Mpi`, `TensorFlow` or `Ray`; empty without a distribution."""
        return str(self.distribution.get("distributionType") or "")

    @property
    def processes_per_instance(self) -> int:
        """Return the number of processes on each instance. Default: one, even with several GPUs, as documented for
        PyTorch.
        """
        return _count(self.distribution.get("processCountPerInstance")) or 1

    @property
    def parameter_servers(self) -> int:
        """Return the number of TensorFlow's parameter servers. Default: none."""
        return _count(self.distribution.get("parameterServerCount"))

    @property
    def workers(self) -> int:
        """Return the number of TensorFlow's workers. Default: one for each instance."""
        return _count(self.distribution.get("workerCount")) or self.instances

    @property
    def variables(self) -> dict[str, str]:
        """Return the job's own environment variables. The service replaces references only in the command, not
        in variables.
        """
        return {name: str(value) for name, value in self._section("environmentVariables").items()}

    @property
    def inputs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the inputs by name."""
        return _mappings(self._section("inputs"))

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the outputs by name."""
        return _mappings(self._section("outputs"))


def _count(value: Any) -> int:
    """Return a number of instances or processes; 0 if the value is not a positive whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _mappings(named: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {name: item for name, item in named.items() if isinstance(item, Mapping)}
