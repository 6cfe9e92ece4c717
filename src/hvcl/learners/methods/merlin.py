r"""Meta-consolidation: MERLIN (Joseph & Balasubramanian, 2020).

The weights psi of a network that solves task t are themselves drawn from a distribution p(psi|t), and that is what is learned
and kept. While a task lasts B models learn it, each from bootstrap samples. At the boundary their weights, flattened and cut
into chunks psi_c, are the data of a small VAE with a learned prior for each task,

    z ~ p(z|t) = N(mu_t, sigma_t^2) ,     psi_c ~ N( decoder(z, e_c), s^2 ) ,     e_c a learned embedding of chunk c,

    max  E_q(z|psi)[ sum_c log p(psi_c|z, e_c) ] - KL[ q(z|psi) || p(z|t) ] ,

and the models are forgotten. So that the VAE does not forget earlier tasks it is consolidated: P pseudo-models of each, drawn
from p(z|j), are learned along with those of task t.

To predict, E models are drawn, tuned on a small memory of exemplars, and their probabilities averaged. In Task-IL the task is
told: its models are drawn from p(z|t), all chunks with one z, and tuned on the exemplars of t. Elsewhere they are drawn from the
priors' average, N(mean_t mu_t, mean_t sigma_t^2), and tuned on the exemplars of all tasks. Models are drawn and tuned once for
each boundary; while a task lasts, its B models are asked as well.

What is kept of the past: the exemplars (`memory`, as many of each task, the last ones), the VAE, 2 * latent numbers for each
task, and the weights that all models start from.

Deviates from the paper: all models of all tasks start from the same weights, and the VAE learns what they have moved since, in
units of its standard deviation after the first task (random starting weights would be noise to it); pseudo-models are drawn
before the models of the new task are learned, and learned together with them, where the paper draws them afterwards, from a VAE
that the new models have changed; the decoder does not end in a tanh; bootstrap samples are of each batch.

In the authors' code every chunk has a z of its own when it is learned, and a model one z when it is drawn; its errors count as a
mean over weights, not as the sum that a likelihood is; consolidation picks the pseudo-models that do best on the test set. Here a
model has one z (from the mean of its chunks' encodings), errors are likelihoods with a learned s, and pseudo-models are not
picked. On split digits models drawn so solved the first three tasks nearly as well as those they were learned from, before any
tuning; with a z for each chunk they did not.

A task-free stream announces no boundaries: there each `segment_steps` batches count as a task, in Task-IL as the one that came
last.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.random import RandomState
from hvcl.core.state import tensor_like
from hvcl.generative import Gaussian, Latent
from hvcl.learners.base import State
from hvcl.learners.generative import at_least_one
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.episodes import EpisodicConfig, EpisodicLearner
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.task_data import join
from hvcl.learners.registry import register

VAE_BATCH, TUNING_BATCH = 4, 50
"""Models, and exemplars, of a step."""


@dataclass(frozen=True)
class MERLINConfig(EpisodicConfig):
    """Meta-consolidation."""

    models: int = 10
    """B, the models that learn a task."""
    drawn: int = 10
    """E, the models that are drawn to predict."""
    pseudo_models: int = 10
    """P, the models of each earlier task that are drawn to consolidate."""
    latent: int = 2
    """Dimensions of z."""
    embedding: int = 16
    """Dimensions of the embedding of a chunk."""
    chunk: int = 300
    """Weights of a chunk."""
    vae_units: int = 50
    """Hidden units of the VAE's encoder and decoder."""
    vae_steps: int = 1_000
    """Steps in which the VAE learns at a boundary, of four models each."""
    vae_rate: float = 0.01
    """Size of these steps (of Adam)."""
    tuning_epochs: int = 40
    """Passes over the exemplars in which the models that were drawn are tuned; 0: they predict as they are."""
    tuning_rate: float = 3e-3
    """Step size of Adam for that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("models", "drawn", "pseudo_models", "latent", "embedding", "chunk", "vae_units", "vae_steps")
        at_least_one(**{name: getattr(self, name) for name in sizes})
        for name in ("vae_rate", "tuning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if self.tuning_epochs < 0:
            raise InputError(f"tuning_epochs must be at least 0, got {self.tuning_epochs}")


@register("merlin", MERLINConfig)
class MERLIN(EpisodicLearner):
    """Meta-consolidation: a VAE learns the weights of models of each task; models drawn from it vote, tuned on exemplars."""

    config: MERLINConfig
    network: nn.ModuleDict

    def __init__(self, problem: Problem, config: MERLINConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.learned = 0
        """Batches of the present task."""
        self.number: int | None = None
        """Task-IL: the task id of most of the last batch."""
        self.tasks: list[int | None] = []
        """The task id of each prior, in Task-IL."""
        self.noise = torch.zeros(config.drawn, config.latent, device=self.device)
        """What the models that predict are drawn with."""
        self._recalled: dict[int | None, Tensor] = {}

    def build(self) -> nn.Module:
        """The models, and the VAE of their weights."""
        models = Ensemble(self.assemble(), self.config.models)
        return nn.ModuleDict({"models": models, "meta": Meta(models.start.numel(), self.config)})

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the models."""
        return torch.optim.Adam(self.models.parameters(), lr=self.config.learning_rate, fused=True)

    @property
    def models(self) -> Ensemble:
        """Those of the present task."""
        found = self.network["models"]
        assert isinstance(found, Ensemble)
        return found

    @property
    def meta(self) -> Meta:
        """The VAE."""
        found = self.network["meta"]
        assert isinstance(found, Meta)
        return found

    # -- learning --------------------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy of each model on a bootstrap sample of its own."""
        self.learned += 1  # here, where a step that fails takes it back, and a segment that ends with this step counts it
        self.number = None if task is None else int(task.mode()[0])
        rows = torch.randint(len(y), (self.config.models, len(y)), device=self.device)
        return {"loss": self.errors(self.models.weights, Stored(x, y, task), rows)}

    def errors(self, weights: Tensor, examples: Stored, rows: Tensor) -> Tensor:
        """Mean cross-entropy of models on rows of examples, their own each ``[models, n]``."""
        outputs = self.models.outputs(weights, examples.x[rows], own=True).flatten(0, 1)
        task = None if examples.task is None else examples.task.to(self.device)[rows].flatten()
        return F.cross_entropy(self.masked(outputs, task), examples.y[rows].flatten())

    def end_task(self) -> None:
        """The VAE learns the weights of the task's models, and those of pseudo-models of earlier tasks."""
        if self.learned:
            with self.random.active():
                self.consolidate()
                self.noise = torch.randn_like(self.noise)
                self.models.restart()
            self.tasks.append(self.number)
            self.learned = 0
            self.optimizer = self.make_optimizer()
            self._recalled = {}
        super().end_task()

    def consolidate(self) -> None:
        """Learn p(psi|t) of the present task, and keep that of the earlier ones."""
        meta, config = self.meta, self.config
        moved = (self.models.weights - self.models.start).detach()
        if not self.tasks:
            meta.scale.fill_(moved.std().clamp_min(torch.finfo(moved.dtype).tiny))
        with torch.no_grad():
            noise = [torch.randn(config.pseudo_models, config.latent, device=self.device) for _ in self.tasks]
            drawn = [meta.draw([j], own) for j, own in enumerate(noise)]
        meta.begin_task()
        chunks = torch.cat([meta.cut(weights) for weights in (*drawn, moved)])
        sizes = [len(weights) for weights in (*drawn, moved)]
        tasks = torch.arange(len(sizes), device=self.device).repeat_interleave(torch.tensor(sizes, device=self.device))
        optimizer = torch.optim.Adam(meta.parameters(), lr=config.vae_rate, fused=True)
        for _ in range(config.vae_steps):
            rows = torch.randint(len(chunks), (VAE_BATCH,), device=self.device)
            optimizer.zero_grad()
            meta.loss(chunks[rows], tasks[rows]).backward()
            optimizer.step()

    # -- prediction ------------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The mean over models: of those drawn for the example's task, or for all; of the present task's, while it lasts."""
        if task is None:
            return self.vote(None, x, None)
        p = x.new_empty(len(x), self.problem.outputs)
        for number in task.unique().tolist():
            mine = (task == number).to(self.device)
            p[mine] = self.vote(number, x[mine], task[task == number])
        return p

    def vote(self, number: int | None, x: Tensor, task: Tensor | None) -> Tensor:
        """What the models for a task answer, or those for all."""
        voters = [self.recall(number)] if number in self.tasks else []
        if not voters or (self.learned and self.number == number):
            voters.append(self.models.weights)
        answers = torch.cat([self.models.outputs(weights, x) for weights in voters])
        return torch.stack([self.masked(outputs, task).softmax(1) for outputs in answers]).mean(0)

    def recall(self, number: int | None) -> Tensor:
        """Models for a task, or for all, drawn and tuned ``[E, weights]``."""
        if number not in self._recalled:
            chosen = [j for j, own in enumerate(self.tasks) if own == number]
            weights = self.models.start + self.meta.draw(chosen, self.noise)
            exemplars = [e for e in self.episodes.finished if number is None or (e.task is not None and number in e.task)]
            self._recalled[number] = self.tune(weights, join(exemplars)) if exemplars else weights
        return self._recalled[number]

    @torch.enable_grad()
    def tune(self, weights: Tensor, exemplars: Stored) -> Tensor:
        """Models that have learned from exemplars."""
        weights = weights.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([weights], lr=self.config.tuning_rate, fused=True)
        with RandomState(0).active():
            for _ in range(self.config.tuning_epochs):
                for rows in torch.randperm(len(exemplars)).to(self.device).split(TUNING_BATCH):
                    optimizer.zero_grad()
                    # each model has the gradient of its own mean
                    (len(weights) * self.errors(weights, exemplars, rows.expand(len(weights), -1))).backward()
                    optimizer.step()
        return weights.detach()

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Models, VAE, optimiser, random state, exemplars, tasks, and what models are drawn with."""
        own = {"learned": self.learned, "number": self.number, "tasks": list(self.tasks), "noise": self.noise}
        return super().state_dict() | own

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.tasks = [None if number is None else int(number) for number in state["tasks"]]
        # no more priors than there are numbers for in the file
        if len(self.tasks) != len(state["network"]["meta.prior_mean"]):
            raise ValueError(f"there are {len(self.tasks)} tasks and {len(state['network']['meta.prior_mean'])} priors")
        nothing = torch.zeros(len(self.tasks), self.config.latent, device=self.device)
        self.meta.set_priors(nothing, nothing.clone())
        super().restore(state)
        self.learned, self.number = int(state["learned"]), None if state["number"] is None else int(state["number"])
        self.noise = tensor_like(state["noise"], self.noise, "noise")
        self._recalled = {}


class Ensemble(nn.Module):
    """Networks of one architecture that start from the same weights, each as a row of numbers."""

    start: Tensor

    def __init__(self, network: nn.Sequential, count: int) -> None:
        super().__init__()
        parameters = dict(network.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.register_buffer("start", torch.cat([parameter.detach().flatten() for parameter in parameters.values()]))
        self.weights = nn.Parameter(self.start.repeat(count, 1))
        self._network = [copy.deepcopy(network).to("meta")]  # in a list: it is the shape only, and no part of the state

    def restart(self) -> None:
        """All models are as they were at first."""
        with torch.no_grad():
            self.weights.copy_(self.start.expand_as(self.weights))

    def outputs(self, weights: Tensor, x: Tensor, own: bool = False) -> Tensor:
        """Outputs ``[models, B, outputs]`` of models ``[models, weights]``, all for the same inputs or each for its own."""
        network = self._network[0].train(self.training)

        def one(row: Tensor, inputs: Tensor) -> Tensor:
            parts = row.split([shape.numel() for shape in self.shapes.values()])
            named = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
            answers: Tensor = functional_call(network, named, (inputs,))
            return answers

        return vmap(one, in_dims=(0, 0 if own else None), randomness="different")(weights, x)


class Meta(nn.Module):
    """The VAE of weights: one z for all chunks of a model."""

    scale: Tensor
    """What a weight's distance from where it started is divided by."""

    def __init__(self, size: int, config: MERLINConfig) -> None:
        super().__init__()
        units, latent = config.vae_units, config.latent
        self.size, self.chunk = size, config.chunk
        self.chunks = math.ceil(size / config.chunk)
        self.encoder = nn.Sequential(nn.Linear(config.chunk + config.embedding, units), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(units, latent), nn.Linear(units, latent)
        self.decoder = nn.Sequential(nn.Linear(latent + config.embedding, units), nn.Tanh(), nn.Linear(units, config.chunk))
        self.embedding = nn.Parameter(torch.randn(self.chunks, config.embedding))
        self.likelihood = Gaussian()
        self.register_buffer("scale", torch.ones(()))
        self.set_priors(torch.zeros(0, latent), torch.zeros(0, latent))

    def set_priors(self, mean: Tensor, log_variance: Tensor) -> None:
        """p(z|t) of each task, a row each."""
        self.prior_mean, self.prior_log_variance = nn.Parameter(mean), nn.Parameter(log_variance)

    def begin_task(self) -> None:
        """One prior more, somewhere."""
        mean, log_variance = self.prior_mean.detach(), self.prior_log_variance.detach()
        new = torch.randn(1, mean.shape[1]).to(mean)
        self.set_priors(torch.cat([mean, new]), torch.cat([log_variance, torch.zeros_like(new)]))

    def cut(self, moved: Tensor) -> Tensor:
        """Chunks ``[models, chunks, chunk]`` of what weights have moved ``[models, weights]``; zeros fill up the last."""
        filled: Tensor = F.pad(moved / self.scale, (0, self.chunks * self.chunk - self.size))
        return filled.view(len(moved), self.chunks, self.chunk)

    def loss(self, chunks: Tensor, task: Tensor) -> Tensor:
        """Minus the mean evidence lower bound of models, in chunks ``[models, chunks, chunk]``, of these tasks."""
        hidden = self.encoder(torch.cat([chunks, self.embedding.expand(len(chunks), -1, -1)], 2)).mean(1)
        latent = Latent(self.mean(hidden), self.log_variance(hidden), task)
        divergence = latent.divergence(self.prior_mean[task], self.prior_log_variance[task])
        return (divergence - self.likelihood.log_prob(self.decode(latent.draw()), chunks)).mean()

    def decode(self, z: Tensor) -> Tensor:
        """Chunks ``[models, chunks, chunk]`` from one z for each model."""
        both = torch.cat([z.unsqueeze(1).expand(-1, self.chunks, -1), self.embedding.expand(len(z), -1, -1)], 2)
        chunks: Tensor = self.decoder(both)
        return chunks

    def draw(self, tasks: list[int], noise: Tensor) -> Tensor:
        """What the weights of models have moved ``[models, weights]``, from the average of the priors of some tasks."""
        mean, variance = self.prior_mean[tasks].mean(0), self.prior_log_variance[tasks].exp().mean(0)
        moved: Tensor = self.decode(mean + variance.sqrt() * noise).flatten(1)[:, : self.size] * self.scale
        return moved
