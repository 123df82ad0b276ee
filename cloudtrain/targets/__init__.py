"""The targets. This room brings the check of targets of other packages, so it is made known here,
before the first target is loaded."""

from cloudtrain.targets import registry as registry
