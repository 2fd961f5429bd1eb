"""Healthy setups on sequences: language models, recurrent networks, sequence to sequence, CTC, matching of texts."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import ordinary
from tests.diagnostics.corpus.tuning._data import LETTERS, counting, loader, text, waves


class CausalSelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads = heads

    def forward(self, x: Tensor) -> Any:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = CausalSelfAttention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int = LETTERS, dim: int = 32, layers: int = 2, tie: bool = True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(32, dim)
        self.h = nn.ModuleList(Block(dim) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers))
        if tie:
            self.lm_head.weight = self.wte.weight

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Any, Any]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return logits, loss


@ordinary
def gpt_with_tied_weights_and_warmup() -> Setup:
    model = GPT()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )

    def run() -> None:
        for step in range(20):
            lr = 3e-3 * min(1.0, (step + 1) / 5)
            for group in optimizer.param_groups:
                group["lr"] = lr
            _, loss = model(*text(8))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, run


@ordinary
def gpt_untied_after_150_steps() -> Setup:
    model = GPT(tie=False, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def steps(count: int) -> None:
        for _ in range(count):
            _, loss = model(*text(4, 12))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    steps(150)

    def run() -> None:
        steps(8)

    return model, run


class CharLSTM(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 16)
        self.lstm = nn.LSTM(16, hidden, num_layers=2, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(hidden, LETTERS)

    def forward(self, x: Tensor, hidden: Any = None) -> Any:
        out, hidden = self.lstm(self.embedding(x), hidden)
        return self.fc(out), hidden


@ordinary
def lstm_with_truncated_backpropagation() -> Setup:
    """The state goes on from window to window, detached each time."""
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        x, y = text(8, 150)
        hidden = None
        for start in range(0, 150, 10):
            logits, hidden = model(x[:, start : start + 10], hidden)
            hidden = tuple(part.detach() for part in hidden)
            loss = F.cross_entropy(logits.transpose(1, 2), y[:, start : start + 10])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()

    return model, run


class GRUForecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.gru(x)[1][-1]).squeeze(-1)


@ordinary
def gru_forecasts_waves() -> Setup:
    model = GRUForecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    x, y = waves(160)
    x_val, y_val = waves(32)

    def run() -> None:
        for _ in range(2):
            model.train()
            for xb, yb in loader(x, y):
                optimizer.zero_grad()
                F.mse_loss(model(xb), yb).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                scheduler.step(F.mse_loss(model(x_val), y_val).item())

    return model, run


class CausalConv(nn.Module):
    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        self.left = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(c, c, 3, dilation=dilation))

    def forward(self, x: Tensor) -> Any:
        return x + F.relu(self.conv(F.pad(x, (self.left, 0))))


class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 24)
        self.layers = nn.Sequential(*(CausalConv(24, 2**i) for i in range(2)))
        self.head = nn.Conv1d(24, 12, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layers(self.emb(ids).transpose(1, 2)))


@ordinary
def causal_convolutions() -> Setup:
    model = TCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def run() -> None:
        for _ in range(15):
            ids = counting(16)
            loss = F.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 32, padding_idx=0)
        self.position = nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Any:
        pad = ids == 0
        x = self.embedding(ids) + self.position(torch.arange(ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=pad).masked_fill(pad[..., None], 0.0)
        return self.classifier(x.sum(1) / (~pad).sum(1, keepdim=True))


@ordinary
def transformer_classifies_padded_texts() -> Setup:
    model = TextClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def run() -> None:
        model.train()
        for _ in range(15):
            y = torch.randint(2, (24,))
            ids = torch.where(y[:, None] == 1, torch.randint(1, 9, (24, 12)), torch.randint(5, 13, (24, 12)))
            ids = ids.masked_fill(torch.arange(12) >= torch.randint(5, 13, (24, 1)), 0)
            optimizer.zero_grad()
            F.cross_entropy(model(ids), y).backward()
            optimizer.step()

    return model, run


class Seq2Seq(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(14, dim), nn.Embedding(10, dim)
        self.transformer = nn.Transformer(dim, 4, 1, 1, 64, 0.0, batch_first=True)
        self.generator = nn.Linear(dim, 14)

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        position = self.pos(torch.arange(10))
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        x, y = self.emb(src) + position[: src.shape[1]], self.emb(tgt) + position[: tgt.shape[1]]
        return self.generator(self.transformer(x, y, tgt_mask=mask))


@ordinary
def encoder_and_decoder_translate() -> Setup:
    """Each token is to be translated to its neighbor, with teacher forcing."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=13)

    def run() -> None:
        for _ in range(20):
            src = torch.randint(12, (32, 6))
            tgt = torch.cat([torch.full((32, 1), 12), (src + 1) % 12], 1)
            logits = model(src, tgt[:, :-1])
            optimizer.zero_grad()
            criterion(logits.flatten(0, 1), tgt[:, 1:].flatten()).backward()
            optimizer.step()

    return model, run


class Recognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(6, 24, 3, padding=1), nn.ReLU())
        self.rnn = nn.GRU(24, 24, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Any:
        out, _ = self.rnn(self.conv(x).transpose(1, 2))
        return self.fc(out).log_softmax(-1)


@ordinary
def ctc_with_log_softmax() -> Setup:
    model = Recognizer()
    ctc = nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(20):
            target = torch.randint(1, 6, (12, 4))
            x = F.one_hot(target, 6).float().repeat_interleave(4, 1).transpose(1, 2)
            log_probs = model(x + 0.1 * torch.randn_like(x)).transpose(0, 1)
            loss = ctc(log_probs, target, torch.full((12,), 16), torch.full((12,), 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class MaskedLM(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(13, dim), nn.Embedding(13, dim)
        self.norm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(dim, 13)

    def forward(self, ids: Tensor) -> Any:
        x = self.norm(self.word(ids) + self.position(torch.arange(ids.shape[1])))
        return self.head(self.encoder(x))


@ordinary
def masked_language_model() -> Setup:
    """A third of the tokens is masked; only those are predicted, the rest has the label -100."""
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def run() -> None:
        for _ in range(25):
            ids = counting(24)
            hidden = torch.rand(ids.shape) < 0.3
            labels = ids.masked_fill(~hidden, -100)
            logits = model(ids.masked_fill(hidden, 12))
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


class DualEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = nn.EmbeddingBag(12, 24)
        self.text_projection = nn.Linear(24, 16, bias=False)
        self.vision = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16, bias=False))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, ids: Tensor, image: Tensor) -> Any:
        a = F.normalize(self.text_projection(self.text(ids)), dim=-1)
        b = F.normalize(self.vision(image), dim=-1)
        return self.logit_scale.exp() * a @ b.T


@ordinary
def clip_like_matching() -> Setup:
    model = DualEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)

    def run() -> None:
        for _ in range(20):
            ids = torch.randint(12, (16, 4))
            image = F.one_hot(ids, 12).float().sum(1) + 0.1 * torch.randn(16, 12)
            logits = model(ids, image)
            labels = torch.arange(16)
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))

    return model, run


class PackedReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16, padding_idx=0)
        self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.fc(torch.cat([h[0], h[1]], dim=-1))


@ordinary
def packed_sequences() -> Setup:
    model = PackedReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(20):
            ids, lengths = counting(24, 8) + 1, torch.randint(3, 9, (24,))
            labels = (ids[:, 1] - ids[:, 0]) % 12 - 1
            ids = ids.masked_fill(torch.arange(8) >= lengths[:, None], 0)
            optimizer.zero_grad()
            F.cross_entropy(model(ids, lengths), labels).backward()
            optimizer.step()

    return model, run


@ordinary
def hugging_face_gpt2() -> Setup:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=12, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.loss_type = "ForCausalLM"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run() -> None:
        model.train()
        for _ in range(10):
            ids = counting(8)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, run
