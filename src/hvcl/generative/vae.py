"""A variational autoencoder of MoVE layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.generative.gates import ContextGates
from hvcl.generative.latent import Conditions, Latent, LatentPrior
from hvcl.generative.layers import Layers
from hvcl.generative.likelihoods import LikelihoodName, make_likelihood
from hvcl.layers import MoVELayer
from hvcl.networks import initialise, trunk


class Elbo(NamedTuple):
    """The two parts of the evidence lower bound of every example, in nats: E[log p(x|z)] and KL[q(z|x) || p(z|k)]."""

    reconstruction: Tensor
    divergence: Tensor
    component: Tensor
    """Every example's component k of the latent prior."""

    @property
    def value(self) -> Tensor:
        """Reconstruction minus divergence ``[B]``: at most log p(x). The utility of the HVCL objective."""
        return self.reconstruction - self.divergence


class Generated(NamedTuple):
    """Generated inputs, with the expert of the latent mean and the condition that each came from."""

    x: Tensor
    expert: Tensor
    condition: Tensor


class MoVEVAE(nn.Module):
    r"""A VAE whose layers are mixtures of variational experts, for vectors and for images.

    .. math:: \log p(x) \ge E_{q(z|x)}[\log p(x|z)] - KL[q(z|x) \| p(z|k)], \qquad k = (\text{condition}, \text{expert})

    The encoder is convolutions (if any), then dense layers; the decoder mirrors it with transposed convolutions; leaky ReLU
    between. The latent mean is a layer of its own experts: which of them gave an example's mean is known, and the latent prior
    has a component for it (`LatentPrior`). The paper's architectures:

    - MNIST: ``hidden=(256, 256), latent=64``, one expert everywhere;
    - CIFAR: ``channels=(8, 16, 32, 64, 128), hidden=(256, 256), latent=128``, two experts, three for the latent mean.

    Train it with the HVCL objective: `elbo(x).value` is the utility, `loss_terms` finds the layers' own costs, and
    `hvcl.layers.consolidate` makes the posteriors the priors of what comes next.

    Args:
        input_shape: of one example: (features,) or (channels, height, width).
        layers: the kinds of layers, `move_layers(...)`; plain ones by default, which makes it an ordinary VAE.
        latent: dimensions of z.
        hidden: units of the dense layers of the encoder; the decoder has them in reverse.
        channels: channels of the encoder's convolutions, each of which halves the picture.
        likelihood: "bce", "logistic" (discretised, for photographs) or "gaussian" (for inputs that are not pixels).
        conditions: the number of classes that generation can be conditioned on; 1 for none.
        gated: share of the units of each dense layer of the decoder that every context turns off (`ContextGates`).
        context: so many conditions, which follow one another, are one context.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        layers: Layers | None = None,
        *,
        latent: int = 64,
        hidden: tuple[int, ...] = (256, 256),
        channels: tuple[int, ...] = (),
        likelihood: LikelihoodName = "bce",
        conditions: int = 1,
        gated: float = 0.0,
        context: int = 1,
    ) -> None:
        super().__init__()
        layers = layers or Layers()
        self.input_shape = tuple(input_shape)
        encoder, sizes, width = trunk(self.input_shape, hidden=hidden, channels=channels, dense=layers.dense, conv=layers.conv)
        self.encoder = nn.Sequential(encoder)
        self.mean = layers.mean(width, latent)
        self.log_variance = layers.log_variance(width, latent)
        self.decoder = mirrored(self.input_shape, layers, latent, hidden, channels, sizes)
        self.likelihood = make_likelihood(likelihood, self.input_shape)
        if channels and not any(isinstance(part, MoVELayer) for part in self.modules()):
            for part in (*self.encoder, self.mean, *self.decoder):
                initialise(part)
        experts = self.mean.experts if isinstance(self.mean, MoVELayer) else 1
        self.prior = LatentPrior(latent, conditions, experts)
        self.gates = ContextGates(conditions, hidden[::-1], gated, context) if gated else None

    @property
    def experts(self) -> int:
        """Experts of the latent mean: components of the mixture."""
        return self.prior.experts

    def check(self, x: Tensor) -> None:
        """Raise `InputError` for inputs of another shape or outside of what the likelihood describes."""
        if tuple(x.shape[1:]) != self.input_shape or len(x) == 0:
            raise self._misfit(x)
        self.likelihood.check(x)

    def _misfit(self, x: Tensor) -> InputError:
        return InputError(f"the VAE takes (batch, {', '.join(map(str, self.input_shape))}), got {tuple(x.shape)}")

    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer of the encoder."""
        features: Tensor = self.encoder(x)
        return features

    def encode(self, x: Tensor) -> Latent:
        """q(z|x), and the expert that gave its mean."""
        return self.latent_of(self.features(x))

    def latent_of(self, features: Tensor) -> Latent:
        """q(z|x) from the encoder's features."""
        mean: Tensor = self.mean(features)
        gate = self.mean.gate_log_probabilities if isinstance(self.mean, MoVELayer) else None
        expert = mean.new_zeros(len(mean), dtype=torch.long) if gate is None else gate.argmax(1)
        return Latent(mean, self.log_variance(features), expert)

    def decode(self, z: Tensor, condition: Tensor | None = None) -> Tensor:
        """The decoder's outputs, in the shape of the inputs; `likelihood.mean` makes inputs of them.

        With gates the condition of each z decides which units answer: integers ``[B]``, or probabilities ``[B, conditions]``.
        """
        if self.gates is not None and condition is None:
            raise InputError("this VAE's decoder is gated by conditions: give every example's condition")
        outputs: Tensor = self.decoder(z) if self.gates is None or condition is None else self.gates(self.decoder, z, condition)
        return outputs.view(len(z), *self.input_shape)

    def elbo(self, x: Tensor, condition: Tensor | None = None) -> Elbo:
        """The evidence lower bound of every example, with one sample of z each.

        Args:
            x: inputs ``[B, *input_shape]`` that the likelihood describes (`check` says so of inputs that come from outside).
            condition: what each example is, ``[B]`` integers below `conditions`; needed if that is more than 1.
        """
        if tuple(x.shape[1:]) != self.input_shape or len(x) == 0:
            raise self._misfit(x)
        return self.elbo_of(self.encode(x), x, condition)

    def elbo_of(self, latent: Latent, x: Tensor, condition: Tensor | None = None) -> Elbo:
        """The same for inputs that are encoded already.

        Conditions that are known with probabilities only, ``[B, conditions]``, mix their components: KL[q(z|x) || p(z)] is then
        estimated at the draw of z, log q(z|x) - log p(z), unless one is certain; the component is that of the most probable one.
        """
        z = latent.draw()
        reconstruction = self.likelihood.log_prob(self.decode(z, condition), x)
        if condition is None or not condition.is_floating_point():
            component = self.prior.component(condition, latent.expert)
            return Elbo(reconstruction, self.prior.divergence(latent, component), component)
        component = self.prior.component(condition.argmax(1), latent.expert)
        estimated = latent.log_density(z) - self.prior.log_density(z, condition)
        divergence = torch.where(condition.amax(1) == 1, self.prior.divergence(latent, component), estimated)
        return Elbo(reconstruction, divergence, component)

    @torch.no_grad()
    def sample(self, count: int, *, condition: Conditions = None, expert: int | None = None) -> Generated:
        """Generate inputs in the proportions of what was learned, of all or of given conditions or a given expert."""
        if count < 1:
            raise InputError(f"count must be at least 1, got {count}")
        component = self.prior.choose(count, condition, expert)
        conditions = component // self.prior.experts
        outputs = self._evaluating(lambda z: self.decode(z, conditions), self.prior.draw(component))
        return Generated(self.likelihood.mean(outputs), component % self.prior.experts, conditions)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """What the decoder makes of the latent mean of each input, for the condition that it most probably is of."""
        self.check(x)

        def decoded(inputs: Tensor) -> Tensor:
            z = self.encode(inputs).mean
            return self.decode(z, None if self.gates is None else self.prior.most_probable(z))

        return self.likelihood.mean(self._evaluating(decoded, x))

    def _evaluating(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`function` with the layers in evaluation mode: posterior means."""
        training = self.training
        self.eval()
        try:
            return function(x)
        finally:
            self.train(training)


def mirrored(
    input_shape: tuple[int, ...],
    layers: Layers,
    latent: int,
    hidden: tuple[int, ...],
    channels: tuple[int, ...],
    sizes: list[tuple[int, ...]],
) -> nn.Sequential:
    """The encoder's mirror image; `sizes` are the shapes before each convolution and after the last."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    width = latent
    for i, size in enumerate(reversed(hidden)):
        parts[f"dense{i}"], parts[f"dense{i}_act"] = layers.dense(width, size), nn.LeakyReLU()
        width = size
    if not channels:
        parts["head"] = layers.dense(width, math.prod(input_shape))
        return nn.Sequential(parts)
    parts["spread"], parts["spread_act"] = layers.dense(width, math.prod(sizes[-1])), nn.LeakyReLU()
    parts["unflatten"] = nn.Unflatten(1, sizes[-1])
    for i, (small, large) in enumerate(zip(sizes[:0:-1], sizes[-2::-1], strict=True)):
        # a transposed convolution makes 2 n - 1 of n, and as many more as `output_padding` says
        padding = (large[1] - 2 * small[1] + 1, large[2] - 2 * small[2] + 1)
        parts[f"conv{i}"] = layers.transposed(small[0], large[0], padding)
        if i < len(channels) - 1:
            parts[f"conv{i}_act"] = nn.LeakyReLU()
    return nn.Sequential(parts)
