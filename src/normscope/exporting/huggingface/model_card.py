"""The README.md of a Hugging Face folder: what the model is, how it was trained, how to use it."""

from normscope._version import __version__
from normscope.exporting.library_tokenizer import eos_name
from normscope.exporting.model_source import ModelSource

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

{parameters:,} parameters ({dtype}), {architecture}, exported by normscope {version}.

| | |
|---|---|
| depth, width, heads | {depth}, {width}, {heads} |
| context | {context} tokens |
| vocabulary | {vocab_size:,} tokens ({tokenizer}) |
{figures}
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
inputs = tokenizer({prompt!r}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64, do_sample=True, temperature=0.8)[0]))
```
{note}"""
_NOTE = """
The tokenizer reads `{eos}` in a text as the end-of-text token; `split_special_tokens=True` reads it as text, as
normscope does.
"""
_FIGURES = (
    ("trained for", "step {:,} of {:,}", ("step", "steps")),
    ("validation loss", "{:.4f} nats per token", ("loss",)),
    ("bits per byte", "{:.4f}", ("bits_per_byte",)),
    ("entropy floor", "{:.4f} bits per byte", ("floor",)),
)


def model_card(source: ModelSource, architecture: str, dtype: str) -> str:
    """Return the model card."""
    eos = eos_name(source.tokenizer)
    config, facts = source.model.config, source.facts
    figures = [
        f"| {label} | {text.format(*(facts[name] for name in names))} |\n"
        for label, text, names in _FIGURES
        if all(facts.get(name) is not None for name in names)
    ]
    return _CARD.format(
        name=source.name,
        parameters=source.model.parameter_count(),
        dtype=dtype,
        architecture=architecture,
        version=__version__,
        depth=config.depth,
        width=config.width,
        heads=config.heads,
        context=config.context,
        vocab_size=source.tokenizer.vocab_size,
        tokenizer=source.tokenizer.kind,
        figures="".join(figures),
        prompt=source.prompt or "Once upon a time",
        note="" if eos is None else _NOTE.format(eos=eos),
    )
