"""Everyday training of models of text and other sequences."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import CHARS, ENCODED, SequenceClassifier, TinyGPT, chars, melodies
from tests.diagnostics.corpus.register import ordinary


def gpt_initialization(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


@ordinary
def gpt_with_warmup_and_cosine() -> Setup:
    model = TinyGPT()
    gpt_initialization(model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )

    def rate(step: int) -> float:
        return (step + 1) / 6 if step < 6 else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 6) / 20))

    schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate)

    def run() -> None:
        for _ in range(25):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()

    return model, run


@ordinary
def gpt_with_tied_embeddings() -> Setup:
    model = TinyGPT()
    gpt_initialization(model)
    model.lm_head.weight = model.wte.weight
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = chars()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def gpt_after_two_hundred_steps_with_sampling() -> Setup:
    """Training goes on after 200 steps, with a validation and a sample between."""
    model = TinyGPT(dim=24, depth=1)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step() -> None:
        x, y = chars(6, 16)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()

    for _ in range(200):
        step()

    def run() -> None:
        for _ in range(2):
            for _ in range(5):
                step()
            model.eval()
            with torch.no_grad():
                x, y = chars()
                F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                text = x[:1, :8]
                for _ in range(6):
                    text = torch.cat([text, model(text)[:, -1:].softmax(-1).argmax(-1)], 1)
            model.train()

    return model, run


@ordinary
def gpt_with_gradient_accumulation() -> Setup:
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        opt.zero_grad()
        for _ in range(8):
            for _ in range(3):
                x, y = chars(6, 20)
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 3
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()

    return model, run


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Any) -> Any:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class LlamaLayer(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.input_layernorm = RMSNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.post_attention_layernorm = RMSNorm(dim)
        self.gate_proj = nn.Linear(dim, 64, bias=False)
        self.up_proj = nn.Linear(dim, 64, bias=False)
        self.down_proj = nn.Linear(64, dim, bias=False)

    def rotate(self, x: Any) -> Any:
        half = self.head_dim // 2
        angles = torch.arange(x.shape[2])[:, None] * 100.0 ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        h = self.input_layernorm(x)
        q = self.rotate(self.q_proj(h).view(b, t, self.heads, -1).transpose(1, 2))
        k = self.rotate(self.k_proj(h).view(b, t, self.kv_heads, -1).transpose(1, 2))
        v = self.v_proj(h).view(b, t, self.kv_heads, -1).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class TinyLlama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(len(CHARS), 32)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(3))
        self.norm = RMSNorm(32)
        self.lm_head = nn.Linear(32, len(CHARS), bias=False)
        gpt_initialization(self)

    def forward(self, ids: Any) -> Any:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


@ordinary
def llama_with_rotary_positions() -> Setup:
    model = TinyLlama()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def run() -> None:
        for _ in range(12):
            x, y = chars()
            loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

    return model, run


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), 16)
        self.lstm = nn.LSTM(16, 32, num_layers=2, dropout=0.1, batch_first=True)
        self.dec = nn.Linear(32, len(CHARS))

    def forward(self, x: Any, state: Any = None) -> Any:
        h, state = self.lstm(self.emb(x), state)
        return self.dec(h), state


@ordinary
def lstm_with_truncated_backpropagation() -> Setup:
    """The state is carried from piece to piece of a text, and detached between."""
    model = CharLSTM()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        rows = ENCODED[: 8 * (len(ENCODED) // 8)].view(8, -1)
        state = None
        for start in range(0, 72, 6):
            x, y = rows[:, start : start + 6], rows[:, start + 1 : start + 7]
            logits, state = model(x, state)
            state = tuple(s.detach() for s in state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

    return model, run


@ordinary
def gru_classifier_in_epochs() -> Setup:
    model = SequenceClassifier(nn.GRU)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        loader = DataLoader(TensorDataset(*melodies(160)), batch_size=16, shuffle=True)
        for _ in range(3):
            for x, y in loader:
                opt.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                opt.step()

    return model, run


class PackedTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12, padding_idx=0)
        self.bilstm = nn.LSTM(12, 16, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(32, 2)

    def forward(self, tokens: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.bilstm(packed)
        return self.classifier(torch.cat([h[0], h[1]], 1))


@ordinary
def packed_sequences() -> Setup:
    model = PackedTagger()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)

    def run() -> None:
        for _ in range(25):
            lengths = torch.randint(3, 9, (32,))
            tokens = torch.randint(1, 20, (32, 9)) * (torch.arange(9) < lengths[:, None])
            labels = (tokens[:, 0] > 10).long()
            loss = F.cross_entropy(model(tokens, lengths), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Translator(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(12, dim)
        self.tgt_embed = nn.Embedding(12, dim)
        self.pos = nn.Parameter(0.2 * torch.randn(10, dim))
        self.transformer = nn.Transformer(dim, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(dim, 12)

    def forward(self, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        src = self.src_embed(source) + self.pos[: source.shape[1]]
        tgt = self.tgt_embed(target) + self.pos[: target.shape[1]]
        return self.generator(self.transformer(src, tgt, tgt_mask=mask, tgt_is_causal=True))


@ordinary
def translation_to_reversed_sequences() -> Setup:
    model = Translator()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(25):
            source = torch.randint(1, 12, (24, 7))
            target = source.flip(1)
            shifted = torch.cat([torch.zeros(24, 1, dtype=torch.long), target[:, :-1]], 1)
            loss = F.cross_entropy(model(source, shifted).flatten(0, 1), target.flatten(), label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class FrameRecognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 24, 3, padding=1)
        self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.fc(self.rnn(x)[0]).log_softmax(2)


@ordinary
def ctc_speech() -> Setup:
    model = FrameRecognizer()
    ctc = nn.CTCLoss(zero_infinity=True)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            symbols = torch.stack([torch.randperm(4)[:3] + 1 for _ in range(16)])
            frames = F.one_hot(symbols.repeat_interleave(4, 1), 5) + 0.1 * torch.randn(16, 12, 5)
            log_p = model(frames).transpose(0, 1)
            loss = ctc(log_p, symbols, torch.full((16,), 12), torch.full((16,), 3))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class MaskedTextEncoder(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(len(CHARS) + 1, dim)
        self.position_embeddings = nn.Embedding(24, dim)
        self.LayerNorm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, F.gelu, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mlm = nn.Linear(dim, len(CHARS))

    def forward(self, x: Any) -> Any:
        h = self.word_embeddings(x) + self.position_embeddings(torch.arange(x.shape[1]))
        return self.mlm(self.encoder(self.LayerNorm(h)))


@ordinary
def masked_language_model() -> Setup:
    model = MaskedTextEncoder()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, (step + 1) / 8))

    def run() -> None:
        for _ in range(25):
            x, _ = chars(16)
            masked = torch.rand(x.shape) < 0.3
            labels = x.masked_fill(~masked, -100)
            logits = model(x.masked_fill(masked, len(CHARS)))
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            opt.zero_grad()
            loss.backward()
            opt.step()
            warmup.step()

    return model, run


@ordinary
def instruction_tuning_with_masked_prompts() -> Setup:
    """Targets of the prompt are -100; the answer repeats the first characters of the prompt."""
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(15):
            x, _ = chars(16, 12)
            text = torch.cat([x, x[:, :6]], 1)
            labels = text[:, 1:].clone()
            labels[:, :11] = -100
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class BagOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(200, 16, mode="mean", sparse=True)
        self.linear = nn.Linear(16, 2)

    def forward(self, words: Any) -> Any:
        return self.linear(self.bag(words))


@ordinary
def sparse_embeddings() -> Setup:
    """A sparse EmbeddingBag with SparseAdam, and the rest with Adam."""
    model = BagOfWords()
    sparse = torch.optim.SparseAdam(list(model.bag.parameters()), lr=0.05)
    dense_opt = torch.optim.Adam(model.linear.parameters(), lr=0.02)

    def run() -> None:
        for _ in range(25):
            labels = torch.randint(2, (32,))
            words = torch.randint(0, 100, (32, 10)) + 60 * labels[:, None]
            loss = F.cross_entropy(model(words), labels)
            sparse.zero_grad()
            dense_opt.zero_grad()
            loss.backward()
            sparse.step()
            dense_opt.step()

    return model, run


class TemporalBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))

    def forward(self, x: Any) -> Any:
        return x + F.relu(self.conv(F.pad(x, (self.pad, 0))))


class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARS), 24)
        self.blocks = nn.Sequential(*(TemporalBlock(24, d) for d in (1, 2, 4)))
        self.logits = nn.Conv1d(24, len(CHARS), 1)

    def forward(self, x: Any) -> Any:
        return self.logits(self.blocks(self.embedding(x).transpose(1, 2)))


@ordinary
def causal_convolutions_with_weight_norm() -> Setup:
    model = TCN()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            x, y = chars()
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.linear = nn.Linear(24, 1)

    def forward(self, x: Any) -> Any:
        return self.linear(self.lstm(x)[0][:, -1]).squeeze(-1)


@ordinary
def forecast_of_a_series() -> Setup:
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=4)

    def run() -> None:
        for _ in range(25):
            t = 6 * torch.rand(32, 1) + 0.4 * torch.arange(13)
            series = torch.sin(t) + 0.05 * torch.randn(32, 13)
            loss = F.mse_loss(model(series[:, :-1, None]), series[:, -1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            plateau.step(loss.item())

    return model, run


@ordinary
def gpt2_of_transformers() -> Setup:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(CHARS), n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        model.train()
        for _ in range(12):
            x, _ = chars()
            loss = model(input_ids=x, labels=x).loss
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


@ordinary
def lstm_with_tiny_batches() -> Setup:
    """Batches of two sequences, as memory allows."""
    model = CharLSTM()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            x, y = chars(2, 20)
            logits, _ = model(x)
            loss = F.cross_entropy(logits.transpose(1, 2), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()

    return model, run


class AttentionPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 16)
        self.query = nn.Parameter(0.3 * torch.randn(16))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        position = torch.linspace(-1, 1, x.shape[1])[None, :, None]
        h = torch.tanh(self.inp(x * torch.cat([position, 0 * position + 1, position], 2)))
        return self.out((torch.softmax(h @ self.query, 1)[..., None] * h).sum(1))


@ordinary
def attention_pooling_over_steps() -> Setup:
    model = AttentionPooling()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)

    def run() -> None:
        for _ in range(25):
            x, y = melodies(32)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run
