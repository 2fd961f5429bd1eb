"""A tour of normscope: scopes, norms compared with PyTorch's, and GPT presets. Run it with `make tour`."""

import math

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import normscope

console = Console()


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def notation() -> None:
    heading("1. A scope marks the axes that share statistics with brackets")
    console.print(normscope.draw_scope("n (g [c]) [h w]", (2, 4, 3, 3), g=2), markup=False, highlight=False)
    console.print("\nErrors point at the mistake:")
    try:
        normscope.GroupNorm("n (g [c]) [...]", g=3, c=2)(torch.randn(2, 8, 4, 4))
    except normscope.ScopeError as error:
        console.print(str(error), style="red", markup=False, highlight=False)


def norms() -> None:
    heading("2. Every norm is one engine over a scope, and matches PyTorch's")
    images, tokens = torch.randn(8, 6, 5, 5), torch.randn(4, 7, 32)
    pairs: list[tuple[nn.Module, nn.Module | None, Tensor]] = [
        (normscope.LayerNorm(32), nn.LayerNorm(32), tokens),
        (normscope.RMSNorm(32), nn.RMSNorm(32), tokens),
        (normscope.LayerNorm("n [c h w]", c=6, h=5, w=5), nn.LayerNorm([6, 5, 5]), images),
        (normscope.BatchNorm(6), nn.BatchNorm2d(6), images),
        (normscope.InstanceNorm(6), nn.InstanceNorm2d(6), images),
        (normscope.GroupNorm(3, 6), nn.GroupNorm(3, 6), images),
        (normscope.PowerNorm(32), None, tokens),
    ]
    table = Table("layer", "scope", "statistic", "largest difference", box=None, header_style="dim")
    for ours, theirs, x in pairs:
        difference = "not in PyTorch" if theirs is None else f"{(ours(x) - theirs(x)).abs().max():.1e}"
        table.add_row(type(ours).__name__, str(ours.scope).replace("[", r"\["), str(ours.statistic), difference)
    console.print(table)


def padding() -> None:
    heading("3. With a mask, padding does not affect the statistics")
    x = torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    padded = x.masked_fill(~mask[..., None], 1000.0)
    norm = normscope.Norm("[b s] d", state="running", affine="d", d=3)
    console.print(f"  change of a real token by padding without mask: {(norm(x) - norm(padded))[0, 0].abs().max():.2f}")
    console.print(f"  with mask: {(norm(x, mask) - norm(padded, mask))[0, 0].abs().max():.2f}")


def models() -> None:
    heading("4. GPT presets of nanoGPT, nanochat and Llama, from one config")
    table = Table("preset", "parameters", "initial loss", "ln V", "cached = full", box=None, header_style="dim")
    for name in ("gpt2", "nanochat", "llama"):
        model = normscope.GPT(normscope.preset(name, vocab_size=512, context=64, depth=4, width=128, heads=4)).eval()
        tokens = torch.randint(512, (2, 33))
        with torch.inference_mode():
            loss = model.loss(tokens[:, :-1], tokens[:, 1:]).item()
            for weight in model.parameters():  # perturb: nanochat's head starts at zero, so all logits are equal
                weight.add_(0.1 * torch.randn_like(weight))
            cache = model.new_cache(batch=2)
            steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(32)]
            gap = (torch.cat(steps, dim=1) - model(tokens[:, :32])).abs().max().item()
        count = f"{model.parameter_count():,}"
        table.add_row(name, count, f"{loss:.3f}", f"{math.log(512):.3f}", f"within {gap:.0e}")
    console.print(table)


def causality() -> None:
    heading("5. A norm that would leak the future to a GPT is rejected")
    try:
        normscope.nanochat(norm="batch")
    except normscope.NormscopeError as error:
        console.print(f"  {error}", style="red", markup=False, highlight=False)


if __name__ == "__main__":
    torch.manual_seed(0)
    for part in (notation, norms, padding, models, causality):
        part()
