"""Adam for networks with MoVE layers, the experts' part of it in one pass over their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from hvcl.errors import InputError
from hvcl.kernels import AdamStep, ExpertUpdate, Kernels, Products, load_kernels, scratch
from hvcl.optim.state import Shapes, check_optimizer_state
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.deferral import Collected


class VariationalAdam(torch.optim.Optimizer):
    r"""Adam (Kingma & Ba, 2015) that adds the KL gradient, steps, and measures the new KL in one pass over each expert's weights.

    It gives the numbers that ``torch.optim.Adam(network.parameters())`` gives, up to float32 rounding (with ``lazy=False``, or as
    long as every batch uses every expert), and is faster (docs/speed). While it lives, the posteriors inside `module` hand their
    gradients over expert by expert: the experts' `mean.grad` and `rho.grad` stay empty, and so gradient clipping does not see
    them. What else you add to the loss on them still arrives there and is used. Use any other optimiser if that does not suit:
    the layers then work through plain autograd.

    Args:
        module: the network; all its parameters are optimised.
        lr, betas, eps: as in torch.optim.Adam.
        lazy: skip experts that saw no example since the last step. Their means and sigmas, moments and step counts stay as they
            are; the small pull of their KL (their gate mass is not exactly zero), the diversity's push on them and Adam's
            momentum are left out. With many experts of which a batch uses few, a step then costs what the used ones cost.
            (Biases, gates and sigmas per unit are few: they are always stepped.)

    An expert that is stepped moves in both its means and its sigmas, if only by momentum; torch's Adam would leave alone a sigma
    that no term of the loss has ever touched (estimator "mean" without KL).
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        lazy: bool = True,
    ) -> None:
        if not lr >= 0 or not eps >= 0 or not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"lr and eps must be at least 0 and betas in [0, 1), got lr={lr}, eps={eps}, betas={betas}")
        super().__init__(module.parameters(), {"lr": lr, "betas": betas, "eps": eps})
        self.lazy = lazy
        # a transform other than exp is not worth a kernel of its own: plain autograd serves it
        self.posteriors = [m for m in module.modules() if isinstance(m, MeanFieldGaussian) and m.transform == "exp"]
        for posterior in self.posteriors:
            posterior.deferral.begin(self)
        self._inverses: dict[int, tuple[Tensor, int, Tensor]] = {}
        special = {id(p.mean) for p in self.posteriors}
        special |= {id(p.rho) for p in self.posteriors if p.sigma_kind == "weight"}
        self._plain = [p for group in self.param_groups for p in group["params"] if id(p) not in special]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only the one group that the network makes up."""
        if self.param_groups:
            raise InputError(
                "VariationalAdam optimises one network with one set of settings: use a second optimiser for the rest"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, collected ones included."""
        super().zero_grad(set_to_none)
        for posterior in self.posteriors:
            posterior.deferral.clear()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of Adam on everything that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        for posterior in self.posteriors:
            if posterior.sigma_kind == "weight":
                self._step_posterior(posterior, group)
            else:
                self._step_means(posterior, group)
        self._step_plain(group)
        return loss

    # -- parameters that are nobody's experts -------------------------------------------------------------------------------

    def _step_plain(self, group: dict[str, Any]) -> None:
        parameters = [p for p in self._plain if p.grad is not None]
        if not parameters:
            return
        states = [self._moments(p) for p in parameters]
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )

    def _moments(self, parameter: Tensor, counters: int | None = None) -> dict[str, Any]:
        """The state of one parameter; `counters` asks for a step count per expert."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            shape = () if counters is None else (counters,)
            state["step"] = torch.zeros(shape, dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    # -- experts --------------------------------------------------------------------------------------------------------------

    def _experts_to_step(self, posterior: MeanFieldGaussian) -> list[int]:
        """Experts that have a gradient, or all if the update is not lazy and there is any gradient at all."""
        deferral = posterior.deferral
        dense = posterior.mean.grad is not None or (posterior.sigma_kind == "weight" and posterior.rho.grad is not None)
        every = list(range(posterior.experts))
        if deferral.factors is not None:
            starts = deferral.factors.starts.tolist()
            return [m for m in every if starts[m] < starts[m + 1]] if self.lazy and not dense else every
        if not (deferral.gradients or dense or deferral.kl_weights is not None or deferral.push is not None):
            return []
        return sorted(deferral.gradients) if self.lazy and not dense else every

    def _products(self, posterior: MeanFieldGaussian, kernels: Kernels | None) -> tuple[Products, Tensor] | None:
        """The gradients as factors that the update multiplies out, and memory for that; None if they are of another kind."""
        factors = posterior.deferral.factors
        if factors is None or kernels is None or not kernels.has_gemm:
            return None
        if posterior.mean.grad is not None or (posterior.sigma_kind == "weight" and posterior.rho.grad is not None):
            return None
        inputs, outputs = factors.left.shape[1], factors.right.shape[1]
        room = scratch((1 if factors.noise_left is None else 2) * inputs * outputs)
        addresses = [None if t is None else t.data_ptr() for t in (*factors, room)]
        return Products(inputs, outputs, *addresses), room

    def _step_posterior(self, posterior: MeanFieldGaussian, group: dict[str, Any]) -> None:
        """Means and sigmas of one layer's experts, sigma per weight."""
        experts = self._experts_to_step(posterior)
        if not experts:
            return
        deferral, mean, rho = posterior.deferral, posterior.mean, posterior.rho
        priors = (posterior.prior_mean, posterior.prior_log_sigma)
        versions = self._kl_depends_on(posterior)
        of_mean, of_rho = (
            self._moments(mean, posterior.experts),
            self._moments(rho, posterior.experts),
        )  # steps count in the first
        kl = self._current_kl(posterior, posterior._kl_per_weight, versions)
        moments = (of_mean["exp_avg"], of_mean["exp_avg_sq"], of_rho["exp_avg"], of_rho["exp_avg_sq"])
        stacked = (mean, *moments[:2], priors[0], rho, *moments[2:], priors[1])
        kernels = load_kernels(mean)
        products = self._products(posterior, kernels)
        steps = self._adam_steps(posterior, experts, of_mean["step"], group)
        pushes = [[None] * len(experts) if push is None else push.unbind(0) for push in posterior.push_on(experts)]
        before = mean._version, rho._version
        if kernels is not None and products is not None:
            updates = [ExpertUpdate(*of) for of in zip(experts, steps, *pushes, strict=True)]
            kernels.variational_update(updates, 0, stacked, [None] * len(experts), kl, products[0])
        else:
            noises = [_gather_noise(posterior, m) for m in experts]
            if len({n.kind for n, _ in noises if n is not None}) > 1:  # the kernel has one mode for all
                noises = [
                    (None, g if n is None else _add(g, _to_rho(n, rho[m]))) for m, (n, g) in zip(experts, noises, strict=True)
                ]
            parts = zip(experts, steps, noises, *pushes, strict=True)
            updates = [
                ExpertUpdate(m, step, _sum(_gather_mean(posterior, m), of_mean), _sum(g_rho, of_rho))
                for m, step, (_, g_rho), of_mean, of_rho in parts
            ]
            if kernels is not None:
                mode = int(any(noise is not None and noise.kind == "variance" for noise, _ in noises))
                updates = [
                    u._replace(g_noise=None if n is None else n.gradient) for u, (n, _) in zip(updates, noises, strict=True)
                ]
                kernels.variational_update(updates, mode, stacked, [None if n is None else n.shared for n, _ in noises], kl)
            else:
                for update, (noise, _) in zip(updates, noises, strict=True):
                    m = update.expert
                    g_rho = update.g_rho if noise is None else _add(update.g_rho, _to_rho(noise, rho[m]))
                    first = (mean[m], update.g_mean, moments[0][m], moments[1][m], priors[0][m])
                    kl[m] = _variational_update(update.step, *first, rho[m], g_rho, moments[2][m], moments[3][m], priors[1][m])
        torch.autograd.graph.increment_version([mean, rho])
        deferral.stepped(experts, before, mean, rho)
        deferral.remember_kl(kl, *versions)
        of_mean["kl"] = kl

    def _step_means(self, posterior: MeanFieldGaussian, group: dict[str, Any]) -> None:
        """Means of one layer's experts, sigma per unit (the sigmas are few and go with the plain parameters)."""
        experts = self._experts_to_step(posterior)
        if not experts:
            return
        deferral, mean = posterior.deferral, posterior.mean
        versions = self._kl_depends_on(posterior)
        state = self._moments(mean, posterior.experts)
        kl = self._current_kl(posterior, posterior._shift_kl, versions)
        steps = self._adam_steps(posterior, experts, state["step"], group)
        inverse = self._inverse_variance(posterior)
        kernels = load_kernels(mean) if posterior.unit_layout is not None else None
        products = self._products(posterior, kernels)
        push, _ = posterior.push_on(experts)
        pushes = [None] * len(experts) if push is None else push.unbind(0)
        before = (mean._version,)
        if products is None:
            parts = zip(experts, steps, pushes, strict=True)
            updates = [ExpertUpdate(m, step, _sum(_gather_mean(posterior, m), push)) for m, step, push in parts]
        else:
            updates = [ExpertUpdate(*of) for of in zip(experts, steps, pushes, strict=True)]
        if kernels is not None and posterior.unit_layout is not None:
            stacked = (mean, state["exp_avg"], state["exp_avg_sq"], posterior.prior_mean, inverse)
            kernels.mean_update(updates, posterior.unit_layout, stacked, kl, None if products is None else products[0])
        else:
            spread = posterior.expand_units(inverse).expand_as(mean)
            for update in updates:
                m = update.expert
                first = (mean[m], update.g_mean, state["exp_avg"][m], state["exp_avg_sq"][m], posterior.prior_mean[m])
                kl[m] = _mean_update(update.step, *first, spread[m])
        torch.autograd.graph.increment_version(mean)
        deferral.stepped(experts, before, mean)
        deferral.remember_kl(kl, *versions)
        state["kl"] = kl

    @staticmethod
    def _current_kl(posterior: MeanFieldGaussian, compute: Callable[[], Tensor], versions: tuple[Tensor, ...]) -> Tensor:
        """The experts' KLs, a copy that may be written to."""
        known = posterior.deferral.recall_kl(*versions)
        return compute() if known is None else known.clone()

    def _inverse_variance(self, posterior: MeanFieldGaussian) -> Tensor:
        """1 / (prior sigma)^2 of every unit; the prior changes with the task, not with the step."""
        prior = posterior.prior_log_sigma
        known = self._inverses.get(id(posterior))
        if known is None or known[0] is not prior or known[1] != prior._version:
            known = self._inverses[id(posterior)] = (prior, prior._version, torch.exp(-2 * prior))
        return known[2]

    @staticmethod
    def _adam_steps(posterior: MeanFieldGaussian, experts: list[int], steps: Tensor, group: dict[str, Any]) -> list[AdamStep]:
        """The numbers of each expert's step; counts it."""
        deferral = posterior.deferral
        if len(experts) == posterior.experts:
            steps += 1
        else:
            steps[experts] += 1
        counts = steps.tolist()
        weights = [0.0] * posterior.experts if deferral.kl_weights is None else deferral.kl_weights.tolist()
        beta1, beta2 = group["betas"]
        lr, eps = group["lr"], group["eps"]
        return [
            AdamStep(lr / (1 - beta1**t), beta1, beta2, (1 - beta2**t) ** -0.5, eps, weights[m])
            for m, t in ((m, counts[m]) for m in experts)
        ]

    # -- state ------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _kl_depends_on(posterior: MeanFieldGaussian) -> tuple[Tensor, ...]:
        """What the remembered KL was computed from."""
        if posterior.sigma_kind == "weight":
            return posterior.mean, posterior.prior_mean, posterior.rho, posterior.prior_log_sigma
        return posterior.mean, posterior.prior_mean, posterior.prior_log_sigma

    def state_shapes(self) -> dict[int, Shapes]:
        """By the number of the parameter, the shapes of what is kept beside the moments: experts count their own steps."""
        experts = {id(p.mean): p.experts for p in self.posteriors}
        experts |= {id(p.rho): p.experts for p in self.posteriors if p.sigma_kind == "weight"}
        return {
            number: {"step": (experts[id(parameter)],), "kl": (experts[id(parameter)],)}
            for number, parameter in enumerate(self.param_groups[0]["params"])
            if id(parameter) in experts
        }

    def state_dict(self) -> dict[str, Any]:
        """Moments, step counts, and the experts' KLs as the last step left them, unless the weights or priors changed since."""
        for posterior in self.posteriors:
            if posterior.deferral.recall_kl(*self._kl_depends_on(posterior)) is None:
                self.state[posterior.mean].pop("kl", None)
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; what is remembered of the weights is restored bit by bit.

        A state that does not fit (of another network, say) raises `InputError`, and nothing has changed.
        """
        check_optimizer_state(self, state_dict, self.state_shapes())
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state.update({name: value.contiguous() for name, value in state.items()})
        for posterior in self.posteriors:
            posterior.deferral.clear()
            kl = self.state[posterior.mean].get("kl")
            if kl is not None:
                posterior.deferral.remember_kl(kl, *self._kl_depends_on(posterior))


def _add(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else _add(a, b)


def _to_rho(noise: Collected, rho: Tensor) -> Tensor:
    """The gradient of rho = log sigma from that of sigma * shared, or of sigma^2."""
    sigma = rho.exp()
    if noise.kind == "noise":
        assert noise.shared is not None
        return noise.gradient * noise.shared * sigma
    return 2 * noise.gradient * sigma * sigma


def _gather_mean(posterior: MeanFieldGaussian, expert: int) -> Tensor | None:
    """The gradient of one expert's means, from wherever it came."""
    dense = posterior.mean.grad
    total = None if dense is None else dense[expert]
    for item in posterior.deferral.gradients.get(expert, []):
        if item.kind == "mean":
            total = _add(total, item.gradient)
    return None if total is None else total.contiguous()


