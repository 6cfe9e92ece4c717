r"""Variational continual learning (Nguyen, Li, Bui & Turner, 2018).

The network's weights have a mean-field Gaussian posterior q_t. Task t minimises, per example,

    - E_{q_t}[ log p(y|x, w) ] + 1/N_t KL[ q_t(w) || q_{t-1}(w) ] ,        q_0(w) = N(0, prior_sigma^2),

so that each task's posterior is the next task's prior. In Task-IL there is one head for each task, elsewhere one for all.

With a coreset, of every task a few examples are held out from training (random ones, or k centres: each time the example farthest
from those chosen so far), and predictions come from a copy of the network that has been trained on all coresets, with q_t as its
prior. The copy is used for nothing else. To choose from all of a task's examples before any of them is learned from, the first
pass over a task is held back and learned from, batch by batch, when it is complete; the number of steps is the same.

Deviates from the paper: flipout, with one draw a step, for its 10 Monte Carlo samples; means that start as He draws and not from
a trained network; sigmas that start at 0.3 of the He standard deviation, not at 0.001, which they would only leave after some
thousand steps, and until then the prior of the second task would be too sure; predictions from 10 draws, not 100; the coresets of
all heads are learned together, in Task-IL too.

A task-free stream announces no boundaries: the prior stays the first one, and there is no coreset.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.layers import consolidate, sampling
from hvcl.learners.base import State
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.examples import Stored, from_state, room_for
from hvcl.learners.memory.task_data import CHUNK, TaskData, join
from hvcl.learners.registry import register
from hvcl.learners.variational import VariationalConfig, VariationalLearner
from hvcl.objective import Objective
from hvcl.optim import VariationalAdam

Selection = Literal["random", "k-center"]


@dataclass(frozen=True)
class VCLConfig(VariationalConfig):
    """Variational continual learning."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    initial_sigma: float = 0.3
    """Posterior sigma at the start, as a fraction of the He standard deviation."""
    prior_sigma: float = 1.0
    """Standard deviation of the first prior."""
    samples: int = 10
    """Posterior samples to average in predictions; 0 predicts with the posterior means."""
    coreset: int = 0
    """Examples of every task that are kept and held out from training."""
    selection: Selection = "random"
    """Coreset: random examples, or k centres."""
    coreset_epochs: int = 100
    """Coreset: passes over it before predictions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 0 or self.coreset < 0:
            raise InputError(f"samples and coreset must be at least 0, got {self.samples} and {self.coreset}")
        if self.coreset_epochs < 1:
            raise InputError(f"coreset_epochs must be at least 1, got {self.coreset_epochs}")


@register("vcl", VCLConfig)
class VCL(VariationalLearner):
    """Variational continual learning: the mean-field posterior of one task is the prior of the next."""

    config: VCLConfig

    def __init__(self, problem: Problem, config: VCLConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        sizes = problem.task_examples or ()
        if sizes and config.coreset >= min(sizes):
            raise InputError(f"a coreset of {config.coreset} leaves nothing to learn from: the smallest task has {min(sizes)}")
        self.objective = Objective(gate_kl=0.0, expert_kl=1.0)
        self.selects = config.coreset > 0 and bool(sizes)
        self.data = TaskData(problem)
        self.coreset: Stored | None = None
        self._held_out: Tensor | None = None
        self._tuned: nn.Module | None = None

    def build(self) -> nn.Module:
        """Single-expert layers."""
        config = self.config
        return self.assemble_variational(
            {"estimator": config.estimator, "initial_sigma": config.initial_sigma, "prior_sigma": config.prior_sigma}
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam in one pass over the weights."""
        return VariationalAdam(self.network, lr=self.config.learning_rate)

    # -- learning -----------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; with a coreset, the steps of the first pass are taken when it is complete."""
        if not self.selects:
            return super().learn(x, y, task)
        if self.data.missing > 0:
            self.data.add(x, y, task)
            return self._learn_first_pass() if self.data.missing == 0 else {"waiting": float(self.data.missing)}
        return self._learn(Stored(x, y, task))

    def _learn_first_pass(self) -> dict[str, float]:
        batches = self.data.take()
        with self.random.active():
            examples = join(batches)
            chosen = examples.rows(choose(examples.x, self.config.coreset, self.config.selection))
        self.coreset = chosen if self.coreset is None else self.coreset.followed_by(chosen)
        self._held_out = fingerprints(self.coreset.x)
        terms: dict[str, float] = {}
        for batch in batches:
            terms = self._learn(batch) or terms
        return terms

    def _learn(self, batch: Stored) -> dict[str, float]:
        """A step on those examples of the batch that are not in the coreset."""
        self._tuned = None
        assert self._held_out is not None
        rest = batch.rows(~torch.isin(fingerprints(batch.x), self._held_out))
        return super().learn(rest.x, rest.y, rest.task) if len(rest) else {}

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The negative evidence lower bound per example."""
        return self._bound(self.network, x, y, task, self.task_examples - (self.config.coreset if self.selects else 0))

    def _bound(self, network: nn.Module, x: Tensor, y: Tensor, task: Tensor | None, examples: int) -> Terms:
        log_likelihood = -F.cross_entropy(self.masked(network(x), task), y)
        total, terms = self.objective(log_likelihood, network, examples)
        return {"loss": total, **terms}

    def end_task(self) -> None:
        """The posterior becomes the prior of the next task."""
        if self.selects:
            if self.data.missing > 0:
                raise InputError(f"the task is over, but {self.data.missing} of its examples have not been seen")
            self.data.finish()
        consolidate(self.network)
        self._tuned = None
        super().end_task()

    # -- predictions --------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The mean over posterior samples; with a coreset, of the network that has learned it."""
        network = self.network if self.coreset is None else self._tune(self.coreset)
        if not self.config.samples:
            return self.masked(network(x), task).softmax(1)
        with self.random.active(keep=False), sampling(network):
            draws = [self.masked(network(x), task).softmax(1) for _ in range(self.config.samples)]
        return torch.stack(draws).mean(0)

    def _tune(self, coreset: Stored) -> nn.Module:
        """A copy of the network that has learned the coreset; made once, until the next step."""
        if self._tuned is None:
            network = copy.deepcopy(self.network).train()
            consolidate(network)
            optimizer = VariationalAdam(network, lr=self.config.learning_rate)
            with self.random.active(keep=False), torch.enable_grad():
                for _ in range(self.config.coreset_epochs):
                    for positions in torch.randperm(len(coreset)).split(CHUNK):
                        part = coreset.rows(positions)
                        x, y = part.x.to(self.device), part.y.to(self.device)
                        loss = self._bound(network, x, y, part.task, len(coreset))["loss"]
                        assert isinstance(loss, Tensor)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
            self._tuned = network.eval()
        return self._tuned

    @property
    def memory(self) -> str:
        """The coresets, once all tasks were seen."""
        return f"{self.config.coreset * len(self.problem.task_examples or ())} examples" if self.selects else "none"

    def state_dict(self) -> State:
        """As any variational learner's, with the coreset and the examples that wait."""
        coreset = None if self.coreset is None else self.coreset.state()
        return super().state_dict() | {"data": self.data.state_dict(), "coreset": coreset}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.data.load_state_dict(state["data"])
        like = room_for(0, self.problem, torch.device("cpu"))
        self.coreset = None if state["coreset"] is None else from_state(state["coreset"], like)
        self._held_out = None if self.coreset is None else fingerprints(self.coreset.x)
        self._tuned = None


def choose(x: Tensor, size: int, selection: Selection) -> Tensor:
    """Positions of a coreset."""
    if selection == "random":
        return torch.randperm(len(x))[:size]
    flat = x.flatten(1)
    chosen = [0]
    nearest = (flat - flat[0]).square().sum(1)
    while len(chosen) < size:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (flat - flat[chosen[-1]]).square().sum(1))
    return torch.tensor(chosen)


def fingerprints(x: Tensor) -> Tensor:
    """A number for every example, the same for identical ones, whatever batch they are in: integer sums do not round."""
    bits = x.float().flatten(1).contiguous().view(torch.int32).long()
    weights = torch.arange(1, bits.shape[1] + 1, device=x.device) * 0x9E3779B97F4A7C1 | 1
    return (bits * weights).sum(1)
