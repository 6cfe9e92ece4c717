"""A VAE in training, and the VAEs of tasks that are over."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hvcl.generative.latent import Conditions, nothing_learned
from hvcl.generative.vae import Generated, MoVEVAE
from hvcl.layers import consolidate
from hvcl.objective import Objective
from hvcl.optim import load_optimizer_state

Network = TypeVar("Network", bound=nn.Module)


class Generator:
    r"""A VAE with its optimiser, trained on the HVCL objective with the ELBO as utility.

    For a batch of current examples followed by replayed ones, with weights w that sum to 1,

        loss = - sum_i w_i ELBO(x_i) + (the terms of the layers, see `Objective`).

    Layers without priors have no terms: then it is an ordinary VAE.

    Args:
        vae: a new VAE.
        optimizer: of its parameters.
        objective: the weights of the layers' terms.
        separate: every task gets a VAE of its own, which starts from the one before it and is frozen when its task is over.
            Nothing of it is forgotten and nothing of it needs replay; it grows by one VAE a task.
    """

    def __init__(self, vae: MoVEVAE, optimizer: torch.optim.Optimizer, objective: Objective, separate: bool = False) -> None:
        self.vae, self.optimizer, self.objective, self.separate = vae, optimizer, objective, separate
        self.past: list[MoVEVAE] = []
        """One frozen VAE for each task that is over, if they are separate."""

    def learn(
        self, x: Tensor, weights: Tensor, condition: Tensor | None, new: int, num_data: int, progress: float
    ) -> dict[str, float]:
        """One step on a batch whose first `new` examples are the stream's; returns named terms."""
        elbo = self.vae.elbo(x, condition)
        utility = (weights * elbo.value).sum()
        total, terms = self.objective(utility, self.vae, num_data, progress)
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        self.vae.prior.record(elbo.component, new)
        named = {"elbo": terms.pop("utility"), "latent_kl": float((weights * elbo.divergence.detach()).sum())}
        return named | {f"vae_{name}": value for name, value in terms.items()}

    def end_task(self) -> None:
        """Posteriors become priors; a VAE that is its task's own is kept as it is."""
        if self.separate:
            self.past.append(frozen(self.vae))
            self.vae.prior.forget()
        consolidate(self.vae)

    def state_dict(self) -> dict[str, Any]:
        """The VAE, those of past tasks, the optimiser and the schedules."""
        return {
            "vae": dict(self.vae.state_dict()),
            "past": [dict(vae.state_dict()) for vae in self.past],
            "optimizer": self.optimizer.state_dict(),
            "objective": self.objective.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.vae.load_state_dict(state["vae"])
        self.past = [frozen(self.vae) for _ in state["past"]]
        for vae, past in zip(self.past, state["past"], strict=True):
            vae.load_state_dict(past)
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.objective.load_state_dict(state["objective"])


def frozen(network: Network) -> Network:
    """A copy in evaluation mode that does not learn."""
    return copy.deepcopy(network).eval().requires_grad_(False)


def frozen_state(network: nn.Module | None) -> dict[str, Tensor] | None:
    """What `frozen_from` makes the copy of again; None if there is no copy."""
    return None if network is None else dict(network.state_dict())


def frozen_from(network: Network, state: Mapping[str, Tensor] | None) -> Network | None:
    """A frozen copy of `network` with the weights of `state`; None if there was none."""
    if state is None:
        return None
    copied = frozen(network)
    copied.load_state_dict(state)
    return copied


def sample_from(
    vaes: Sequence[MoVEVAE], count: int, *, condition: Conditions = None, expert: int | None = None
) -> tuple[Generated, Tensor]:
    """`count` inputs from some VAEs, each in proportion to the examples it has seen, and the number of the VAE of each.

    As with `MoVEVAE.sample`, conditions or an expert can be given; then only the examples of those count.
    """
    if len(vaes) == 1:
        return vaes[0].sample(count, condition=condition, expert=expert), torch.zeros(count, dtype=torch.long)
    if condition is None and expert is None:
        examples = torch.stack([vae.prior.examples.sum() for vae in vaes])
    else:
        examples = torch.stack([vae.prior.mass(condition, expert).sum() for vae in vaes])
    if not bool(examples.sum() > 0):
        raise nothing_learned(condition, expert)
    number = torch.multinomial(examples, count, replacement=True).sort()[0]
    sizes = torch.bincount(number, minlength=len(vaes)).tolist()
    parts = [vae.sample(size, condition=condition, expert=expert) for vae, size in zip(vaes, sizes, strict=True) if size]
    order = torch.randperm(count)
    return Generated(*(torch.cat(columns)[order] for columns in zip(*parts, strict=True))), number[order]
