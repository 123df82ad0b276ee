"""From the name that the store gives a service to the service: a target's, its tuner's, or our own driver's."""

from __future__ import annotations

from cloudtrain.store.kinds import AFTER, SWEEP, TUNER
from cloudtrain.targets.base import Service, Tuner
from cloudtrain.targets.registry import ServiceContext, service_of, target_of


def service_named(name: str, context: ServiceContext) -> Service:
    """The service of a target, with `sweep:` or `tuner:` before the name that of its sweeps, and with `after:` that of
    the runs that wait here.

    Raises:
        SettingsError: no such target.
    """
    if name.startswith(AFTER):
        from cloudtrain.chains.service import ChainService

        return ChainService(context.environ, context.state_dir)
    return tuner_named(name, context) if ":" in name else service_of(name, context)


def tuner_named(name: str, context: ServiceContext) -> Tuner:
    """What drives the sweeps of a target: with `sweep:` before its name our own driver, with `tuner:` its own tuner.

    Raises:
        SettingsError: no such target.
    """
    if name.startswith(SWEEP):
        from cloudtrain.sweeps.service import SweepService

        return SweepService(context.environ, context.state_dir)
    target = target_of(name.removeprefix(TUNER))
    return target.tuner(environ=context.environ, state_dir=context.state_dir)
