"""Small models of plain torch modules, with what makes their kind hard to export: durations that
decide the length of a voice, a decoder that reads what it wrote, an LSTM over any length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class PiperLike(nn.Module):
    """Phonemes -> a voice: an encoder, durations, a path, a coupling flow and a decoder of sound."""

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.project = nn.Conv1d(width, 2 * width, 1)
        self.durations = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, 1, 1)
        )
        self.flows = nn.ModuleList(
            nn.Conv1d(width // 2, width // 2, 5, padding=2) for _ in range(2)
        )
        self.decoder = SoundDecoder(width)

    def forward(self, input: Tensor, input_lengths: Tensor, scales: Tensor) -> Tensor:
        places = torch.arange(input.shape[1], device=input.device)
        mask = (places[None] < input_lengths[:, None]).unsqueeze(1).to(torch.float32)
        hidden = self.encoder(self.embed(input), src_key_padding_mask=mask[:, 0] == 0)
        hidden = hidden.transpose(1, 2) * mask
        mean, log_scale = self.project(hidden).chunk(2, dim=1)
        frames = torch.ceil(torch.exp(self.durations(hidden)) * mask * scales[1])
        lengths = torch.clamp_min(frames.sum((1, 2)), 1).long()
        sound_places = torch.arange(lengths.max(), device=input.device)
        sound_mask = (sound_places[None] < lengths[:, None]).unsqueeze(1).to(torch.float32)
        path = _path(frames, sound_places) * sound_mask.transpose(1, 2)
        mean = (path @ mean.transpose(1, 2)).transpose(1, 2)
        log_scale = (path @ log_scale.transpose(1, 2)).transpose(1, 2)
        latent = mean + torch.randn_like(mean) * torch.exp(log_scale) * scales[0]
        for flow in self.flows:
            first, second = latent.chunk(2, dim=1)
            latent = torch.cat([second - flow(first), first], dim=1) * sound_mask
        return self.decoder(latent * sound_mask)


def _path(frames: Tensor, places: Tensor) -> Tensor:
    """1 where a frame of the sound belongs to a phoneme: (batch, sound, phonemes)."""
    ends = frames.cumsum(-1)
    starts = ends - frames
    place = places[None, :, None]
    return ((place >= starts) & (place < ends)).to(torch.float32)


class SoundDecoder(nn.Module):
    """Frames -> samples, 16 for each frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose1d(width, width // 2, 8, 4, 2),
                nn.ConvTranspose1d(width // 2, width // 4, 8, 4, 2),
            ]
        )
        self.mix = nn.ModuleList(
            [
                nn.Conv1d(width // 2, width // 2, 3, padding=1),
                nn.Conv1d(width // 4, width // 4, 3, padding=1),
            ]
        )
        self.last = nn.Conv1d(width // 4, 1, 7, padding=3)

    def forward(self, frames: Tensor) -> Tensor:
        for up, mix in zip(self.up, self.mix, strict=True):
            frames = up(functional.leaky_relu(frames, 0.1))
            frames = frames + mix(functional.leaky_relu(frames, 0.1))
        return torch.tanh(self.last(functional.leaky_relu(frames)))


class StyledVoice(nn.Module):
    """Tokens and a style -> a voice: durations of an LSTM, a repeated text, and layers that the style scales."""

    def __init__(self, vocabulary: int, width: int = 16, style: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.timing = nn.LSTM(width + style, width // 2, batch_first=True, bidirectional=True)
        self.durations = nn.Linear(width, 10)
        self.text = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.styled = nn.ModuleList(StyledConv(width, style) for _ in range(2))
        self.decoder = SoundDecoder(width)

    def forward(self, input_ids: Tensor, style: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        of_timing, of_sound = style.chunk(2, dim=1)
        hidden = self.encoder(self.embed(input_ids))
        styles = of_timing.unsqueeze(1).expand(-1, hidden.shape[1], -1)
        timed, _ = self.timing(torch.cat([hidden, styles], dim=-1))
        wanted = torch.sigmoid(self.durations(timed)).sum(-1) / speed
        frames = torch.round(wanted).clamp(min=1).long()[0]
        places = torch.repeat_interleave(
            torch.arange(input_ids.shape[1], device=frames.device), frames
        )
        text, _ = self.text(hidden)
        sound = text[:, places].transpose(1, 2)
        for layer in self.styled:
            sound = layer(sound, of_sound)
        return self.decoder(sound).squeeze(1), frames


class StyledConv(nn.Module):
    """A convolution whose normalised input is scaled and moved by a style."""

    def __init__(self, width: int, style: int) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(width)
        self.style = nn.Linear(style, 2 * width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, sound: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.style(style).unsqueeze(-1).chunk(2, dim=1)
        return sound + self.conv(functional.leaky_relu((1 + scale) * self.norm(sound) + shift, 0.2))


class TextRecognizer(nn.Module):
    """Images of a word -> scores of its letters: a decoder writes letter after letter, and reads them."""

    def __init__(self, letters: int, width: int = 32, steps: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, (4, 8), (4, 8))
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 48, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.letters = nn.Embedding(letters, width)
        self.queries = nn.Parameter(torch.randn(1, steps, width))
        self.of_written = nn.MultiheadAttention(width, 2, batch_first=True)
        self.of_image = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, letters)
        self.steps = steps

    def forward(self, images: Tensor) -> Tensor:
        memory = self.encoder(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        batch = images.shape[0]
        queries = self.queries.expand(batch, -1, -1)
        written = torch.zeros(batch, self.steps, dtype=torch.long, device=images.device)
        mask = torch.triu(
            torch.full((self.steps, self.steps), float("-inf"), device=images.device), 1
        )
        scores = []
        for step in range(self.steps):
            now = step + 1
            read = self.letters(written[:, :now])
            query = queries[:, step:now]
            query = query + self.of_written(query, read, read, attn_mask=mask[step:now, :now])[0]
            query = query + self.of_image(query, memory, memory)[0]
            scores.append(self.head(query))
            if now < self.steps:
                written[:, now] = scores[-1].squeeze(1).argmax(-1)
        return torch.cat(scores, dim=1)


class FTTransformer(nn.Module):
    """Columns of a table -> two scores: each column is a token."""

    def __init__(self, numbers: int, categories: Sequence[int], width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width))
        self.bias = nn.Parameter(torch.randn(numbers, width))
        self.embed = nn.Embedding(sum(categories), width)
        starts = torch.tensor([sum(categories[:place]) for place in range(len(categories))])
        self.register_buffer("starts", starts)
        self.first = nn.Parameter(torch.randn(width))
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        tokens = [
            self.first.expand(len(numbers), 1, -1),
            self.weight[None] * numbers[..., None] + self.bias[None],
            self.embed(categories + self.starts),
        ]
        return self.head(self.encoder(torch.cat(tokens, dim=1))[:, 0])


class Tagger(nn.Module):
    """Words -> a score of each tag: dilated convolutions, then an LSTM of both directions."""

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**n) for n in range(2))
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words).transpose(1, 2)
        for number, conv in enumerate(self.convs):
            past = functional.pad(hidden, (2 * 2**number, 0))
            hidden = hidden + functional.relu(conv(past))
        read, _ = self.lstm(hidden.transpose(1, 2))
        return self.head(read)
