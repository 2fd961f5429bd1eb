"""Step-by-step explanations of layers, on numbers that a reader can check.

`explanation(topic)` returns plain data; `terminal.render` formats it. Each step is a function whose source code is
shown, so text, code and numbers always agree.
"""

from normscope.learning.explain import TOPICS, explanation
from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck

__all__ = ["TOPICS", "Explanation", "ExplanationStep", "ExplanationValue", "ReferenceCheck", "explanation"]
