"""Published models: how a client publishes a model as ONNX, and how the models of others are checked and run.

`publish` turns a fitted model into a `Published`: its bytes, and a manifest that describes them. `predict` runs
untrusted models in a child process with limits, and returns why some were refused. Knows models, manifests
and rows. Does not know who stacks the models, or how they are sent.
"""

from motet.published.feature_defaults import defaults
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
