"""GPT as a module: causality, loss, copies, state_dict, meta device, invalid arguments."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from normscope.blocks.initialization import initialize
from normscope.blocks.rotary import Rotary
from normscope.errors import ArgumentTypeError, DtypeError, NormscopeError, ShapeError, TokenError
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS
from tests.models.tiny import CONTEXT, FORMS, VOCABULARY, every_form, every_preset, made, tiny
from tests.pairs import chiefly
from tests.support import every_refusal, random_tokens

TOKENS = random_tokens(VOCABULARY, 2, CONTEXT)


@every_form
def test_it_matches_its_formula(form: str) -> None:
    """Written out with the model's own parts."""
    model = made(form, torch.float64)
    x = model.embedding.weight[TOKENS]
    if model.position is not None:
        x = x + model.position.weight[:CONTEXT]
    x = model.embedding_norm(x)
    if model.smear is not None:
        before = torch.cat((torch.zeros(2, 1, 16, dtype=torch.float64), x[:, :-1]), dim=1)
        x = x + model.smear.scale * (x @ model.smear.gate.weight.T).sigmoid() * before
    start = middle = x
    for i, block in enumerate(model.blocks):
        if model.config.embedding_mix:
            mix = model.embedding_mixes[i]
            x = mix.a * x + mix.b * start
        values = model.value_embeddings[str(i)](TOKENS) if i in model.config.value_layers else None
        x = block(x, values=values)
        middle = x if i == len(model.blocks) // 2 else middle
    if model.backout is not None:
        x = x + model.backout.b * middle
    logits = model.final_norm(x) @ (model.embedding if model.head is None else model.head).weight.T
    cap = model.config.logit_cap
    torch.testing.assert_close(model(TOKENS), logits if cap is None else cap * torch.tanh(logits / cap))


@every_form
def test_it_is_causal(form: str) -> None:
    model = made(form)
    logits = model(TOKENS)
    for place in range(CONTEXT):
        changed = TOKENS.clone()
        changed[:, place] = (changed[:, place] + 7) % VOCABULARY
        moved = model(changed)
        assert torch.equal(logits[:, :place], moved[:, :place])
        assert not torch.isclose(logits[:, place], moved[:, place]).all()


@every_preset
def test_logits_depend_on_positions_and_earlier_tokens(name: str) -> None:
    """Without the first token, or with the first two exchanged, the last logits are others."""
    model = made(name)
    last = model(TOKENS)[:, -1]
    exchanged = TOKENS[:, [1, 0, *range(2, CONTEXT)]]
    assert not torch.isclose(model(TOKENS[:, 1:])[:, -1], last).all()
    assert not torch.isclose(model(exchanged)[:, -1], last).all()


def test_without_positions_the_order_of_earlier_tokens_does_not_matter() -> None:
    """In one block: in a second one the tokens would know each other by what they had seen."""
    model = GPT(tiny("llama", positions="none", depth=1))
    exchanged = TOKENS[:, [1, 0, *range(2, CONTEXT)]]
    torch.testing.assert_close(model(TOKENS)[:, -1], model(exchanged)[:, -1])


@every_form
def test_the_loss_is_the_mean_cross_entropy(form: str) -> None:
    model = made(form, torch.float64)
    targets = random_tokens(VOCABULARY, 2, CONTEXT, seed=1)
    targets[0, 3] = targets[1, :4] = -1  # do not count
    logits = model(TOKENS)
    terms = [
        math.log(sum(math.exp(z) for z in logits[b, s].tolist())) - logits[b, s, targets[b, s]].item()
        for b in range(2)
        for s in range(CONTEXT)
        if targets[b, s] >= 0
    ]
    assert len(terms) == 15
    assert model.loss(TOKENS, targets).item() == pytest.approx(sum(terms) / 15, rel=1e-12)


def test_the_loss_of_half_precision_logits_is_computed_in_float32() -> None:
    model = made("gpt2", torch.bfloat16)
    fixed = torch.randn(2, CONTEXT, VOCABULARY, dtype=torch.bfloat16)
    model.forward = lambda tokens, mask=None: fixed  # type: ignore[method-assign, assignment, misc]
    loss = model.loss(TOKENS, TOKENS)
    assert loss.dtype == torch.float32
    wanted = F.cross_entropy(fixed.float().flatten(0, 1), TOKENS.flatten())
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)


def test_invalid_targets_are_refused_before_the_forward_pass() -> None:
    model = made("gpt2")
    calls: list[object] = []
    model.register_forward_pre_hook(lambda module, inputs: calls.append(inputs))
    for targets in (TOKENS[:1], TOKENS.float(), TOKENS[0]):
        with pytest.raises(NormscopeError):
            model.loss(TOKENS, targets)
    assert not calls
    model.loss(TOKENS, TOKENS)
    assert calls


def test_int32_tokens() -> None:
    model = made("nanochat")
    assert torch.equal(model(TOKENS.int()), model(TOKENS))
    assert torch.equal(model.loss(TOKENS.int(), TOKENS.int()), model.loss(TOKENS, TOKENS))


