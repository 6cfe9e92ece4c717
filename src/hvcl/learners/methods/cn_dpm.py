r"""Continual neural Dirichlet process mixture: CN-DPM (Lee, Ha, Zhang & Kim, 2020).

A mixture of experts whose number grows with the data. Expert k is a classifier p(y|x, k) and a VAE, whose evidence lower bound
stands for log p(x|k). With N_k examples learned by k an input is answered by all of them,

    p(y|x) = sum_k p(y|x, k) p(x|k) N_k / sum_k p(x|k) N_k .

Which expert an example of the stream belongs to is decided when it comes, and never again (sequential variational
approximation): with expert 0 for all that there could be more,

    rho_k = N_k p(x|k) p(y|x, k)^(1/T) / Z ,      k = 1 .. K ,        rho_0 = alpha p(x|0) p(y|x, 0)^(1/T) / Z ,

with the base measure p(.|0), an expert that learns nothing, and a temperature T far below 1, without which the few nats of a
label would not count beside the many of a picture. Awake, an example for which rho_0 is the largest goes to the short-term
memory; of any other each expert learns its share, rho without rho_0, and adds it to N_k,

    loss = 1/B sum_nk rho_nk ( - log p(y_n|x_n, k) - ELBO(x_n, k) ) .

When the memory is full the learner sleeps: a new expert learns from what is there, which then is forgotten. Nothing tells it of
tasks: boundaries do nothing, and a task id only says in predictions which labels there are.

Experts after the first are small and stand on those before: every layer of classifiers and encoders also hears, by lateral
connections, the units of all earlier experts in the layer below, and sends them no gradient. With ``growth=0`` nothing is
shared: every expert has networks of full width. The network grows with the stream in either case.

The base measure is, as in the authors' code, an untrained expert. So alpha says how much better than untrained an expert must
be at an example to keep it, in nats; they choose log alpha anew for each data set, from -450 to 0. What is noticed depends on it:
with T = 0.01 a label that no expert ever had costs each of them some hundred nats, which is how new classes are found
(Class-IL); new inputs with old labels (Domain-IL) are only noticed where they are labelled unlike what they resemble. On split
digits there was an expert for each pair of digits in Class-IL, and in Domain-IL one for each label. With too large an alpha what
belongs to an expert goes to the memory, and experts multiply.

Deviates from the paper: the VAEs' likelihoods and leaky ReLUs of this package (theirs is a Gaussian of variance 1); no weight
decay and no clipping of gradients; in sleep both parts of an expert learn for the same number of steps (theirs: 8,000 for the
VAE and 2,000 for the classifier, of 50 examples each); fewer draws for the evidence (theirs: 16). Until the memory is full for
the first time there is no expert, and all labels are equally probable; what is in the memory at the end is not learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.generative import Layers, LikelihoodName, MoVEVAE
from hvcl.learners.base import State
from hvcl.learners.experts import ExpertLog
from hvcl.learners.generative import at_least_one
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.memory.examples import Stored, from_state
from hvcl.learners.memory.replay import memory_words
from hvcl.learners.registry import register
from hvcl.networks import initialise, plain_conv, stages, trunk

SLEEP_BATCH = 50
"""Examples of a step in sleep."""

LEAST_SHARE = 0.1
"""An expert whose shares of a batch sum to less does not learn from it."""


@dataclass(frozen=True)
class CNDPMConfig(GradientConfig):
    """Continual neural Dirichlet process mixture."""

    memory: int = 500
    """Examples that the short-term memory holds: what a new expert begins with."""
    log_concentration: float = -400.0
    """log alpha: the larger, the sooner an example counts as new."""
    chill: float = 0.01
    """T, what log p(y|x, k) is divided by where experts compete for an example."""
    sleep_steps: int = 2_000
    """Steps in which a new expert learns what the memory holds."""
    growth: float = 0.25
    """Units of later experts as a fraction of the first's, beside those that they hear; 0: all of full width, nothing shared."""
    latent: int = 16
    """Dimensions of the VAEs' latent variables."""
    likelihood: LikelihoodName = "bce"
    """The VAEs' model of inputs: bce (pixels in [0, 1]), logistic (discretised, for photographs), gaussian (any numbers)."""
    vae_learning_rate: float = 1e-3
    """Step size of Adam for the VAEs."""
    samples: int = 4
    """Draws of the latent variable for the evidence of an input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(memory=self.memory, sleep_steps=self.sleep_steps, latent=self.latent, samples=self.samples)
        for name in ("chill", "vae_learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.growth <= 1:
            raise InputError(f"growth must lie between 0 and 1, got {self.growth}")
        if not (self.hidden or self.channels):
            raise InputError("hidden must have a layer of units for the experts, or channels, got neither")


@register("cn-dpm", CNDPMConfig)
class CNDPM(GradientLearner):
    """Continual neural Dirichlet process mixture: experts classify and generate, and open from a memory; no boundaries needed."""

    config: CNDPMConfig
    network: nn.ModuleList
    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: CNDPMConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.counts = torch.zeros(0, dtype=torch.float64)
        """N_k of every expert."""
        self._nothing = Stored(torch.zeros(0, *problem.input_shape), torch.zeros(0, dtype=torch.long))
        self.stored = self._nothing
        """The short-term memory."""
        self.step = 0
        self.expert_log = ExpertLog()

    # -- the mixture -----------------------------------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """The base measure: an expert that never learns."""
        return nn.ModuleList([Expert(self.problem, self.config).requires_grad_(False)])

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam for all experts, of which there are none yet."""
        return torch.optim.Adam([{"params": []}], lr=self.config.learning_rate, fused=True)

    @property
    def base(self) -> list[Expert]:
        """The base measure, alone."""
        return [expert for expert in self.network if isinstance(expert, Expert)][:1]

    @property
    def experts(self) -> list[Expert]:
        """All that were opened."""
        return [expert for expert in self.network if isinstance(expert, Expert)][1:]

    def open(self) -> None:
        """One expert more."""
        expert = Expert(self.problem, self.config, self.experts).to(self.device)
        self.network.append(expert)
        self.optimizer.add_param_group({"params": [*expert.column.parameters(), *expert.head.parameters()]})
        self.optimizer.add_param_group({"params": [*expert.vae.parameters()], "lr": self.config.vae_learning_rate})

    def evidence(self, experts: Sequence[Expert], x: Tensor) -> Tensor:
        """log p(x|k) ``[B, experts]``: the mean of some draws of the lower bound."""
        return torch.stack([bounds(experts, x) for _ in range(self.config.samples)]).mean(0)

    def log_joint(self, x: Tensor, y: Tensor) -> Tensor:
        """log rho, not normalised ``[B, 1 + K]``: the base measure first."""
        found = []
        for experts in filter(None, (self.base, self.experts)):
            chilled = (answers(experts, x).log_softmax(2) / self.config.chill).log_softmax(2)
            labels = y.view(-1, 1, 1).expand(-1, len(experts), 1)
            found.append(self.evidence(experts, x) + chilled.gather(2, labels).squeeze(2))
        weights = torch.tensor([self.config.log_concentration, *self.counts.log().tolist()], device=self.device)
        return torch.cat(found, 1) + weights

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """A step of the experts that the batch belongs to; what belongs to none of them goes to the memory."""
        self.base[0].vae.check(x)
        with self.random.active():
            loss = self.awake(x.to(self.device), y.to(self.device))
        self.step += 1
        return {"loss": loss, "experts": float(len(self.experts)), "stored": float(len(self.stored))}

    def awake(self, x: Tensor, y: Tensor) -> float:
        """Assign a batch, and learn from it; the last loss."""
        with torch.no_grad():
            joint = self.log_joint(x, y)
        new = joint.argmax(1) == 0
        loss = 0.0 if bool(new.all()) else self.learn_shares(x[~new], y[~new], joint[~new, 1:].softmax(1))
        room = self.config.memory - len(self.stored)
        fits, rest = Stored(x[new][:room], y[new][:room]), Stored(x[new][room:], y[new][room:])
        self.stored = self.stored.followed_by(fits)
        if len(self.stored) < self.config.memory:
            return loss
        loss = self.sleep()
        return self.awake(rest.x, rest.y) if len(rest) else loss  # the rest may belong to the new expert

    def learn_shares(self, x: Tensor, y: Tensor, shares: Tensor) -> float:
        """A step on examples of which each expert has its share ``[B, K]``; the loss."""
        usage = shares.sum(0)
        self.counts = self.counts + usage.double().cpu()
        self.expert_log.record(self.step, shares.argmax(1).cpu(), y.cpu())
        chosen = (usage > LEAST_SHARE).nonzero().flatten().tolist()
        return self.descend((self.losses(x, y, chosen) * shares[:, chosen]).sum() / len(x)) if chosen else 0.0

    def sleep(self) -> float:
        """A new expert learns what is in the memory, which is empty then; the last loss."""
        past, self.stored = self.stored, self._nothing
        self.open()
        self.counts = torch.cat([self.counts, torch.full((1,), len(past), dtype=torch.float64)])
        self.expert_log.record(self.step, torch.full((len(past),), len(self.experts) - 1), past.y.cpu())
        loss = 0.0
        for _ in range(self.config.sleep_steps):
            rows = torch.randint(len(past), (SLEEP_BATCH,), device=self.device)
            loss = self.descend(self.losses(past.x[rows], past.y[rows], [len(self.experts) - 1]).mean())
        return loss

    def losses(self, x: Tensor, y: Tensor, chosen: Sequence[int]) -> Tensor:
        """- log p(y|x, k) - ELBO(x, k) of some experts ``[B, chosen]``."""
        logits, labels = answers(self.experts, x, chosen), y.view(-1, 1).expand(-1, len(chosen))
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none") - bounds(self.experts, x, chosen)

    def descend(self, loss: Tensor) -> float:
        """A step of Adam, of those experts that the loss depends on."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    # -- prediction ------------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The experts' answers, weighted by p(k|x)."""
        if not self.experts:
            self.expert_probabilities = None
            return self.masked(x.new_zeros(len(x), self.problem.outputs), task).softmax(1)
        with self.random.active(keep=False):
            weights = (self.evidence(self.experts, x) + self.counts.log().to(x)).softmax(1)
        self.expert_probabilities = weights.cpu()
        p = torch.stack([self.masked(logits, task).softmax(1) for logits in answers(self.experts, x).unbind(1)], 1)
        return (weights.unsqueeze(2) * p).sum(1)

    @property
    def num_parameters(self) -> int:
        """Weights of all experts."""
        return sum(parameter.numel() for expert in self.experts for parameter in expert.parameters())

    @property
    def memory(self) -> str:
        """The size of the short-term memory."""
        return memory_words(self.config.memory)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Base measure, experts, optimiser, random state, counts, memory and log."""
        return super().state_dict() | {
            "counts": self.counts,
            "stored": self.stored.state(),
            "step": self.step,
            "log": self.expert_log.state_dict(),
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        # no more experts than there are weights for in the file
        count = len({name.split(".")[0] for name in state["network"]}) - 1
        self.counts = tensor_like(state["counts"], torch.zeros(count, dtype=torch.float64), "counts")
        self.start()
        for _ in range(count):
            self.open()
        super().restore(state)
        self.stored, self.step = from_state(state["stored"], self._nothing), int(state["step"])
        if len(self.stored) >= self.config.memory:
            raise ValueError(f"it stores {len(self.stored)} examples, and is to learn {self.config.memory}")
        self.expert_log.load_state_dict(state["log"])


# -- experts -------------------------------------------------------------------------------------------------------------------


class Column(nn.Module):
    """The layers of a network before its head, each of which also hears the units of earlier columns in the layer below.

    Args:
        problem: gives the shape of the inputs.
        config: gives the layers.
        scale: units of each layer, as a fraction of those in `config`.
        heard: the earlier columns.
    """

    def __init__(self, problem: Problem, config: CNDPMConfig, scale: float, heard: Sequence[Column]) -> None:
        super().__init__()
        hidden, channels = (tuple(max(round(scale * n), 1) for n in sizes) for sizes in (config.hidden, config.channels))
        more = iter([0, *(sum(widths) for widths in zip(*(column.widths for column in heard), strict=True))])
        layers, shapes, _ = trunk(
            problem.input_shape,
            hidden=hidden,
            channels=channels,
            dropout=config.dropout,
            dense=lambda below, units: nn.Linear(below + next(more, 0), units),
            conv=lambda below, units: plain_conv(below + next(more, 0), units),
        )
        self.hears = len(heard) > 0
        self.widths: list[int] = [*channels[:-1], *([math.prod(shapes[-1])] if channels else []), *hidden]
        """Own units of each layer; of the last convolution flattened."""
        self.width = self.widths[-1] + sum(column.widths[-1] for column in heard)
        """Units of the last layer, heard ones included."""
        if channels:
            for layer in layers.values():
                initialise(layer)
        self.stages = nn.ModuleList(stages(layers))

    def forward(self, x: Tensor, heard: list[Tensor] | None) -> list[Tensor]:
        """The units of each layer, heard ones first."""
        layers = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if self.hears and heard is not None:
                x = torch.cat([heard[i], x], 1)
            layers.append(x)
        return layers


class Expert(nn.Module):
    """A classifier and a VAE; the classifier and the VAE's encoder hear those of earlier experts."""

    def __init__(self, problem: Problem, config: CNDPMConfig, earlier: Sequence[Expert] = ()) -> None:
        super().__init__()
        heard = earlier if config.growth else ()
        scale = config.growth if heard else 1.0
        self.column: Column = Column(problem, config, scale, [expert.column for expert in heard])
        self.head = nn.Linear(self.column.width, problem.outputs)
        encoder = Column(problem, config, scale, [expert.encoder for expert in heard])

        def latent_layer(_: int, latent: int) -> nn.Module:
            return nn.Linear(encoder.width, latent)

        self.vae = MoVEVAE(
            problem.input_shape,
            Layers(mean=latent_layer, log_variance=latent_layer),
            latent=config.latent,
            hidden=config.hidden,
            channels=config.channels,
            likelihood=config.likelihood,
        )
        self.vae.encoder = encoder  # type: ignore[assignment]
        if config.channels:
            initialise(self.head)

    @property
    def encoder(self) -> Column:
        """The VAE's."""
        assert isinstance(self.vae.encoder, Column)
        return self.vae.encoder


def climb(columns: Sequence[Column], x: Tensor) -> Iterator[Tensor]:
    """The last layer of each column; no gradient goes from one to another."""
    heard: list[Tensor] | None = None
    for column in columns:
        layers = column(x, heard)
        yield layers[-1]
        heard = [units.detach() for units in layers]


def answers(experts: Sequence[Expert], x: Tensor, chosen: Sequence[int] | None = None) -> Tensor:
    """Logits ``[B, experts, outputs]`` of all experts, or of some."""
    tops = list(climb([expert.column for expert in experts], x))
    return torch.stack([experts[k].head(tops[k]) for k in (range(len(experts)) if chosen is None else chosen)], 1)


def bounds(experts: Sequence[Expert], x: Tensor, chosen: Sequence[int] | None = None) -> Tensor:
    """Evidence lower bounds ``[B, experts]`` of all experts, or of some, with one draw for each example."""
    tops = list(climb([expert.encoder for expert in experts], x))
    pairs = [(experts[k].vae, tops[k]) for k in (range(len(experts)) if chosen is None else chosen)]
    return torch.stack([vae.elbo_of(vae.latent_of(top), x).value for vae, top in pairs], 1)
