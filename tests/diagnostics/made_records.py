"""Handwritten records with exact values, and hypothesis strategies for arbitrary records."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import nn

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import LossRecord, ModuleRecord, ParameterRecord, StepRecord, XrayRecord
from normscope.diagnostics.stats.tensors import AttentionStats, NormStats, ResidualJoin, TensorStats, UnitStats


def signal(rms: float, *, non_finite: float = 0.0, count: int = 64) -> TensorStats:
    return TensorStats(
        count,
        mean=0.0,
        rms=rms,
        variance=rms * rms,
        min=-2 * rms,
        max=2 * rms,
        kurtosis=3.0,
        zeros=0.0,
        non_finite=non_finite,
    )


def weight(*shape: int, rms: float = 0.02, update_ratio: float | None = 0.001) -> ParameterRecord:
    return ParameterRecord(
        "weight",
        shape,
        "float32",
        requires_grad=True,
        values=signal(rms),
        gradient=signal(rms / 100),
        update_ratio=update_ratio,
        in_optimizer=True,
        alias_of=None,
        content_hash="ab",
        identical_rows=False,
        predicted_gain=1.0,
    )


def norm(variance: float) -> NormStats:
    return NormStats(1e-5, variance, (2,), True, 8, None, None, 0.0, 1.0, 0.0)


def transformer(depth: int = 3, *, label: str = "step 7", gain: float = 2.0, spare: bool = True) -> XrayRecord:
    """A small pre-norm transformer whose residual stream grows by `gain` per block."""
    shape = (2, 4, 8)
    modules = [
        ModuleRecord("", "Tiny", order=0, calls=1, output_shapes=((2, 4, 32),), flops=64_000, output=signal(0.5)),
        ModuleRecord(
            "embedding",
            "Embedding",
            order=1,
            calls=1,
            output_shapes=(shape,),
            output=signal(1.0),
            gradient=signal(0.004),
            output_bytes=256,
            parameters=(weight(32, 8),),
        ),
        ModuleRecord("blocks", "ModuleList"),
    ]
    for i in range(depth):
        block, size, order = f"blocks.{i}", gain**i, 2 + 5 * i
        back = signal(0.004 / gain**i)
        modules += [
            ModuleRecord(
                block,
                "Block",
                order=order,
                calls=1,
                input_shapes=(shape,),
                output_shapes=(shape,),
                flops=12_000,
                output=signal(size * gain),
                gradient=back,
                joins=(
                    ResidualJoin(
                        size, 0.1 * size, size, "embedding" if i == 0 else f"blocks.{i - 1}", f"{block}.attention"
                    ),
                    ResidualJoin(size, 0.5 * size, size * gain, None, f"{block}.mlp"),
                ),
            ),
            ModuleRecord(
                f"{block}.norm",
                "LayerNorm",
                order=order + 1,
                calls=1,
                output_shapes=(shape,),
                output=signal(1.0),
                gradient=back,
                norm=norm(size * size),
                parameters=(weight(8, rms=1.0),),
            ),
            ModuleRecord(
                f"{block}.attention",
                "Attention",
                order=order + 2,
                calls=1,
                output_shapes=(shape,),
                flops=4_000,
                output=signal(0.1 * size),
                gradient=back,
                parameters=(weight(24, 8),),
                output_bytes=256,
                attention=AttentionStats(2, 4, (0.9, 0.1 * i), (0.0, 0.5), 1.0, 0.0),
            ),
            ModuleRecord(
                f"{block}.mlp",
                "Linear",
                order=order + 4,
                calls=1,
                output_shapes=(shape,),
                flops=8_000,
                output=signal(0.5 * size),
                gradient=back,
                parameters=(weight(8, 8, update_ratio=0.01),),
                output_bytes=256,
            ),
            ModuleRecord(
                f"{block}.relu()",
                "relu",
                is_function=True,
                order=order + 3,
                calls=1,
                output_shapes=(shape,),
                input=signal(1.0),
                output=signal(0.7),
                gradient=back,
                units=UnitStats(8, 8, 2, None, 0.5, ((3, 2.0, 4.0),)),
            ),
        ]
    last = 2 + 5 * depth
    modules.append(
        ModuleRecord(
            "head",
            "Linear",
            order=last,
            calls=1,
            output_shapes=((2, 4, 32),),
            flops=4_096,
            output=signal(0.5),
            gradient=signal(0.03),
            parameters=(weight(32, 8),),
            output_bytes=1_024,
        )
    )
    if spare:
        modules.append(
            ModuleRecord("spare", "Linear", parameters=(replace(weight(3, 8, update_ratio=0.0), gradient=None),))
        )
    return XrayRecord(
        "Tiny",
        tuple(modules),
        batches=1,
        backward_passes=1,
        steps=(StepRecord("AdamW", 0.001, 1, None),),
        losses=(LossRecord(3.47, 32),),
        notices=("nothing to worry about",),
        normscope="1.0",
        torch="2.0",
        label=label,
    )


def findings() -> list[Finding]:
    """Three findings of two kinds; the most severe one is last."""
    why = "A unit that is always zero passes nothing on, and gets no gradient."
    dead = [
        Finding("dead-units", "warning", f"blocks.{i}.relu()", f"{i + 1} of 8 are zero", {"dead": i + 1}, why, "wait")
        for i in (0, 2)
    ]
    seen: dict[str, float | str] = {"largest_input": 3.4e38, "type": "float16", "share": 0.25}
    title = "makes numbers that are not finite"
    return [*dead, Finding("non-finite-output", "error", "blocks.1.mlp", title, seen, "", "mend")]


def plain(*sizes: float, non_finite: bool = False) -> XrayRecord:
    """Sequential layers with these rms values, for both output and gradient."""
    modules = [ModuleRecord("", "Sequential", order=0, calls=1)]
    for i, size in enumerate(sizes):
        known = signal(size, non_finite=0.5 if non_finite else 0.0)
        modules.append(
            ModuleRecord(str(i), "Linear", order=i + 1, calls=1, output_shapes=((2, 3),), output=known, gradient=known)
        )
    return XrayRecord("Sequential", tuple(modules), batches=1, backward_passes=1)


class Root(nn.Module):
    """Produces NaN for negative inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


