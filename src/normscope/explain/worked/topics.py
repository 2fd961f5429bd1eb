"""The topics by name, and the one function that explains each of them."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normscope.errors import ConfigError
from normscope.explain.worked.activation import relu2
from normscope.explain.worked.attention import attention_lesson
from normscope.explain.worked.block import block
from normscope.explain.worked.channels import batchnorm, instancenorm
from normscope.explain.worked.embedding import embedding
from normscope.explain.worked.explanation import Explanation
from normscope.explain.worked.gradients import requires_grad
from normscope.explain.worked.groups import groupnorm
from normscope.explain.worked.initial import init
from normscope.explain.worked.lesson import Lesson
from normscope.explain.worked.linear import linear
from normscope.explain.worked.mlp import mlp
from normscope.explain.worked.power import powernorm
from normscope.explain.worked.reading import as_tensor
from normscope.explain.worked.residual import residual
from normscope.explain.worked.rms import rmsnorm
from normscope.explain.worked.standardising import layernorm
from normscope.explain.worked.surroundings import usual_surroundings


@dataclass(frozen=True)
class Topic:
    """What can be explained: in a few words, and by which lesson."""

    words: str
    lesson: Callable[..., Lesson]

    @property
    def options(self) -> tuple[str, ...]:
        """What can be set: the lesson's arguments, but for the tensor."""
        return tuple(inspect.signature(self.lesson).parameters)[1:]


TOPICS: Mapping[str, Topic] = {
    "layernorm": Topic("each row by its own mean and variance", layernorm),
    "rmsnorm": Topic("each row by its root mean square", rmsnorm),
    "batchnorm": Topic("each channel over the batch", batchnorm),
    "instancenorm": Topic("each channel of each sample", instancenorm),
    "groupnorm": Topic("groups of channels of each sample", groupnorm),
    "powernorm": Topic("BatchNorm for text, by a running quadratic mean", powernorm),
    "linear": Topic("weighted sums of features", linear),
    "embedding": Topic("a vector for each token", embedding),
    "init": Topic("how weights start: Glorot's variance, and a cut", init),
    "mlp": Topic("up, ReLU^2, down", mlp),
    "relu2": Topic("ReLU squared, next to ReLU and GELU", relu2),
    "attention": Topic("scores, mask, softmax, mix", attention_lesson),
    "block": Topic("attention and MLP around a residual stream", block),
    "residual": Topic("what residuals do, and six wirings", residual),
    "requires-grad": Topic("gradients, frozen weights, buffers", requires_grad),
}


def explanation(topic: str, tensor: Any = None, **options: Any) -> Explanation:
    """Work a topic through, on its own example or on these numbers.

    Args:
        topic: one of `TOPICS`.
        tensor: a tensor, an array or nested lists; None is the topic's own example. Computed in float32.
        options: what the topic can be told: eps (norms and blocks), groups (groupnorm), heads (attention and blocks).

    >>> worked = explanation("rmsnorm", [3.0, -4.0, 0.0])
    >>> [step.title for step in worked.steps]
    ['squares', 'mean_square', 'rms', 'scaled', 'result', 'strength']
    >>> worked.step("rms").code, worked.step("rms").value.content.round(4).tolist()
    ('rms = torch.sqrt(mean_square + eps)', [2.886...])
    >>> all(check.agrees for step in worked.steps for check in step.checks)
    True
    """
    if not isinstance(topic, str) or topic not in TOPICS:
        close = difflib.get_close_matches(str(topic), TOPICS, n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"use one of: {', '.join(TOPICS)}"
        raise ConfigError(f"there is no topic {topic!r}\nfix: {fix}")
    chosen = TOPICS[topic]
    for name in options:
        if name not in chosen.options:
            others = f"it can be told {' and '.join(chosen.options)}" if chosen.options else "it has no settings"
            raise ConfigError(f"{topic} has no {name}; {others}\nfix: leave {name} out")
    with usual_surroundings():
        own = None if tensor is None else as_tensor(tensor)
        return chosen.lesson(own, **options).explain(topic)
