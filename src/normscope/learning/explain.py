"""The topics, and `explanation`, which runs one of them."""

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
    """A topic: a one-line summary and the function that creates its lesson."""

    summary: str
    lesson: Callable[..., Lesson]

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the lesson's arguments, except for the tensor."""
        return tuple(inspect.signature(self.lesson).parameters)[1:]


TOPICS: Mapping[str, Topic] = {
    "layernorm": Topic("normalize each row by its mean and variance", layernorm),
    "rmsnorm": Topic("normalize each row by its root mean square", rmsnorm),
    "batchnorm": Topic("normalize each channel over the batch", batchnorm),
    "instancenorm": Topic("normalize each channel of each sample", instancenorm),
    "groupnorm": Topic("normalize groups of channels of each sample", groupnorm),
    "powernorm": Topic("BatchNorm for text, by a running mean square", powernorm),
    "linear": Topic("weighted sums of features", linear),
    "embedding": Topic("one vector per token", embedding),
    "init": Topic("initialization: Glorot variance and truncation", init),
    "mlp": Topic("up projection, ReLU^2, down projection", mlp),
    "relu2": Topic("ReLU squared, compared with ReLU and GELU", relu2),
    "attention": Topic("scores, mask, softmax, weighted values", attention_lesson),
    "block": Topic("attention and MLP around a residual stream", block),
    "residual": Topic("residual connections and the six wirings", residual),
    "requires-grad": Topic("gradients, frozen weights, buffers", requires_grad),
}


def explanation(topic: str, tensor: Any = None, **options: Any) -> Explanation:
    """Explain a topic step by step, on its example or on your own numbers.

    Args:
        topic: one of `TOPICS`.
        tensor: a tensor, an array or nested lists (default: the topic's example). Computed in float32.
        options: options of the topic: eps (norms and blocks), groups (groupnorm), heads (attention and blocks).

    >>> worked = explanation("rmsnorm", [3.0, -4.0, 0.0])
    >>> [step.title for step in worked.steps]
    ['squares', 'mean_square', 'rms', 'scaled', 'result', 'output_rms']
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
            known = f"its options are {' and '.join(chosen.options)}" if chosen.options else "it has no options"
            raise ConfigError(f"{topic} has no option {name}; {known}\nfix: leave {name} out")
    with default_torch_state():
        x = None if tensor is None else as_tensor(tensor)
        return chosen.lesson(x, **options).explain(topic)