def seen(name: str) -> XrayRecord:
    """The record of a small model: forward, backward and one optimizer step."""
    models: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "convnet": (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)),
            torch.randn(5, 1, 6, 6),
        ),
        "encoder": (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4),
            torch.randn(2, 5, 8),
        ),
        "partly used": (nn.ModuleDict({"used": nn.Linear(4, 4), "spare": nn.Linear(4, 4)}), torch.randn(3, 4)),
        "broken": (nn.Sequential(nn.Linear(4, 8), Root(), nn.Linear(8, 2)), torch.randn(3, 4)),
    }
    model, x = models[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Xray(model) as x_ray:
        output = model["used"](x) if isinstance(model, nn.ModuleDict) else model(x)
        output.square().mean().backward()
        optimizer.step()
    return x_ray.record


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120)
figures = st.floats(allow_nan=True, allow_infinity=True)
sizes = figures.map(abs)  # an rms is never negative
shares = st.floats(0, 1)
two = st.tuples(figures, figures)
shapes = st.lists(st.lists(st.integers(0, 10**6), max_size=5).map(tuple), max_size=3).map(tuple)
signals = st.none() | st.builds(
    TensorStats, st.integers(0, 9), figures, sizes, figures, figures, figures, figures, shares, shares
)
norms = st.none() | st.builds(norm, figures)
looks = st.none() | st.builds(AttentionStats, st.just(2), st.just(4), two, two, figures, st.none())
joins = st.lists(st.builds(ResidualJoin, sizes, sizes, sizes, st.none(), st.none() | names), max_size=2).map(tuple)
weights = st.builds(lambda rms, update: (weight(3, 4, rms=rms, update_ratio=update),), sizes, st.none() | sizes)


@st.composite
def strange_records(draw: st.DrawFn) -> XrayRecord:
    """Modules with arbitrary names, order and statistics."""
    modules = tuple(
        ModuleRecord(
            name,
            draw(names),
            is_function=draw(st.booleans()),
            order=draw(st.none() | st.integers(0, 40)),
            output_shapes=draw(shapes),
            flops=draw(st.none() | st.integers(0, 10**18)),
            input=draw(signals),
            output=draw(signals),
            gradient=draw(signals),
            norm=draw(norms),
            attention=draw(looks),
            joins=draw(joins),
            parameters=draw(weights),
        )
        for name in draw(st.lists(names | st.just(""), max_size=8, unique=True))
    )
    return XrayRecord(draw(names), modules, 1, draw(st.integers(0, 2)), notices=(draw(names),), label=draw(names))
