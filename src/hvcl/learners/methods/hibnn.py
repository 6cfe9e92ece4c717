r"""Hierarchical Indian buffet process neural networks: HIBNN (Kessler, Nguyen, Zohren & Roberts, 2021).

Variational continual learning (`vcl`) in which a prior decides how many units a layer uses. All layers share global sticks v,

    v_k ~ Beta(alpha_0, 1) ,    pi_0k = prod_{i <= k} v_i ,                          k = 1 .. units of the widest layer,

each hidden layer l draws how probable its own units are around them, and each example n the units that are on:

    pi_lk ~ Beta(alpha pi_0k, alpha (1 - pi_0k)) ,    z_nlk ~ Bernoulli(pi_lk) ,     h_l = f(h_{l-1} W_l) o z_l .

A priori the first units are on, and alpha_0 of a wide layer in all. q(v_k) = Beta(a_k, b_k) is learned, the layers' pi follow
from it (structured: one draw of v serves all layers), and W has mean-field Gaussians. With ' marking the posteriors at the last
boundary, which are the priors now, an example of the task's N pays

    - E_q[ log p(y|x, W, z) ] + 1/N ( KL[q(W) || q'(W)] + sum_k KL[q(v_k) || q'(v_k)]
      + sum_lk E_q KL[Beta(alpha pi_0k, alpha (1 - pi_0k)) || Beta(alpha pi'_0k, alpha (1 - pi'_0k))]
      + sum_lk E_q KL[Bernoulli(pi_lk) || Bernoulli(pi'_0k)] ) ,

one draw of v and pi a step, one of z an example. Draws of Beta variables have pathwise (implicit) gradients; masks are relaxed to
concrete variables (Maddison et al., 2017) with temperature lambda, in predictions as well:

    z = sigmoid( (logit pi + logit u) / lambda ) ,    u ~ Uniform(0, 1) .

In Task-IL there is one head for each task, which is told. Elsewhere, too, every task trains a head of its own
(``heads="tasks"``), and an example is answered by the head that is surest of it, the one with the lowest entropy of p(y|x) among
those that were trained. The authors compare entropies over a whole test set, which holds a single task: ``infer_from="batch"``
does so for each batch that is to be predicted, and knows more than other methods do. With ``heads="one"`` all tasks share one, as
in their permuted MNIST.

Where the authors' code is not what the paper says, this is the paper: the code puts log pi in place of logit pi into the masks,
which are then on with probability pi / (1 + pi), and takes the mean entropy of single draws for the entropy of the prediction. As
in the code, a mask's KL counts once for all examples, since q(z) is the same for all.

Deviates from both: the prior enters the last two KLs with the mean of its sticks, pi'_0k = prod E[v_i], not with a draw of its
own, and masks with the KL of Bernoulli variables, which is exact given pi, not with the relaxed densities at one draw;
concentrations of pi_l have 0.01 added, so that units far down the sticks have finite ones (in the code those of v have); one pi a
step and not one an example, one mask and not the mean of ten; flipout, with one draw a step, and predictions from 10 draws, not
100; means start as He draws, not from a trained network, and sigmas as those of `vcl`. Convolutions, which the paper has none of,
have a mask for each channel, and a layer of fewer units than the widest takes the first sticks.

A task-free stream announces no boundaries: the prior stays the first one, and (but in Task-IL) there is one head.
"""

from __future__ import annotations

import math
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
from hvcl.learners.registry import register
from hvcl.learners.variational import VariationalConfig, VariationalLearner
from hvcl.objective import Objective
from hvcl.optim import VariationalAdam

FLOOR = 0.01
"""Added to the concentrations of the layers' Beta variables."""


