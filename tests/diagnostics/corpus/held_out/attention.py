"""Attention and other sequence models: looking ahead, wrong masks, wrong softmax, lost positions."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import CHARS, CausalAttention, GPTBlock, TinyGPT, chars, stripes
from tests.diagnostics.corpus.register import planted


class CharTransformer(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), dim)
        self.pos = nn.Parameter(0.1 * torch.randn(1, 24, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, len(CHARS))

    def forward(self, tokens: Any) -> Any:
        return self.head(self.encoder(self.embed(tokens) + self.pos[:, : tokens.shape[1]]))


@planted("looks at the future", "", "encoder", "encoder.layers.0", "encoder.layers.0.self_attn")
def encoder_without_mask() -> Setup:
    """A language model made of nn.TransformerEncoder, without a causal mask (forum)."""
    model = CharTransformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        model.train()
        for _ in range(12):
            x, y = chars()
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, len(CHARS)), y.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


class SDPAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        diagonal_and_above = torch.ones(t, t, dtype=torch.bool).triu()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=diagonal_and_above)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


@planted(
    "attention mask is wrong", "h.0", "h.0.attn", "h.1", "h.1.attn", "h.0.attn.scaled_dot_product_attention", "h.0.ln_1"
)
def boolean_mask_means_the_opposite() -> Setup:
    """True means "take part" in scaled_dot_product_attention, not "masked" as in nn.MultiheadAttention (forum)."""
    model = TinyGPT()
    for block in model.h:
        assert isinstance(block, GPTBlock)
        block.attn = SDPAttention(32, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(10):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()

    return model, run


class MaskedSelfAttention(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x: Any) -> Any:
        t = x.shape[1]
        mask: Any = self.tril
        weights = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        weights = weights.masked_fill(mask[:t, :t] == 0, -1e-9)
        return weights.softmax(-1) @ self.value(x)


class OneBlockLM(nn.Module):
    def __init__(self, attention: nn.Module, dim: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(CHARS), dim)
        self.positions = nn.Embedding(32, dim)
        self.norm = nn.LayerNorm(dim)
        self.attention = attention
        self.ffn = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.to_logits = nn.Linear(dim, len(CHARS))

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        h = h + self.attention(self.norm(h))
        h = h + self.ffn(h)
        return self.to_logits(h)


@planted("attention mask is wrong", "attention", "attention.softmax")
def mask_of_nearly_zero() -> Setup:
    """masked_fill with -1e-9 instead of -1e9: nothing is masked (forum)."""
    model = OneBlockLM(MaskedSelfAttention())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    lossf = nn.CrossEntropyLoss()

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(chars(4)[0])
        model.train()
        for _ in range(12):
            x, y = chars()
            loss = lossf(model(x).permute(0, 2, 1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class HeadwiseAttention(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.softmax = nn.Softmax(dim=1)
        self.merge = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.h, self.d).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        attention = self.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * self.d**-0.5)
        return self.merge(torch.einsum("bhij,bhjd->bhid", attention, v).transpose(1, 2).flatten(2))


class PatchClassifier(nn.Module):
    """A small vision transformer."""

    def __init__(self, attention: Any, dim: int = 32) -> None:
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, 4, stride=4)
        self.pos_embed = nn.Parameter(torch.zeros(1, 9, dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Any) -> Any:
        x = self.patchify(x).flatten(2).transpose(1, 2)
        x = x + self.pos_embed
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


@planted("softmax over the wrong axis", "attn", "attn.softmax")
def softmax_over_heads() -> Setup:
    """Softmax over dim=1, the heads, of scores of shape (batch, heads, queries, keys) (forum)."""
    model = PatchClassifier(HeadwiseAttention)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(12):
            x, y = stripes()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class WideHeadAttention(CausalAttention):
    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, 2))
        att = torch.matmul(q, k.transpose(2, 3))
        att = att + torch.full((t, t), float("-inf")).triu(1)
        att = F.softmax(att, dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).reshape(b, t, c))


@planted("scores are not scaled", "h.0.attn", "h.1.attn", "h.0.attn.softmax", "h.1.attn.softmax")
def forgotten_square_root() -> Setup:
    """Scores of heads of width 64 are not divided by 8, with orthogonal projections (forum)."""
    model = TinyGPT(dim=128, heads=2)
    for block in model.h:
        assert isinstance(block, GPTBlock)
        block.attn = WideHeadAttention(128, 2)
        for rows in block.attn.c_attn.weight.chunk(3):
            nn.init.orthogonal_(rows)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)

    def run() -> None:
        for _ in range(8):
            x, y = chars(8, 20)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class TagModel(nn.Module):
    """Marks each token with its position modulo three, which only positions can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(12, 24)
        self.position = nn.Embedding(20, 24)
        self.layer1 = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True)
        self.layer2 = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True)
        self.tag = nn.Linear(24, 3)

    def forward(self, words: Any) -> Any:
        ids = torch.zeros_like(words)
        x = self.word(words) + self.position(ids)
        return self.tag(self.layer2(self.layer1(x)))


