"""Step-by-step explanations of layers, on numbers that a reader can check.

`explain(topic)` returns plain data; `terminal.render` formats it. Each step is a function whose source code is
shown, so text, code and numbers always agree.
"""

from normscope.learning.catalog import TOPICS, explain
from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck

__all__ = ["TOPICS", "Explanation", "ExplanationStep", "ExplanationValue", "ReferenceCheck", "explain"]
