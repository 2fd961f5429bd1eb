"""normscope: transformer blocks that you can read, train and see through.

Names are loaded when they are first used, so that `import normscope` does not wait for torch.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from normscope._version import __version__

if TYPE_CHECKING:
    from normscope.blocks.attention import Attention as Attention
    from normscope.blocks.block import Block as Block
    from normscope.blocks.block import BlockConfig as BlockConfig
    from normscope.blocks.cache import KVCache as KVCache
    from normscope.blocks.initialization import Initialization as Initialization
    from normscope.blocks.initialization import initialize as initialize
    from normscope.blocks.linear import Embedding as Embedding
    from normscope.blocks.linear import Linear as Linear
    from normscope.blocks.mlp import MLP as MLP
    from normscope.blocks.norm import BatchNorm as BatchNorm
    from normscope.blocks.norm import BatchNorm1d as BatchNorm1d
    from normscope.blocks.norm import BatchNorm2d as BatchNorm2d
    from normscope.blocks.norm import BatchNorm3d as BatchNorm3d
    from normscope.blocks.norm import GroupNorm as GroupNorm
    from normscope.blocks.norm import InstanceNorm as InstanceNorm
    from normscope.blocks.norm import InstanceNorm1d as InstanceNorm1d
    from normscope.blocks.norm import InstanceNorm2d as InstanceNorm2d
    from normscope.blocks.norm import InstanceNorm3d as InstanceNorm3d
    from normscope.blocks.norm import LayerNorm as LayerNorm
    from normscope.blocks.norm import Norm as Norm
    from normscope.blocks.norm import NormSpec as NormSpec
    from normscope.blocks.norm import PowerNorm as PowerNorm
    from normscope.blocks.norm import RMSNorm as RMSNorm
    from normscope.blocks.norm import as_norm as as_norm
    from normscope.blocks.norm import layer_norm as layer_norm
    from normscope.blocks.norm import normalize as normalize
    from normscope.blocks.norm import rms_norm as rms_norm
    from normscope.blocks.rotary import Rotary as Rotary
    from normscope.data.tokenizers.load import load_tokenizer as load_tokenizer
    from normscope.diagnostics.probe import Xray as Xray
    from normscope.diagnostics.probe import xray as xray
    from normscope.drawing.draw_model import draw_model as draw_model
    from normscope.drawing.scopes.draw_scope import draw as draw
    from normscope.errors import NormscopeError as NormscopeError
    from normscope.errors import ScopeError as ScopeError
    from normscope.generate.chat import Conversation as Conversation
    from normscope.generate.config import GenerationConfig as GenerationConfig
    from normscope.generate.text import generate_text as generate_text
    from normscope.generate.tokens import generate_tokens as generate_tokens
    from normscope.interop.fuse import fuse as fuse
    from normscope.interop.huggingface import load_huggingface as load_huggingface
    from normscope.learning.explain import explanation as explanation
    from normscope.models.convnet import ConvNet as ConvNet
    from normscope.models.convnet import ConvNetConfig as ConvNetConfig
    from normscope.models.encoder import Encoder as Encoder
    from normscope.models.encoder import EncoderConfig as EncoderConfig
    from normscope.models.gpt import GPT as GPT
    from normscope.models.gpt import GPTConfig as GPTConfig
    from normscope.models.presets import gpt2 as gpt2
    from normscope.models.presets import llama as llama
    from normscope.models.presets import nanochat as nanochat
    from normscope.models.presets import preset as preset
    from normscope.models.vit import ViT as ViT
    from normscope.models.vit import ViTConfig as ViTConfig
    from normscope.runs.load_run import load_run as load_run
    from normscope.scope import Plan as Plan
    from normscope.scope import Scope as Scope
    from normscope.training.optimizers.muon import Muon as Muon
    from normscope.training.train import TrainingRun as TrainingRun
    from normscope.training.train import open_run as open_run
    from normscope.training.train import train as train

# Where each public name lives.
_HOMES = {
    "normscope.blocks.attention": "Attention",
    "normscope.blocks.block": "Block BlockConfig",
    "normscope.blocks.cache": "KVCache",
    "normscope.blocks.initialization": "Initialization initialize",
    "normscope.blocks.linear": "Embedding Linear",
    "normscope.blocks.mlp": "MLP",
    "normscope.blocks.norm": (
        "BatchNorm BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm InstanceNorm1d InstanceNorm2d "
        "InstanceNorm3d LayerNorm Norm NormSpec PowerNorm RMSNorm as_norm layer_norm normalize rms_norm"
    ),
    "normscope.blocks.rotary": "Rotary",
    "normscope.data.tokenizers.load": "load_tokenizer",
    "normscope.errors": "NormscopeError ScopeError",
    "normscope.drawing.draw_model": "draw_model",
    "normscope.drawing.scopes.draw_scope": "draw",
    "normscope.learning.explain": "explanation",
    "normscope.generate.chat": "Conversation",
    "normscope.generate.tokens": "generate_tokens",
    "normscope.generate.config": "GenerationConfig",
    "normscope.generate.text": "generate_text",
    "normscope.interop.fuse": "fuse",
    "normscope.interop.huggingface": "load_huggingface",
    "normscope.models.convnet": "ConvNet ConvNetConfig",
    "normscope.models.encoder": "Encoder EncoderConfig",
    "normscope.models.gpt": "GPT GPTConfig",
    "normscope.models.presets": "gpt2 llama nanochat preset",
    "normscope.models.vit": "ViT ViTConfig",
    "normscope.scope": "Plan Scope",
    "normscope.training.optimizers.muon": "Muon",
    "normscope.training.train": "TrainingRun open_run train",
    "normscope.runs.load_run": "load_run",
    "normscope.diagnostics.probe": "Xray xray",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value  # cached for the next lookup
        return value
    if importlib.util.find_spec(f"normscope.{name}") is not None:
        return importlib.import_module(f"normscope.{name}")  # a subpackage: normscope.errors, normscope.blocks
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
