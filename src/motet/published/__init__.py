"""Models that clients publish as ONNX for strangers, and how a stranger's model is checked and run.

`publish` turns a fitted model into a `Published`: bytes and a manifest that says what they are. `predict`
runs the models of others in a child process with limits, and says which it refused and why. Knows models,
manifests and rows. Does not know who stacks them, or how they travel.
"""

from motet.published.defaults import defaults
from motet.published.limits import Limits
from motet.published.manifest import Feature, Manifest, ModelRefused, Privacy, Published
from motet.published.publish import publish
from motet.published.runner import Runner, predict

__all__ = [
    "Feature",
    "Limits",
    "Manifest",
    "Privacy",
    "Published",
    "ModelRefused",
    "Runner",
    "defaults",
    "predict",
    "publish",
]
