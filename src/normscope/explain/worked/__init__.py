"""Layers worked through step by step, on numbers that a reader can check.

`explanation(topic)` gives plain data; `rendering` makes text of it. Every step is a function whose source is shown, so
words, code and numbers cannot drift apart.
"""

from normscope.explain.worked.explanation import Check, Explanation, Step, Value
from normscope.explain.worked.topics import TOPICS, explanation

__all__ = ["TOPICS", "Check", "Explanation", "Step", "Value", "explanation"]
