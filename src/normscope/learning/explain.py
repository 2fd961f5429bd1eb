"""The topics by name, and the one function that explains each of them."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normscope.errors import ConfigError
from normscope.learning.explanation import Explanation
from normscope.learning.lesson import Lesson
from normscope.learning.topics.attention import attention_lesson
from normscope.learning.topics.batch_and_instance_norm import batchnorm, instancenorm
from normscope.learning.topics.block import block
from normscope.learning.topics.embedding import embedding
from normscope.learning.topics.group_norm import groupnorm
from normscope.learning.topics.initialization import init
from normscope.learning.topics.layer_norm import layernorm
from normscope.learning.topics.linear import linear
from normscope.learning.topics.mlp import mlp
from normscope.learning.topics.power_norm import powernorm
from normscope.learning.topics.relu_squared import relu2
from normscope.learning.topics.requires_grad import requires_grad
from normscope.learning.topics.residual import residual
from normscope.learning.topics.rms_norm import rmsnorm
from normscope.learning.torch_state import default_torch_state
from normscope.learning.user_numbers import as_tensor


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
    >>> all(check.within_tolerance for step in worked.steps for check in step.checks)
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
    with default_torch_state():
        own = None if tensor is None else as_tensor(tensor)
        return chosen.lesson(own, **options).explain(topic)
