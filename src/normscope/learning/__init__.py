"""Layers worked through step by step, on numbers that a reader can check.

`explanation(topic)` gives plain data; `rendering` makes text of it. Every step is a function whose source is shown, so
words, code and numbers cannot drift apart.
"""

from normscope.learning.explain import TOPICS, explanation
from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck

__all__ = ["TOPICS", "Explanation", "ExplanationStep", "ExplanationValue", "ReferenceCheck", "explanation"]
