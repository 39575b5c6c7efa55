"""A pipeline of four entry points in plain torch, as libraries for diffusion have them."""

from __future__ import annotations

import torch
from torch import nn


class TextEncoder(nn.Module):
    """Ids of shape (batch, tokens) -> states of shape (batch, tokens, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(self.embedding(input_ids)))


class Denoiser(nn.Module):
    """Latents of shape (batch, 4, height, width), a timestep and states -> noise of the shape of the latents."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.context = nn.Linear(8, 4)

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        context = self.context(states.mean(1))[:, :, None, None]
        return self.inner(sample) + context + timestep.to(sample.dtype) / 10


class Autoencoder(nn.Module):
    """Images of shape (batch, 3, 2 * height, 2 * width) <-> latents of shape (batch, 4, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 2, stride=2)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(x)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.up(z))


class Pipeline:
    """Text to image: no module itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.text_encoder = TextEncoder().eval()
        self.unet = Denoiser().eval()
        self.vae = Autoencoder().eval()

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, size: int = 3, steps: int = 2) -> torch.Tensor:
        states = self.text_encoder(input_ids)
        latents = torch.linspace(-1, 1, len(input_ids) * 4 * size * size).reshape(-1, 4, size, size)
        for step in range(steps):
            latents = latents - 0.1 * self.unet(latents, torch.tensor(step), states)
        return self.vae.decode(latents)

    def use(self) -> None:
        """Two calls of other sizes."""
        self(torch.arange(10).reshape(2, 5))
        self(torch.arange(12).reshape(3, 4), size=4)
