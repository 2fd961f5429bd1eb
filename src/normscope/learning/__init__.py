"""Step-by-step explanations of layers, on numbers that a reader can check.

`catalog.explain(topic)` returns plain data; `terminal.render` formats it. Each step is a function whose source code is
shown, so text, code and numbers always agree.
"""
