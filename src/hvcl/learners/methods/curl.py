r"""Continual unsupervised representation learning: CURL (Rao et al., 2019).

A VAE whose latent variable is a mixture that grows (`hvcl.generative.MixtureVAE`): x belongs to a component y = k with the
probability q(k|x). Each has a Gaussian p(z|k) = N(mu_k, sigma_k^2) and a head q(z|x, k) of its own; encoder and decoder are
shared. With

    E_k(x) = E_q(z|x,k)[log p(x|z)] - KL[q(z|x, k) || p(z|k)]        (one draw of z for each component)

an example's bound is

    supervised, with the label k       E_k(x) + log q(k|x) ,
    unsupervised                       sum_k q(k|x) E_k(x) - KL[q(y|x) || p(y)] ,     p(y) the same for all components in use.

*Supervised* (the authors' benchmark of supervised continual learning, and the default here), components are labels, and a label's
is taken into use when it first occurs. The prediction is q(y|x) among the labels that have occurred.

*Unsupervised* (``supervised=False``, the paper's subject), there is one component at first. Examples whose bound is below
`threshold` are put into a buffer. When it is full, a component is added: a copy of the one to which q(y|x) assigns most of the
buffer (head, Gaussian, row of the softmax). Only what belongs to components then learns, ten steps on E_new(x) + log q(new|x) for
the buffer, which is emptied. Labels teach the network nothing. They name components: a component means the label that most of
the stream's examples had that it was given (q(k|x) of each, when it was learned; in Task-IL, among the head's), and a label is
as probable as the components that mean it. This is the paper's cluster accuracy, but for names that are given by training
examples, not test ones.

*Mixture generative replay.* A snapshot of the network generates, k in the proportions of sum_x q(k|x) over the stream so far, z
from p(z|k), and x, and as many of these are learned in every step as the batch has, with the same bound and the same weight;
supervised, the component that generated them is their label. Snapshots are taken (`snapshot`) after so many steps (fixed; the
authors take as many as a task has, and so does this where boundaries are told), or when the mixture grows (dynamic).

The buffer is what is stored of past examples. Nothing but the snapshots after each task needs boundaries, and with `period` or
``snapshot="dynamic"`` nothing does.

Deviates from the paper: current and generated examples are learned in one step, of which each is half, not in turns; leaky ReLU;
variances are exponentials, not softplus; the decoder mirrors the encoder; pixels are not binarised. A buffer is learned in one
piece, by an Adam of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.random import RandomState
from hvcl.core.state import tensor_like
from hvcl.generative import Generated, LikelihoodName, MixtureVAE
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.learners.base import State
from hvcl.learners.generative import at_least_one
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.memory.replay import memory_words
from hvcl.learners.registry import register

EXPANSION_STEPS = 10
"""Steps on a full buffer."""

PERIOD = 100
"""Steps between snapshots where no boundaries are told and no period is set."""


@dataclass(frozen=True)
class CURLConfig(GradientConfig):
    """Continual unsupervised representation learning."""

    supervised: bool = True
    """Components are labels. Without it they are found, and labels name them only."""
    latent: int = 32
    """Dimensions of z."""
    likelihood: LikelihoodName = "bce"
    """The model of inputs: bce (pixels in [0, 1]), logistic (discretised, for photographs), gaussian (any numbers)."""
    snapshot: Literal["fixed", "dynamic"] = "fixed"
    """When the network that generates is copied: after a number of steps, or when the mixture grows."""
    period: int = 0
    """Steps between fixed snapshots; 0: at the boundaries, and on a task-free stream every 100."""
    components: int = 30
    """Unsupervised: how many there is room for."""
    threshold: float = -200.0
    """Unsupervised: an example is poorly explained if its bound is below (in nats; the authors' for 28x28 binary pixels)."""
    buffer: int = 100
    """Unsupervised: so many poorly explained examples make a component."""
    wait: int = 100
    """Unsupervised: steps before the first component is added, and between two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(latent=self.latent, components=self.components, buffer=self.buffer)
        for name in ("period", "wait"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.dropout:
            raise InputError(f"curl has no dropout: its encoder is that of a VAE. Leave dropout at 0, got {self.dropout}")


@register("curl", CURLConfig)
class CURL(GradientLearner):
    """Continual unsupervised representation learning: a VAE with a latent mixture that grows and is replayed by a snapshot."""

    config: CURLConfig
    network: MixtureVAE

    def __init__(self, problem: Problem, config: CURLConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.snapshot: MixtureVAE | None = None
        """The network that generates."""
        self.names = torch.zeros(self.network.components, problem.outputs, dtype=torch.float64, device=self.device)
        """Unsupervised: how many examples of each label each component was given."""
        self.poor = torch.zeros(0, *problem.input_shape, device=self.device)
        """Unsupervised: the poorly explained examples since the last expansion."""
        self.steps = 0
        self.since = 0
        """Steps since the last expansion."""
        self.replayed: tuple[Tensor, Tensor] | None = None
        """The generated examples of this step, and their components."""
        self.shares = self.bound = torch.zeros(0, device=self.device)
        """Of the last batch: which share each component has in each example, and how well they are explained."""

    def build(self) -> nn.Module:
        """The VAE; unsupervised, with one component in use."""
        config = self.config
        network = MixtureVAE(
            self.problem.input_shape,
            self.problem.outputs if config.supervised else config.components,
            latent=config.latent,
            hidden=config.hidden,
            channels=config.channels,
            likelihood=config.likelihood,
        )
        if not config.supervised:
            network.use(0)
        return network

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """A step on the batch and on as many generated examples; then the mixture may grow."""
        self.network.likelihood.check(x)
        x, y = x.to(self.device), y.to(self.device)
        if self.steps and self.config.snapshot == "fixed" and self.period and self.steps % self.period == 0:
            self.take_snapshot()
        if self.config.supervised:
            self.meet(y)
        with self.random.active():
            self.replayed = None if self.snapshot is None else self.snapshot.sample(len(x))
        terms = super().learn(x, y, task)
        self.replayed = None
        self.steps += 1
        self.since += 1
        self.network.prior.examples += self.shares.sum(0)
        if not self.config.supervised:
            self.name(self.shares, y)
            self.collect(x)
        return terms | {"components": float(self.network.used.sum())}

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Minus the mean bound of the batch, and of what is generated, with equal weights."""
        network, old = self.network, self.replayed
        inputs = x if old is None else torch.cat([x, old[0]])
        features = network.features(inputs)
        if self.config.supervised:
            labels = y if old is None else torch.cat([y, old[1]])
            tasks = None if task is None else task.to(self.device)
            if tasks is not None and old is not None:
                tasks = torch.cat([tasks, self.heads_of(old[1])])
            log_q = network.log_posterior(features, self.allowed(len(inputs), tasks))
            label = labels.unsqueeze(1)
            bound = (network.evidence(features, inputs, label) + log_q.gather(1, label)).squeeze(1)
            self.shares = F.one_hot(y, network.components)
        else:
            log_q = network.log_posterior(features)
            bound = network.bound(features, inputs, log_q)
            self.shares = log_q[: len(x)].detach().exp()
        self.bound = bound[: len(x)].detach()
        loss = -torch.stack([part.mean() for part in bound.split(len(x))]).mean()
        return {"loss": loss, "elbo": self.bound.mean()}

    def allowed(self, count: int, task: Tensor | None) -> Tensor:
        """Supervised: the labels that each example may have ``[count, outputs]``, those seen, and in Task-IL of its head.

        Where none of them was seen, all of the head's.
        """
        seen = self.network.used.expand(count, -1)
        if task is None or self._heads is None:
            return seen if bool(self.network.used.any()) else torch.ones_like(seen)
        head = self._heads[task.to(self.device)]
        return torch.where((head & seen).any(1, keepdim=True), head & seen, head)

    def meet(self, y: Tensor) -> None:
        """Supervised: take the components of new labels into use."""
        new = [label for label in y.unique().tolist() if not self.network.used[label]]
        if new and self.config.snapshot == "dynamic" and self.steps:
            self.take_snapshot()
        for label in new:
            self.network.use(label)

    # -- replay ----------------------------------------------------------------------------------------------------------------

    @property
    def period(self) -> int:
        """Steps between fixed snapshots; 0: none but at the boundaries."""
        return self.config.period or (0 if self.problem.task_steps is not None else PERIOD)

    def take_snapshot(self) -> None:
        """Keep a copy of the network as it is."""
        self.snapshot = frozen(self.network)

    def end_task(self) -> None:
        """A boundary ends a period, unless another period is set."""
        if self.config.snapshot == "fixed" and not self.period and self.steps:
            self.take_snapshot()

    def heads_of(self, component: Tensor) -> Tensor:
        """Task-IL: the task whose head has a component's label, or most of the labels of its examples."""
        assert self._heads is not None
        table = torch.eye(len(self.names), dtype=self.names.dtype, device=self.device) if self.config.supervised else self.names
        heads = (self._heads.to(table) @ table.T).argmax(0)
        return heads[component]

    # -- growing ---------------------------------------------------------------------------------------------------------------

    def name(self, q: Tensor, y: Tensor) -> None:
        """Count which labels the examples of each component have."""
        self.names += q.T.to(self.names) @ F.one_hot(y, self.problem.outputs).to(self.names)

    def collect(self, x: Tensor) -> None:
        """Put poorly explained examples into the buffer, and add a component when it is full."""
        if self.since <= self.config.wait or bool(self.network.used.all()):
            return
        self.poor = torch.cat([self.poor, x[self.bound < self.config.threshold]])
        if len(self.poor) >= self.config.buffer:
            with self.random.active():
                self.expand()
            self.poor = self.poor[:0]
            self.since = 0

    def expand(self) -> None:
        """Add a component, a copy of the one that most of the buffer is assigned to, and teach it the buffer."""
        network, x = self.network, self.poor
        if self.config.snapshot == "dynamic":
            self.take_snapshot()
        features = network.features(x).detach()
        best = int(network.log_posterior(features).exp().sum(0).argmax())
        new = int(network.used.sum())
        network.use(new, like=best)
        component = torch.full((len(x), 1), new, device=self.device)
        optimizer = torch.optim.Adam(network.parts_of_components(), lr=self.config.learning_rate, fused=True)
        for _ in range(EXPANSION_STEPS):
            bound = network.evidence(features, x, component).squeeze(1) + network.log_posterior(features)[:, new]
            optimizer.zero_grad()
            (-bound.mean()).backward()
            optimizer.step()

    # -- predicting ------------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Supervised q(y|x); unsupervised, of the labels that components mean."""
        return self.answer(self.network.features(x), task)

    def answer(self, features: Tensor, task: Tensor | None) -> Tensor:
        """Class probabilities, from the last hidden layer."""
        if self.config.supervised:
            return self.network.log_posterior(features, self.allowed(len(features), task)).exp()
        q = self.network.log_posterior(features).exp()
        if task is None or self._heads is None:
            return q @ self.meanings(torch.ones(self.problem.outputs, dtype=torch.bool, device=self.device))
        found = q.new_zeros(len(q), self.problem.outputs)
        for number in task.unique().tolist():
            mine = (task == number).to(self.device)
            found[mine] = q[mine] @ self.meanings(self._heads[number])
        return found

    def meanings(self, allowed: Tensor) -> Tensor:
        """The label that each component means ``[components, outputs]``, among those allowed; all of them if it has met none."""
        names = self.names.masked_fill(~allowed, 0.0)
        best = F.one_hot(names.argmax(1), self.problem.outputs).float()
        return torch.where(names.sum(1, keepdim=True) > 0, best, allowed.float() / allowed.sum())

    # -- what it generates -----------------------------------------------------------------------------------------------------

    @property
    def latent_experts(self) -> int:
        """The components that there is room for."""
        return self.network.components

    @torch.no_grad()
    def generate(self, count: int, seed: int) -> tuple[Generated, Tensor | None]:
        """Generated examples, from a random state of their own; in Task-IL with the heads to classify them by."""
        if count < 1:
            raise InputError(f"count must be at least 1, got {count}")
        with RandomState(seed).active():
            x, component = self.network.sample(count)
        return Generated(x, component, component), None if self._heads is None else self.heads_of(component)

    @torch.no_grad()
    def judge(self, x: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """Class probabilities and last hidden layer of generated examples."""
        features = self.network.features(x.to(self.device))
        return self.answer(features, task).cpu(), features.cpu()

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer of the encoder."""
        return self.network.features(x.to(self.device)).cpu()

    def reconstruct(self, x: Tensor) -> Tensor:
        """Each input as the network gives it back."""
        return self.network.reconstruct(x.to(self.device)).cpu()

    # -- state -----------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Those that q(y|x) depends on."""
        used = (*self.network.encoder.parameters(), *self.network.classify.parameters())
        return sum(parameter.numel() for parameter in used)

    @property
    def memory(self) -> str:
        """The buffer, which only the unsupervised variant has."""
        return memory_words(0 if self.config.supervised or self.config.components == 1 else self.config.buffer)

    def state_dict(self) -> State:
        """Network, optimiser, random state, snapshot, names, buffer."""
        own = {"names": self.names, "poor": self.poor, "steps": self.steps, "since": self.since}
        return super().state_dict() | own | {"snapshot": frozen_state(self.snapshot)}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.snapshot = frozen_from(self.network, state["snapshot"])
        self.names = tensor_like(state["names"], self.names, "names")
        self.poor = tensor_like(state["poor"], self.poor.new_zeros(len(state["poor"]), *self.problem.input_shape), "poor")
        self.steps, self.since = int(state["steps"]), int(state["since"])
