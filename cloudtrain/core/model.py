"""The base class of all job models: frozen, strict about unknown fields, with errors that suggest a correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from cloudtrain.errors import JobError
from cloudtrain.problems.collect import Rules, problems_of, validate_with_rules

if TYPE_CHECKING:
    from pydantic import Field, PrivateAttr
    from pydantic._internal._model_construction import ModelMetaclass
    from typing_extensions import Self, dataclass_transform

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, PrivateAttr))
    class _Meta(ModelMetaclass):
        """Tells type checkers that models are frozen, which type checkers cannot derive from `model_config`."""

else:

    class _Meta(type(BaseModel)):
        """Converts pydantic's error to a JobError when the user creates a model: `ct.Resources(instance_cout=2)`.

        Only the outermost call uses this metaclass. Pydantic validates nested models itself, so all problems of a job
        are reported together, each with its full path.
        """

        def __call__(cls, /, *args, **kwargs):
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                raise JobError(problems_of(error, cls)) from None


def all_at_once(rules: Rules) -> Any:
    """Return a model validator that applies `rules` to the fields as they were written, valid or not.

    Problems found by the rules are reported together with problems of the fields.
    """

    @classmethod  # type: ignore[misc]  # model_validator takes a classmethod, which mypy allows only in a class
    def check(cls: type[BaseModel], data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        return validate_with_rules(rules, cls, data, handler)

    return model_validator(mode="wrap")(check)


class Model(BaseModel, metaclass=_Meta):
    """Base class of frozen models. Unknown fields are errors, and numbers and strings are never converted into each
    other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=False, defer_build=True)

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy in which `changes` replace the values of the named fields.

        Raises:
            JobError: a changed value is not valid.
        """
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)