def _gather_noise(posterior: MeanFieldGaussian, expert: int) -> tuple[Collected | None, Tensor | None]:
    """The gradient of one expert's noise, if there is a single one (the usual case), and else all of them as gradient of rho."""
    dense = posterior.rho.grad
    g_rho = None if dense is None else dense[expert]
    noises = [item for item in posterior.deferral.gradients.get(expert, []) if item.kind != "mean"]
    if len(noises) == 1:
        single = noises[0]._replace(gradient=noises[0].gradient.contiguous())
        return single, None if g_rho is None else g_rho.contiguous()
    for item in noises:
        g_rho = _add(g_rho, _to_rho(item, posterior.rho[expert]))
    return None, None if g_rho is None else g_rho.contiguous()


def _adam_in_place(step: AdamStep, parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    first.lerp_(gradient, 1 - step.beta1)
    second.mul_(step.beta2).addcmul_(gradient, gradient, value=1 - step.beta2)
    parameter.addcdiv_(first, second.sqrt().mul_(step.root).add_(step.epsilon), value=-step.rate)


def _mean_update(
    step: AdamStep, mean: Tensor, g_mean: Tensor | None, m1: Tensor, v1: Tensor, prior_mean: Tensor, inverse: Tensor
) -> float:
    """kernels.c's mean_update in torch operations: any device and type, and the reference for the compiled one."""
    pull = (mean - prior_mean).mul_(inverse).mul_(step.kl_weight)
    _adam_in_place(step, mean, pull if g_mean is None else pull.add_(g_mean), m1, v1)
    return float((mean - prior_mean).square_().mul_(inverse).sum()) / 2


def _variational_update(
    step: AdamStep,
    mean: Tensor,
    g_mean: Tensor | None,
    m1: Tensor,
    v1: Tensor,
    prior_mean: Tensor,
    rho: Tensor,
    g_rho: Tensor | None,
    m2: Tensor,
    v2: Tensor,
    prior_log_sigma: Tensor,
) -> float:
    """kernels.c's variational_update in torch operations: any device and type, and the reference for the compiled one."""
    inverse = torch.exp(-2 * prior_log_sigma)
    excess = torch.expm1(2 * (rho - prior_log_sigma)).mul_(step.kl_weight)
    shift = _mean_update(step, mean, g_mean, m1, v1, prior_mean, inverse)
    _adam_in_place(step, rho, excess if g_rho is None else excess.add_(g_rho), m2, v2)
    ratio = rho - prior_log_sigma
    return shift + float((torch.expm1(2 * ratio) / 2 - ratio).sum())
