"""Continual reinforcement learning: chains of tasks, SAC and PPO, methods against forgetting, scores."""

from hvcl.rl.agent import Agent
from hvcl.rl.environments import Padded, Task, TaskSequence
from hvcl.rl.evaluation import evaluate
from hvcl.rl.loop import TrainingProtocol, run
from hvcl.rl.methods import create, known_methods
from hvcl.rl.ppo import PPO, PPOConfig
from hvcl.rl.replay import PrioritizedReplay, Transitions
from hvcl.rl.sac import SAC, SACConfig
from hvcl.rl.saving import load
from hvcl.rl.sequences import SEQUENCES, sequence
from hvcl.rl.sum_tree import SumTree

__all__ = [
    "PPO",
    "SAC",
    "SEQUENCES",
    "Agent",
    "PPOConfig",
    "Padded",
    "PrioritizedReplay",
    "SACConfig",
    "SumTree",
    "Task",
    "TaskSequence",
    "TrainingProtocol",
    "Transitions",
    "create",
    "evaluate",
    "known_methods",
    "load",
    "run",
    "sequence",
]