@planted("positions change nothing", "position", "")
def position_ids_all_zero() -> Setup:
    """position_ids are zeros_like(input_ids), so every place gets the same embedding (forum)."""
    model = TagModel()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(15):
            words = torch.randint(12, (16, 15))
            tags = (torch.arange(15) % 3).expand(16, -1)
            loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class CausalConvNet(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), dim)
        self.conv_in = nn.Conv1d(dim, dim, 3)
        self.conv_mid = nn.Conv1d(dim, dim, 3, dilation=2, padding=2)
        self.conv_out = nn.Conv1d(dim, len(CHARS), 1)

    def forward(self, tokens: Any) -> Any:
        x = self.emb(tokens).transpose(1, 2)
        x = F.relu(self.conv_in(F.pad(x, (2, 0))))
        x = F.relu(self.conv_mid(x)) + x
        return self.conv_out(x)


@planted("looks at the future", "conv_mid", "")
def dilated_convolution_padded_on_both_sides() -> Setup:
    """One layer of a WaveNet-like model has padding=2 on both sides, so it sees two steps ahead (forum)."""
    model = CausalConvNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = chars()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class LSTMTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARS), 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.decoder = nn.Linear(48, len(CHARS))

    def forward(self, x: Any) -> Any:
        h, _ = self.lstm(self.embedding(x))
        return self.decoder(h)


@planted("looks at the future", "lstm", "")
def bidirectional_language_model() -> Setup:
    """A language model made of a bidirectional LSTM: the backward half reads the answer (forum)."""
    model = LSTMTagger()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(12):
            x, y = chars()
            logits = model(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()

    return model, run


class UnmaskedAttention(CausalAttention):
    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=not self.training)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


@planted("attention differs from its peers", "h.2", "h.2.attn", "", hard=True)
def one_layer_is_causal_only_in_eval() -> Setup:
    """The third of four layers was swapped for a variant whose mask is missing in training."""
    model = TinyGPT(depth=4)
    third: Any = model.h[2]
    third.attn = UnmaskedAttention(32, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(8):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MeanContextLM(nn.Module):
    """Subtracts the mean over time before it reads the sequence with a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), 24)
        self.norm = nn.InstanceNorm1d(24, affine=True)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, len(CHARS))

    def forward(self, x: Any) -> Any:
        x = self.norm(self.embed(x).transpose(1, 2)).transpose(1, 2)
        return self.out(self.gru(x)[0])


@planted("looks at the future", "norm", "", hard=True)
def instance_norm_in_a_language_model() -> Setup:
    """nn.InstanceNorm1d takes its statistics over the whole sequence, future included."""
    model = MeanContextLM()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(10):
            x, y = chars()
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class SetEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(20, 24, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(12, 24))
        self.self_attn = nn.MultiheadAttention(24, 2, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.score = nn.Linear(24, 2)

    def forward(self, items: Any) -> Any:
        attention_mask = items != 0
        x = self.item(items) + self.place
        y, _ = self.self_attn(x, x, x, key_padding_mask=attention_mask)
        x = self.norm(x + y)
        return self.score(x[:, 0])


@planted("attention mask is wrong", "self_attn", "")
def padding_mask_with_ones_for_words() -> Setup:
    """key_padding_mask is True at the words, as a tokenizer's mask, so only padding is attended to (forum)."""
    model = SetEncoder()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            lengths = torch.randint(4, 11, (32, 1))
            items = torch.randint(1, 20, (32, 12)) * (torch.arange(12) < lengths)
            labels = (items[:, 1] > 10).long()
            loss = F.cross_entropy(model(items), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
