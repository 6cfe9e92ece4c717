"""A variational autoencoder that infers which component of its latent mixture an input belongs to."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.generative.latent import LatentPrior, gaussian_divergence
from hvcl.generative.layers import Layers
from hvcl.generative.likelihoods import LikelihoodName, make_likelihood
from hvcl.generative.vae import mirrored
from hvcl.networks import initialise, trunk


class MixtureVAE(nn.Module):
    r"""A VAE with a categorical latent variable y and a Gaussian one z, whose components are used one after another.

    .. math:: p(x) = \sum_k p(y{=}k) \int p(z|k)\, p(x|z)\, dz, \qquad q(y, z|x) = q(y|x)\, q(z|x, y)

    One encoder serves q(y|x), a softmax over the components in use, and the heads q(z|x, k), a Gaussian for each component; the
    components p(z|k) are those of a `LatentPrior`, and one decoder serves all. The parts of the evidence lower bound are

    .. math:: \log p(x) \ge \sum_k q(k|x) \big( E_k(x) - \log q(k|x) + \log p(k) \big), \qquad
              E_k(x) = E_{q(z|x,k)}[\log p(x|z)] - KL[q(z|x,k) \| p(z|k)] .

    Args:
        input_shape: of one example: (features,) or (channels, height, width).
        components: how many there is room for; `use` says which are in use.
        latent: dimensions of z.
        hidden: units of the dense layers of the encoder; the decoder has them in reverse.
        channels: channels of the encoder's convolutions, each of which halves the picture.
        likelihood: as in `MoVEVAE`.
    """

    used: Tensor
    """Which components are in use ``[components]``."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        components: int,
        *,
        latent: int,
        hidden: tuple[int, ...],
        channels: tuple[int, ...] = (),
        likelihood: LikelihoodName = "bce",
    ) -> None:
        super().__init__()
        self.input_shape, self.components = tuple(input_shape), components
        encoder, sizes, width = trunk(self.input_shape, hidden=hidden, channels=channels)
        self.encoder = nn.Sequential(encoder)
        self.classify = nn.Linear(width, components)
        self.heads = nn.Linear(width, components * 2 * latent)
        self.decoder = mirrored(self.input_shape, Layers(), latent, hidden, channels, sizes)
        self.likelihood = make_likelihood(likelihood, self.input_shape)
        if channels:
            for part in (*self.encoder, *self.decoder):
                initialise(part)
        self.prior = LatentPrior(latent, components)
        self.register_buffer("used", torch.zeros(components, dtype=torch.bool))

    @property
    def numbers(self) -> Tensor:
        """The numbers of the components in use, ascending."""
        return self.used.nonzero().flatten()

    @torch.no_grad()
    def use(self, component: int, like: int | None = None) -> None:
        """Take a component into use; as a copy of another one, if that is given: its head, its Gaussian, its part of q(y|x)."""
        self.used[component] = True
        if like is None:
            return
        heads = (part.view(self.components, -1) for part in (self.heads.weight, self.heads.bias))
        for values in (self.classify.weight, self.classify.bias, self.prior.mean, self.prior.log_variance, *heads):
            values[component] = values[like]

    def parts_of_components(self) -> list[nn.Parameter]:
        """What belongs to components: q(y|x), the heads, the Gaussians."""
        return [*self.classify.parameters(), *self.heads.parameters(), *self.prior.parameters()]

    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer of the encoder."""
        features: Tensor = self.encoder(x)
        return features

    def log_posterior(self, features: Tensor, allowed: Tensor | None = None) -> Tensor:
        """log q(y|x) ``[B, components]``, minus infinity for what is not in use, or not `allowed` ``[B, components]``."""
        outputs: Tensor = self.classify(features)
        return outputs.masked_fill(~(self.used if allowed is None else allowed), -torch.inf).log_softmax(1)

    def decode(self, z: Tensor) -> Tensor:
        """The decoder's outputs, in the shape of the inputs."""
        outputs: Tensor = self.decoder(z)
        return outputs.view(len(z), *self.input_shape)

    def latents(self, features: Tensor, component: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances of q(z|x, k), ``[B, C, latent]``, for components ``[B, C]``."""
        heads = self.heads(features).view(len(features), self.components, 2, -1)
        rows = torch.arange(len(features), device=features.device).unsqueeze(1)
        mean, log_variance = heads[rows, component].unbind(2)
        return mean, log_variance

    def evidence(self, features: Tensor, x: Tensor, component: Tensor) -> Tensor:
        """E_k(x) ``[B, C]`` for components k ``[B, C]`` of each example, with one draw of z each."""
        mean, log_variance = self.latents(features, component)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        outputs = self.decode(z.flatten(0, 1))
        reconstruction = self.likelihood.log_prob(outputs, x.repeat_interleave(component.shape[1], 0)).view(component.shape)
        prior = self.prior.mean[component], self.prior.log_variance[component]
        return reconstruction - gaussian_divergence(mean, log_variance, *prior)

    def bound(self, features: Tensor, x: Tensor, log_q: Tensor) -> Tensor:
        """The evidence lower bound of every example ``[B]``, with p(y) the same for all components in use."""
        numbers = self.numbers
        log_q = log_q[:, numbers]
        each = self.evidence(features, x, numbers.expand(len(x), -1)) - log_q - math.log(len(numbers))
        return (log_q.exp() * each).sum(1)

    @torch.no_grad()
    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Generated inputs, and the component of each, drawn in the proportions of the examples that each has had."""
        component = self.prior.choose(count)
        return self.likelihood.mean(self.decode(self.prior.draw(component))), component

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """What the decoder makes of the latent mean of each input, in its most probable component."""
        if not bool(self.used.any()):
            raise InputError("the mixture has no component in use yet: let it learn first")
        features = self.features(x)
        mean, _ = self.latents(features, self.log_posterior(features).argmax(1, keepdim=True))
        return self.likelihood.mean(self.decode(mean.squeeze(1)))