@dataclass(frozen=True)
class HIBNNConfig(VariationalConfig):
    """Hierarchical Indian buffet process neural networks."""

    learning_rate: float = 3e-3
    """Step size of Adam."""
    initial_sigma: float = 1.0
    """Posterior sigma at the start, as a fraction of the He standard deviation: masks weaken what the data say, not the prior."""
    prior_sigma: float = math.sqrt(0.7)
    """Standard deviation of the first prior of the weights."""
    expected_units: float = 100.0
    """alpha_0 of the first prior: how many units of a wide layer are on before there are data."""
    stick_rate: float = 10.0
    """Step size of log a and log b over that of everything else."""
    sharing: float = 4.0
    """alpha: how closely the layers follow the sticks that they share."""
    temperature: float = 0.7
    """lambda of the relaxed masks; 0 would be masks of zeros and ones."""
    samples: int = 10
    """Draws of weights and masks to average in predictions."""
    heads: Literal["tasks", "one"] = "tasks"
    """Outside Task-IL: a head for each task, of which the surest answers, or one for all tasks."""
    infer_from: Literal["example", "batch"] = "example"
    """The surest head of each example, or of all examples that are predicted at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prior_sigma", "expected_units", "stick_rate", "sharing", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples}")
        if not (self.hidden or self.channels):
            raise InputError("hidden must have a layer of units for the buffet, or channels, got neither")


@register("hibnn", HIBNNConfig)
class HIBNN(VariationalLearner):
    """Hierarchical Indian buffet networks: variational, with masks whose prior, shared by all layers, says how many are on."""

    config: HIBNNConfig
    network: Buffet

    def __init__(self, problem: Problem, config: HIBNNConfig, seed: int) -> None:
        own = config.heads == "tasks" and problem.task_outputs is None
        self.heads = len(problem.task_examples or ()) or 1 if own else 1
        """Heads of the network, which have all output units each."""
        self.trained: list[int] = []
        """Those that have learned something."""
        super().__init__(problem, config, seed)
        self.objective = Objective(gate_kl=0.0, expert_kl=1.0)

    def build(self) -> nn.Module:
        """Single-expert layers with masks."""
        config = self.config
        layers = self.assemble_variational(
            {"estimator": config.estimator, "initial_sigma": config.initial_sigma, "prior_sigma": config.prior_sigma}
        )
        widths = (*config.channels, *config.hidden)
        return Buffet(layers, Sticks(widths, config.expected_units, config.sharing, config.stick_rate), config.temperature)

    @property
    def network_outputs(self) -> int:
        """Those of all heads."""
        return self.heads * self.problem.outputs

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam in one pass over the weights."""
        return VariationalAdam(self.network, lr=self.config.learning_rate)

    @property
    def head(self) -> int:
        """The head of the current task."""
        return min(self.task, self.heads - 1)

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step, of the current task's head."""
        terms = super().learn(x, y, task)
        if self.head not in self.trained:
            self.trained.append(self.head)
        return terms

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The negative evidence lower bound per example."""
        draw = self.network.sticks.draw()
        log_likelihood = -F.cross_entropy(self.masked(self.answers(x, draw)[:, self.head], task), y)
        total, terms = self.objective(log_likelihood, self.network, self.task_examples)
        parts = {name: value / self.task_examples for name, value in self.network.sticks.divergence(draw).items()}
        return {"loss": total + sum(parts.values()), **terms, **parts, "active_units": draw.active_units}

    def answers(self, x: Tensor, draw: Draw) -> Tensor:
        """Outputs of all heads ``[B, heads, outputs]``."""
        outputs: Tensor = self.network(x, draw).unflatten(1, (self.heads, self.problem.outputs))
        return outputs

    def end_task(self) -> None:
        """The posterior becomes the prior of the next task, which has the next head."""
        consolidate(self.network)
        self.network.sticks.consolidate()
        super().end_task()

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The mean over draws; that of the head which is surest."""
        with self.random.active(keep=False), sampling(self.network):
            draws = [self._draw_probabilities(x, task) for _ in range(self.config.samples)]
        p = torch.stack(draws).mean(0)
        if len(self.trained) < 2:
            return p[:, self.trained[0] if self.trained else 0]
        entropy = torch.special.entr(p).sum(2)[:, self.trained]
        if self.config.infer_from == "batch":
            entropy = entropy.mean(0, keepdim=True).expand(len(x), -1)
        chosen = torch.tensor(self.trained, device=p.device)[entropy.argmin(1)]
        return p[torch.arange(len(x), device=p.device), chosen]

    def _draw_probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Of all heads, at one draw ``[B, heads, outputs]``."""
        answers = self.answers(x, self.network.sticks.draw())
        return torch.stack([self.masked(answers[:, head], task).softmax(1) for head in range(self.heads)], 1)

    def state_dict(self) -> State:
        """As any variational learner's, and which heads were trained."""
        return super().state_dict() | {"trained": list(self.trained)}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.trained = [int(head) for head in state["trained"]]
        if any(not 0 <= head < self.heads for head in self.trained):
            raise ValueError(f"trained is {self.trained}, of {self.heads} heads")


# -- the prior over units ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One draw of sticks and layers."""

    sticks: Tensor
    """pi_0 ``[K]``."""
    logits: tuple[Tensor, ...]
    """logit pi_l of each layer ``[units]``."""

    @property
    def active_units(self) -> float:
        """The expected number of units that are on, a mean over layers."""
        return float(torch.cat(self.logits).detach().sigmoid().sum()) / len(self.logits)


