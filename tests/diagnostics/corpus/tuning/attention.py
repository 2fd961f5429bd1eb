"""Sequence models that look where they should not, or nowhere."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Run, Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import LETTERS, counting, text, waves

VOCAB = 12


def language_modeling(model: nn.Module, steps: int = 12, lr: float = 3e-3) -> Run:
    """The loop of a small language model on counting sequences."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def run() -> None:
        model.train()
        for _ in range(steps):
            ids = counting(16)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


class TransformerLM(nn.Module):
    def __init__(self, masked: bool = False, d_model: int = 32) -> None:
        super().__init__()
        self.masked = masked
        self.embedding = nn.Embedding(VOCAB, d_model)
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, 12, d_model))
        layer = nn.TransformerEncoderLayer(d_model, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, VOCAB)

    def forward(self, src: Tensor) -> Any:
        x = self.embedding(src) + self.pos_embedding[:, : src.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(src.shape[1]) if self.masked else None
        return self.decoder(self.transformer_encoder(x, mask=mask))


@planted(
    "looks at the future",
    "",
    "transformer_encoder",
    "transformer_encoder.layers.0",
    "transformer_encoder.layers.0.self_attn",
)
def encoder_without_causal_mask() -> Setup:
    """A language model of nn.TransformerEncoder, to which nobody passes a mask (forum)."""
    model = TransformerLM()
    return model, language_modeling(model)


class GPTBlock(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class MiniGPT(nn.Module):
    def __init__(self, layers: int = 2, dim: int = 32, inverted: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, dim), nn.Embedding(16, dim)
        self.h = nn.ModuleList(GPTBlock(dim) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB, bias=False)
        self.inverted = inverted

    def forward(self, ids: Tensor) -> Any:
        t = ids.shape[1]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        mask = ~future if self.inverted else future
        x = self.wte(ids) + self.wpe(torch.arange(t))
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))


@planted("attention mask is wrong", "", *(f"h.{i}{part}" for i in range(2) for part in ("", ".attn")))
def boolean_mask_inverted() -> Setup:
    """nn.MultiheadAttention takes True for "not allowed", the mask has True for "allowed" (forum)."""
    model = MiniGPT(inverted=True)
    return model, language_modeling(model)


class SelfAttention(nn.Module):
    """Hand-written attention of one or more heads, with the mistakes that people make in it."""

    def __init__(
        self, dim: int, heads: int = 2, fill: float = float("-inf"), axis: int = -1, scale: bool = True, offset: int = 1
    ) -> None:
        super().__init__()
        self.heads, self.fill, self.axis, self.scale, self.offset = heads, fill, axis, scale, offset
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        att = q @ k.transpose(-2, -1)
        if self.scale:
            att = att / math.sqrt(q.shape[-1])
        att = att.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(self.offset), self.fill)
        att = att.softmax(self.axis)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class NanoBlock(nn.Module):
    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.sa = attention
        self.ffwd = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Any:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class Nano(nn.Module):
    def __init__(self, *attentions: nn.Module, dim: int = 32, vocab: int = VOCAB, positions: int = 16) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(positions, dim)
        self.blocks = nn.Sequential(*(NanoBlock(dim, attention) for attention in attentions))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Any:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


@planted("attention mask is wrong", "", *(f"blocks.{i}.sa" for i in range(2)), "blocks.0", "blocks.1")
def masked_with_minus_1e_minus_9() -> Setup:
    """Masked scores get -1e-9, which is about 0, where -1e9 was meant (forum)."""
    model = Nano(SelfAttention(32, fill=-1e-9), SelfAttention(32, fill=-1e-9))
    return model, language_modeling(model)


@planted("softmax over the wrong axis", "", *(f"blocks.{i}.sa" for i in range(2)), "blocks.0", "blocks.1")
def softmax_over_the_queries() -> Setup:
    """The softmax of the scores runs over dim -2, the queries, which also lets the future in (forum)."""
    model = Nano(SelfAttention(32, axis=-2), SelfAttention(32, axis=-2))
    return model, language_modeling(model)


@planted("scores are not scaled", "", *(f"blocks.{i}.sa" for i in range(2)), "blocks.0", "blocks.1")
def scores_without_square_root() -> Setup:
    """The scores are not divided by sqrt(d) (forum: attention scaling), with one head of 96 units."""
    model = Nano(
        SelfAttention(96, heads=1, scale=False), SelfAttention(96, heads=1, scale=False), dim=96, vocab=LETTERS
    )
    for block in model.blocks:
        nn.init.xavier_uniform_(block.sa.qkv.weight, gain=1.7)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            x, y = text(8)
            optimizer.zero_grad()
            F.cross_entropy(model(x).transpose(1, 2), y).backward()
            optimizer.step()

    return model, run


class ConvBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return x + self.relu(self.conv(x))


class TCN(nn.Module):
    """Temporal convolutions for the next value of a series, with padding on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Conv1d(1, 16, 1)
        self.net = nn.Sequential(*(ConvBlock(16, 2**i) for i in range(3)))
        self.out = nn.Conv1d(16, VOCAB, 1)
        self.emb = nn.Embedding(VOCAB, 1)

    def forward(self, ids: Tensor) -> Any:
        x = self.emb(ids).transpose(1, 2)
        return self.out(self.net(self.inp(x))).transpose(1, 2)


@planted("looks at the future", "", *(f"net.{i}{part}" for i in range(3) for part in ("", ".conv")), "net")
def tcn_padded_on_both_sides() -> Setup:
    """The convolutions of an autoregressive TCN pad symmetrically and so see the next tokens (forum)."""
    model = TCN()
    return model, language_modeling(model, 15, 0.01)


class BiLSTMLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=1, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, VOCAB)

    def forward(self, x: Tensor) -> Any:
        out, _ = self.lstm(self.embedding(x))
        return self.fc(out)


@planted("looks at the future", "", "lstm")
def bidirectional_lstm_predicts_the_next_character() -> Setup:
    """bidirectional=True in a model of the next token: the backward direction has seen it (forum)."""
    model = BiLSTMLM()
    return model, language_modeling(model, 15, 0.01)


class NormOverTime(nn.Module):
    """Normalizes over the whole sequence."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + self.gru(y)[0]


@planted("looks at the future", "", *(f"rnn.{i}{part}" for i in range(2) for part in ("", ".norm")), hard=True)
def group_norm_over_time() -> Setup:
    """GroupNorm normalizes channels and time steps together, so statistics carry the future (forum)."""
    model = nn.Sequential()
    model.add_module("embed", nn.Embedding(VOCAB, 24))
    model.add_module("rnn", nn.Sequential(NormOverTime(24), NormOverTime(24)))
    model.add_module("out", nn.Linear(24, VOCAB))
    return model, language_modeling(model, 12, 5e-3)


class SetOfTokens(nn.Module):
    """Positions are computed but the sum with the embeddings is thrown away."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, dim)
        position = torch.arange(16).float()[:, None]
        angle = position / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("pe", torch.stack((angle.sin(), angle.cos()), -1).flatten(1))
        self.position_embedding = nn.Embedding(16, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.fc = nn.Linear(dim, 2)

    def forward(self, ids: Tensor) -> Any:
        x = self.token_embedding(ids)
        x + self.position_embedding(torch.zeros_like(ids))  # the mistake
        return self.fc(self.encoder(x).mean(1))


@planted("positions change nothing", "", "position_embedding", "encoder")
def sum_with_positions_is_thrown_away() -> Setup:
    """`x + pos` instead of `x = x + pos`: whether a sequence rises or falls cannot be learned (forum)."""
    model = SetOfTokens()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(15):
            ids = counting(32, 8)
            labels = torch.randint(2, (32,))
            ids = torch.where(labels[:, None] == 1, ids, ids.flip(1))
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels).backward()
            optimizer.step()

    return model, run


@planted("attention differs from its peers", "blocks.2.sa", "blocks.2", "", hard=True)
def mask_of_one_layer_off_by_one() -> Setup:
    """One of four layers masks from the second diagonal on, so each token sees the next one (own variation)."""
    model = Nano(*(SelfAttention(32, offset=2 if i == 2 else 1) for i in range(4)))
    return model, language_modeling(model)


class DecoderAttention(nn.Module):
    """SDPA as in many repositories, with a mask instead of is_causal."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, 4, c // 4).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        mask = torch.ones(t, t).tril()  # a float mask is added to the scores
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


@planted("attention mask is wrong", "", *(f"blocks.{i}.sa" for i in range(2)), "blocks.0", "blocks.1")
def tril_of_floats_is_added() -> Setup:
    """scaled_dot_product_attention gets a mask of floats 0 and 1, which it adds, instead of booleans (forum)."""
    model = Nano(DecoderAttention(32), DecoderAttention(32))
    return model, language_modeling(model, 10)


class Regressor(nn.Module):
    """Attends over a series with keys that are far too large."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(1, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 1)
        self.pos = nn.Parameter(torch.randn(20, 32))

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x) + self.pos
        h = self.norm(h + self.attention(20 * h, 20 * h, h)[0])
        return self.out(h.mean(1)).squeeze(1)


@planted("attention collapsed or uniform", "", "attention")
def queries_multiplied_by_twenty() -> Setup:
    """Embeddings multiplied by a large sqrt(d) twice reach the scores, and each query picks one key (own variation)."""
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = waves(16)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    return model, run
