"""Continual reinforcement learning: chains of tasks, SAC and PPO, methods against forgetting, scores.

The names below are imported when they are first asked for: `hvcl.rl.scores`, which the report computes with, then needs neither
torch nor gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvcl.rl.agent import Agent as Agent
    from hvcl.rl.environments import Padded as Padded
    from hvcl.rl.environments import Task as Task
    from hvcl.rl.environments import TaskSequence as TaskSequence
    from hvcl.rl.evaluation import evaluate as evaluate
    from hvcl.rl.loop import TrainingProtocol as TrainingProtocol
    from hvcl.rl.loop import run as run
    from hvcl.rl.methods import create as create
    from hvcl.rl.methods import known_methods as known_methods
    from hvcl.rl.ppo import PPO as PPO
    from hvcl.rl.ppo import PPOConfig as PPOConfig
    from hvcl.rl.replay import PrioritizedReplay as PrioritizedReplay
    from hvcl.rl.replay import Transitions as Transitions
    from hvcl.rl.sac import SAC as SAC
    from hvcl.rl.sac import SACConfig as SACConfig
    from hvcl.rl.saving import load as load
    from hvcl.rl.sequences import SEQUENCES as SEQUENCES
    from hvcl.rl.sequences import sequence as sequence
    from hvcl.rl.sum_tree import SumTree as SumTree

_NAMES = {
    "agent": ("Agent",),
    "environments": ("Padded", "Task", "TaskSequence"),
    "evaluation": ("evaluate",),
    "loop": ("TrainingProtocol", "run"),
    "methods": ("create", "known_methods"),
    "ppo": ("PPO", "PPOConfig"),
    "replay": ("PrioritizedReplay", "Transitions"),
    "sac": ("SAC", "SACConfig"),
    "saving": ("load",),
    "sequences": ("SEQUENCES", "sequence"),
    "sum_tree": ("SumTree",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
