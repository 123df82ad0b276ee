"""From the name that the store gives a service to the service: a target's, its tuner's, or our own driver's."""

from __future__ import annotations

from cloudtrain.store.kinds import SWEEP, TUNER
from cloudtrain.targets.base import Service, Tuner
from cloudtrain.targets.registry import Surroundings, service_of, target_of


def service_named(name: str, surroundings: Surroundings) -> Service:
    """The service of a target, or with `sweep:` or `tuner:` before the name that of its sweeps.

    Raises:
        SettingsError: no such target.
    """
    return tuner_named(name, surroundings) if ":" in name else service_of(name, surroundings)


def tuner_named(name: str, surroundings: Surroundings) -> Tuner:
    """What drives the sweeps of a target: with `sweep:` before its name our own driver, with `tuner:` its own tuner.

    Raises:
        SettingsError: no such target.
    """
    if name.startswith(SWEEP):
        from cloudtrain.sweeps.service import SweepService

        return SweepService(surroundings.environ, surroundings.state_dir)
    target = target_of(name.removeprefix(TUNER))
    return target.tuner(environ=surroundings.environ, state_dir=surroundings.state_dir)
