"""Fixed feature maps for exact recursions."""

from hvcl.features.base import FeatureMap
from hvcl.features.cache import FeatureCache, remembering
from hvcl.features.choice import FeatureChoice, is_picture
from hvcl.features.frozen import FrozenModule
from hvcl.features.inputs import InputFeatures
from hvcl.features.patches import PatchFeatures
from hvcl.features.principal import PrincipalDirections
from hvcl.features.random import RandomFeatures

__all__ = [
    "FeatureCache",
    "FeatureChoice",
    "FeatureMap",
    "FrozenModule",
    "InputFeatures",
    "PatchFeatures",
    "PrincipalDirections",
    "RandomFeatures",
    "is_picture",
    "remembering",
]