@every_form
def test_the_same_seed_gives_the_same_model(form: str) -> None:
    config = made(form).config
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(GPT(config).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@every_form
def test_a_meta_model_loads_weights_by_assignment(form: str) -> None:
    """The rotary tables are not in a state_dict: they follow from the config."""
    model = made(form)
    with torch.device("meta"):
        late = GPT(model.config)
    late.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(late(TOKENS), model(TOKENS))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # torch's own, in a copy of one
@pytest.mark.parametrize("form", chiefly(PRESETS, [form for form in FORMS if form not in PRESETS]))
def test_a_model_of_fake_tensors(form: str) -> None:
    config = made(form).config
    with FakeTensorMode():
        model, tokens = GPT(config), torch.zeros(2, 5, dtype=torch.long)
        model.loss(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in model.blocks.parameters())


@every_form
def test_a_meta_model_moved_to_the_cpu(form: str) -> None:
    config = made(form).config
    torch.manual_seed(5)
    model = GPT(config)
    with torch.device("meta"):
        late = GPT(config)
    assert all(p.is_meta for p in late.parameters())
    late.to_empty(device="cpu")
    torch.manual_seed(5)
    initialize(late)
    tables = [(m.cos, m.sin) for m in late.modules() if isinstance(m, Rotary)]
    for (cos, sin), wanted in zip(tables, [m for m in model.modules() if isinstance(m, Rotary)], strict=True):
        assert torch.equal(cos, wanted.cos)
        assert torch.equal(sin, wanted.sin)
    assert torch.equal(late(TOKENS), model(TOKENS))


@every_form
def test_copies_and_state_dicts_give_the_same_model(form: str) -> None:
    model = made(form)
    logits = model(TOKENS)
    twin = copy.deepcopy(model)
    other = GPT(model.config)
    other.load_state_dict(model.state_dict())
    assert torch.equal(twin(TOKENS), logits)
    assert torch.equal(other(TOKENS), logits)
    with torch.no_grad():
        twin.embedding.weight.zero_()
    assert torch.equal(model(TOKENS), logits)


def test_layers_share_the_memory_of_their_rotary_tables() -> None:
    model = made("nanochat")
    for twin in (model, copy.deepcopy(model)):
        rotaries = [m for m in twin.modules() if isinstance(m, Rotary)]
        assert len(rotaries) == twin.config.depth > 1
        assert len({rotary.cos.data_ptr() for rotary in rotaries}) == 1
        assert len({rotary.sin.data_ptr() for rotary in rotaries}) == 1


def test_rotary_tables_are_not_saved() -> None:
    assert not [name for name in made("nanochat").state_dict() if "cos" in name or "sin" in name]


def test_an_empty_batch() -> None:
    assert made("llama")(TOKENS[:0]).shape == (0, CONTEXT, VOCABULARY)
    assert made("llama")(TOKENS[:, :0]).shape == (2, 0, VOCABULARY)


def ask(tokens: Any, targets: Any = None, **options: Any) -> Any:
    def call() -> Tensor:
        model = GPT(tiny("nanochat"))
        logits: Tensor = model(tokens, **options) if targets is None else model.loss(tokens, targets, **options)
        return logits

    return call


@every_refusal(
    ("floats", DtypeError, "a GPT takes token ids of int64 or int32, but got torch.float32", ask(TOKENS.float())),
    ("truth", DtypeError, "torch.bool", ask(TOKENS > 3)),
    ("list", ArgumentTypeError, "got list", ask([[1, 2]])),
    ("one-axis", ShapeError, r"\(batch, tokens\), but got shape \(10,\)", ask(TOKENS[0])),
    ("long", ShapeError, "11 tokens exceed the model's context of 10", ask(torch.zeros(1, 11).long())),
    ("beyond", TokenError, r"token id 31 is out of range.*0 to 30", ask(torch.tensor([[1, 31]]))),
    ("negative", TokenError, "token id -2 is out of range", ask(torch.tensor([[1, -2]]))),
    ("mask-shape", ShapeError, "mask", ask(TOKENS, mask=torch.ones(2, 9).bool())),
    ("mask-type", DtypeError, r"use mask.bool\(\)", ask(TOKENS, mask=torch.ones(2, 10).long())),
    ("mask-list", ArgumentTypeError, "mask", ask(TOKENS, mask=[True])),
    ("targets-shape", ShapeError, r"targets have shape \(1, 10\), but tokens \(2, 10\)", ask(TOKENS, TOKENS[:1])),
    ("targets-floats", DtypeError, "the loss takes token ids", ask(TOKENS, TOKENS.float())),
    ("targets-list", ArgumentTypeError, "the loss takes a tensor, but got list", ask(TOKENS, [1])),
    ("targets-beyond", TokenError, "token id 40 is out of range", ask(TOKENS, torch.where(TOKENS > 15, 40, -1))),
    ("targets-negative", TokenError, "token id -7 is out of range", ask(TOKENS, torch.full_like(TOKENS, -7))),
    ("targets-100", TokenError, "or -1 for ignored targets", ask(TOKENS, torch.full_like(TOKENS, -100))),
    ("loss-mask", DtypeError, r"use mask.bool\(\)", ask(TOKENS, TOKENS, mask=torch.ones(2, 10).long())),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
