"""What some plans can be had as: an object, or the code, of a service's own SDK.

Every plan has these methods, so that an editor and a type checker find them on what `ct.plan` returns. Those that the
target's own plan does not have say which target's does.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.errors import UsageError


class Exports:
    """The methods; a target's plan defines those that it has, and `Target.exports` names them."""

    target: str

    def to_estimator(self, session: Any = None) -> Any:
        """An estimator, whose `fit(**plan.fit_arguments())` sends the request."""
        raise self._refusal("to_estimator")

    def fit_arguments(self) -> dict[str, Any]:
        """What the estimator's `fit` is called with."""
        raise self._refusal("fit_arguments")

    def to_model_trainer(self, session: Any = None) -> Any:
        """A model trainer, whose `train(**plan.train_arguments())` sends the request."""
        raise self._refusal("to_model_trainer")

    def train_arguments(self) -> dict[str, Any]:
        """What the trainer's `train` is called with."""
        raise self._refusal("train_arguments")

    def to_command(self) -> Any:
        """A command job, which the client of the SDK creates."""
        raise self._refusal("to_command")

    def to_python(self, *_: Any, **__: Any) -> str:
        """Code that sends the request with the SDK. What it can be told differs by target."""
        raise self._refusal("to_python")

    def to_yaml(self) -> str:
        """The job as YAML for the service's command line."""
        raise self._refusal("to_yaml")

    def _refusal(self, method: str) -> UsageError:
        """The error that names the targets whose plans have the method."""
        from cloudtrain.core.targets import all_targets

        names = [target.name for target in all_targets() if method in target.exports]
        calls = " or ".join(f'`ct.plan(job, "{name}").{method}()`' for name in names)
        message = f"a plan for `{self.target}` has no `{method}`"
        return UsageError(message, hint=f"write {calls}" if calls else None, code="CT904")
