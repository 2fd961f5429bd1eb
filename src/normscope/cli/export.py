"""`normscope export`: export the model of a run to another format, and prove that it is right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from normscope.cli.options import Checkpoint, OptionalFile, OptionalStr, RunFolder, Str, read_arguments
from normscope.cli.sample import print_checkpoint_notice


@dataclass(frozen=True)
class Export:
    """Export the model of a run, load it in the target's own runtime, and compare both.

    Example: normscope export runs/stories --to gguf --weights q8_0
    """

    run: RunFolder
    """Run folder."""

    to: Str = "html"
    """Format: html (one page that runs in a browser), hf (transformers), gguf (llama.cpp), onnx, safetensors,
    nanogpt, or peft (the adapters of a run with LoRA)."""

    weights: OptionalStr = None
    """Weight format, the default first. html: int8, float32. hf and safetensors: stored, float32, bfloat16, float16.
    gguf: f16, f32, q8_0, q4_0. onnx, nanogpt and peft: float32."""

    out: OptionalFile = None
    """Output file or folder. Default: in the run folder, with its name: NAME.html, NAME.gguf, NAME-hf, ..."""

    checkpoint: Checkpoint = "best"
    """Checkpoint: best, last or a step number."""

    proof: Annotated[Literal["auto", "require", "skip"], tyro.conf.arg(metavar="WHEN")] = "auto"
    """Comparison with the model: auto (if the runtime is installed), require or skip."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Export, "export", arguments)
    from normscope.exporting.export import FORMATS, export

    print_checkpoint_notice(command.run)
    exported = export(
        command.run,
        command.to,
        weights=command.weights,
        out=command.out,
        checkpoint=command.checkpoint,
        proof=command.proof,
    )
    if exported.proof is None:
        print(f"not proved: {exported.unproved}")
    else:
        print(exported.proof)
    print(f"wrote {exported.path} ({exported.size / 1e6:.1f} MB); {FORMATS[command.to].usage}")
