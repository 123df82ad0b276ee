"""Methods that convert a plan into an object or code of a service's SDK.

Every plan has all of these methods, so editors and type checkers find them on the result of `ct.plan`. If the plan's
target does not support a method, the method raises an error that names the targets that support it.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.errors import UsageError


class Exports:
    """The export methods. A target's plan overrides the methods that it supports, and `Target.exports` names them."""

    target: str

    def to_estimator(self, session: Any = None) -> Any:
        """Return an estimator whose `fit(**plan.fit_arguments())` sends the request. `session` is a session of the SDK;
        None creates one.
        """
        raise self._refusal("to_estimator")

    def fit_arguments(self) -> dict[str, Any]:
        """Return the arguments for the estimator's `fit`."""
        raise self._refusal("fit_arguments")

    def to_model_trainer(self, session: Any = None) -> Any:
        """Return a model trainer whose `train(**plan.train_arguments())` sends the request. `session` is a session of
        the SDK; None creates one.
        """
        raise self._refusal("to_model_trainer")

    def train_arguments(self) -> dict[str, Any]:
        """Return the arguments for the trainer's `train`."""
        raise self._refusal("train_arguments")

    def to_command(self) -> Any:
        """Return a command job, which `ml_client.jobs.create_or_update` accepts."""
        raise self._refusal("to_command")

    def to_python(self, *_: Any, **__: Any) -> str:
        """Return code that sends the request with the SDK. The options differ by target."""
        raise self._refusal("to_python")

    def to_yaml(self) -> str:
        """Return the job as YAML for the service's command line."""
        raise self._refusal("to_yaml")

    def _refusal(self, method: str) -> UsageError:
        """Return the error for an unsupported method, which names the targets whose plans support it."""
        from cloudtrain.core.targets import all_targets

        names = [target.name for target in all_targets() if method in target.exports]
        calls = " or ".join(f'`ct.plan(job, "{name}").{method}()`' for name in names)
        message = f"a plan for `{self.target}` has no `{method}`"
        return UsageError(message, hint=f"write {calls}" if calls else None, code="CT904")