class Sticks(nn.Module):
    """The global sticks: q(v_k) = Beta(a_k, b_k) and its prior.

    Args:
        widths: units of each layer.
        expected_units: alpha_0.
        sharing: alpha.
        rate: of log a and log b; they are learned so many times faster than an optimiser's step size says.
    """

    prior_a: Tensor
    prior_b: Tensor

    def __init__(self, widths: tuple[int, ...], expected_units: float, sharing: float, rate: float) -> None:
        super().__init__()
        self.widths, self.sharing, self.rate = widths, sharing, rate
        count = max(widths)
        self.log_a = nn.Parameter(torch.full((count,), math.log(expected_units) / rate))
        self.log_b = nn.Parameter(torch.zeros(count))
        self.register_buffer("prior_a", self.a.detach().clone())
        self.register_buffer("prior_b", self.b.detach().clone())

    @property
    def a(self) -> Tensor:
        """First concentrations of the sticks."""
        return (self.rate * self.log_a).exp()

    @property
    def b(self) -> Tensor:
        """Second concentrations of the sticks."""
        return (self.rate * self.log_b).exp()

    def draw(self) -> Draw:
        """v and, given v, every layer's pi."""
        sticks = F.logsigmoid(beta_logits(self.a, self.b)).cumsum(0).exp()
        return Draw(sticks, beta_logits(*self.of_layers(sticks)).split(self.widths))

    def of_layers(self, sticks: Tensor) -> tuple[Tensor, Tensor]:
        """Concentrations of the layers' Beta variables around sticks, one layer after another."""
        own = torch.cat([sticks[:units] for units in self.widths])
        return self.sharing * own + FLOOR, self.sharing * (1 - own) + FLOOR

    def divergence(self, draw: Draw) -> dict[str, Tensor]:
        """The KLs from the prior of sticks, layers and masks, at a draw."""
        prior = (self.prior_a.log() - (self.prior_a + self.prior_b).log()).cumsum(0).exp()
        before = self.of_layers(prior)
        return {
            "stick_kl": kl_beta(self.a, self.b, self.prior_a, self.prior_b).sum(),
            "layer_kl": kl_beta(*self.of_layers(draw.sticks), *before).sum(),
            "mask_kl": kl_bernoulli(torch.cat(draw.logits), before[0] / (before[0] + before[1])).sum(),
        }

    @torch.no_grad()
    def consolidate(self) -> None:
        """The posterior is the prior of what comes next."""
        self.prior_a.copy_(self.a)
        self.prior_b.copy_(self.b)


class Buffet(nn.Module):
    """A network whose hidden units are masked after their activation: dense units one by one, convolutions by channel."""

    def __init__(self, layers: nn.Module, sticks: Sticks, temperature: float) -> None:
        super().__init__()
        self.layers, self.sticks, self.temperature = layers, sticks, temperature

    def forward(self, x: Tensor, draw: Draw) -> Tensor:
        """Outputs under masks of a draw."""
        logits = iter(draw.logits)
        for layer in self.layers.children():
            x = layer(x)
            if isinstance(layer, nn.LeakyReLU):
                mask = concrete(next(logits), len(x), self.temperature)
                x = x * mask.view(*mask.shape, *[1] * (x.dim() - 2))
        return x


def concrete(logits: Tensor, count: int, temperature: float) -> Tensor:
    """Relaxed Bernoulli variables ``[count, units]``: each is above one half with the probability of its logit."""
    uniform = torch.rand(count, len(logits), device=logits.device).clamp_(1e-6, 1 - 1e-6)
    return ((logits + uniform.logit()) / temperature).sigmoid()


def beta_logits(a: Tensor, b: Tensor) -> Tensor:
    """Logits of draws from Beta(a, b), however small a and b are, with pathwise gradients.

    Such a draw is G_a / (G_a + G_b) with gamma variables, and log Gamma(s) is log Gamma(s + 1) + 1/s log Uniform(0, 1), which
    does not underflow.
    """
    shapes = torch.stack([a, b])
    uniform = torch.rand_like(shapes).clamp_min(torch.finfo(shapes.dtype).tiny)
    larger = torch.distributions.Gamma(shapes + 1, torch.ones_like(shapes), validate_args=False).rsample()
    of_a, of_b = larger.log() + uniform.log() / shapes
    found: Tensor = of_a - of_b
    return found


def kl_beta(a: Tensor, b: Tensor, prior_a: Tensor, prior_b: Tensor) -> Tensor:
    """KL[Beta(a, b) || Beta(a', b')] of each pair of variables."""
    of_prior = prior_a.lgamma() + prior_b.lgamma() - (prior_a + prior_b).lgamma()
    of_posterior = a.lgamma() + b.lgamma() - (a + b).lgamma()
    more_a, more_b = a - prior_a, b - prior_b
    expected = more_a * a.digamma() + more_b * b.digamma() - (more_a + more_b) * (a + b).digamma()
    return of_prior - of_posterior + expected


def kl_bernoulli(logits: Tensor, prior: Tensor) -> Tensor:
    """KL[Bernoulli(pi) || Bernoulli(pi')] of each pair of variables, from logit pi and pi'."""
    on, off = F.logsigmoid(logits), F.logsigmoid(-logits)
    return on.exp() * (on - prior.log()) + off.exp() * (off - torch.log1p(-prior))
