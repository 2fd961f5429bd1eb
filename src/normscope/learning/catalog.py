"""The topics, and `explain`, which runs one of them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from normscope.checks import did_you_mean
from normscope.errors import ConfigError
from normscope.learning.explanation import Explanation
from normscope.learning.inputs import as_tensor
from normscope.learning.lesson import Topic
from normscope.learning.topics import FILES

_MODULES = [import_module(f"normscope.learning.topics.{file}") for file in FILES.values()]
TOPICS: Mapping[str, Topic] = {
    topic.name: topic for module in _MODULES for topic in vars(module).values() if isinstance(topic, Topic)
}


def explain(topic: str, input: Any = None, **options: Any) -> Explanation:
    """Explain a topic step by step, on its example or on your own numbers.

    Args:
        topic: one of `TOPICS`.
        input: a tensor, an array or nested lists (default: the topic's example). Computed in float32.
        options: options of the topic: eps (norms and blocks), groups (groupnorm), heads (attention and blocks).

    >>> worked = explain("rmsnorm", [3.0, -4.0, 0.0])
    >>> [step.title for step in worked.steps]
    ['squares', 'mean_square', 'rms', 'scaled', 'result', 'output_rms']
    >>> worked.step("rms").code, worked.step("rms").value.content.round(4).tolist()
    ('rms = torch.sqrt(mean_square + eps)', [2.886...])
    >>> all(check.within_tolerance for step in worked.steps for check in step.checks)
    True
    """
    if not isinstance(topic, str) or topic not in TOPICS:
        raise ConfigError(f"there is no topic {topic!r}\nfix: {did_you_mean(topic, TOPICS)}")
    chosen = TOPICS[topic]
    for name in options:
        if name not in chosen.options:
            known = f"its options are {' and '.join(chosen.options)}" if chosen.options else "it has no options"
            raise ConfigError(f"{topic} has no option {name}; {known}\nfix: remove {name}")
    return chosen.explain(None if input is None else as_tensor(input), **options)
