"""Fixed feature maps for exact recursions."""

from hvcl.features.base import FeatureMap
from hvcl.features.choice import is_picture
from hvcl.features.frozen import FrozenModule
from hvcl.features.patches import PatchFeatures
from hvcl.features.random import RandomFeatures

__all__ = ["FeatureMap", "FrozenModule", "PatchFeatures", "RandomFeatures", "is_picture"]
