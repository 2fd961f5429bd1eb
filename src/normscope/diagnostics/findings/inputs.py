"""Batches that are not what they should be: repeated, changed in place, unscaled, padded, without information."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check

CHANGED_BY_MODEL = FindingKind("""
input-changed-in-place: {module} changes its input in place, and with it the data
why: Each pass over the data finds other values there: those that forward left.
fix: use x = x - mean rather than x -= mean, no function that ends in _ on the input, and inplace=False in the first
layer; or pass x.clone()
""")
CHANGED_BY_LOOP = FindingKind("""
input-changed-in-place: the training loop changes its data in place again and again{where}
why: The change adds up: each pass over the data finds other values.
fix: make a new tensor, as in x = x / 255 rather than x /= 255
""")
UNSCALED = FindingKind("""
unscaled-input: {what} of the input of {module} has an rms of {size}
why: Its outputs have an rms of {output rms}. {effect}
fix: standardize each column with the mean and standard deviation of the training data, (x - mean) / std, and divide
pixels by 255
""")
CONSTANT_COLUMNS = FindingKind("""
constant-input: {constant} of {columns} columns of the input never vary
why: They have one value in all {rows} samples, so they carry no information, and act as a large bias.
fix: check how these columns are made (an encoder fitted to other data, a wrong index); remove them if they are constant
""")
ALIKE_ROWS = FindingKind("""
constant-input: all samples of a batch are the same, in each of {batches} batches, while the targets differ
why: The model cannot tell the samples apart, so it can only learn the mean of the targets.
fix: check how a batch is made: expand or repeat where stack is meant, an index that does not change, values that
overflow or are rounded to 0
""")
COLLAPSED_OUTPUT = FindingKind("""
collapsed-output: the model gives the same output for all samples, in each of {losses} losses
why: The inputs and the targets of the samples differ, but the model loses what tells the inputs apart.
fix: look for dead units, a norm or a softmax over the wrong axis, and inputs that are far too small
""")
SAME_BATCH = FindingKind("""
same-batch-repeated: the same batch is repeated {repeated} times in {batches} steps
why: A DataLoader was started {loaders restarted} times, each time for its first batch, so the model sees only that one.
fix: iterate over it (for batch in loader), or create the iterator once, before the loop: batches = iter(loader)
""")
PADDING = FindingKind("""
trains-on-padding: {padded:%} of the targets of the loss are padding (token {token})
why: The model is rewarded for predicting padding after padding, which is easy, and hides how well it does otherwise.
fix: ignore them: cross_entropy(logits, targets, ignore_index={token}), or set them to -100
""")
ORDERED = FindingKind("""
sorted-batches: the data is sorted by label: labels never decrease over {batches} batches with {classes} classes
why: Each batch has samples of one or two classes only, so each step unlearns what the steps before it have learned.
fix: shuffle the data: DataLoader(..., shuffle=True)
""")
SORTED = FindingKind("""
sorted-batches: all samples of a batch have the same label, in each of {batches} batches with {classes} classes
why: Each step teaches the model to predict a single class, and the next step a different one.
fix: shuffle the data: DataLoader(..., shuffle=True)
""")

LARGE_INPUT = 30.0
"""rms of an input. Initializations assume 1; with the default one of nn.Linear, units then reach 30 / sqrt(3) = 17."""

LARGE_COLUMN = 100.0
LARGE_OUTPUT = 10.0
"""rms of the first layer's output. Tanh and sigmoid are flat from 4 on, and a learning rate for inputs of size 1 is 100
times too large for inputs of size 10."""

MOST_COLUMNS = 0.5
MIN_ROWS, MIN_BATCHES, MANY_LOSSES = 32, 3, 10
MIN_REPEATED = 4
"""Repeats after the first, of batches that a new iterator gave."""

MIN_PADDING = 0.1
MIN_CLASSES = 3
"""With two classes, a batch of each is what the discriminator of a GAN gets."""


@check("structural")
def check_changes_in_place(view: RecordView) -> Iterator[Finding]:
    inputs = view.record.inputs
    if inputs.changed_by is not None and inputs.changed_data:
        yield CHANGED_BY_MODEL.found_in(inputs.changed_by, {})
    elif inputs.changed_line:
        yield CHANGED_BY_LOOP.found_in("", {"line": inputs.changed_line}, where=f", in {inputs.changed_line}")


@check("numeric")
def check_scale(view: RecordView) -> Iterator[Finding]:
    """Find large inputs of layers that no norm follows, and whose outputs are large too."""
    for use in view.record.inputs.uses:
        module = view.modules.get(use.module)
        if module is None or module.output is None:
            continue
        if module.output.rms < LARGE_OUTPUT and module.kind not in ("LSTM", "GRU", "RNN"):  # which saturate
            continue
        if any(reader.norm is not None for reader in view.readers.get(use.module, [])):
            continue
        is_column = use.column is not None and use.column_rms >= max(LARGE_COLUMN, 10 * use.other_rms)
        if is_column or use.rms >= LARGE_INPUT:
            what = f"column {use.column}" if is_column else "the whole"
            effect = (
                "Units saturate or give huge activations, and no learning rate suits both this layer and the others."
            )
            if is_column:
                effect = f"The median column has {use.other_rms:.3g}, so the large one hides the others."
            size = use.column_rms if is_column else use.rms
            figures = {"rms": use.rms, "output rms": module.output.rms}
            yield UNSCALED.found_in(use.module, figures, what=what, size=f"{size:.3g}", effect=effect)


@check("structural")
def check_information(view: RecordView) -> Iterator[Finding]:
    """Find inputs and outputs that are the same for all samples."""
    inputs = view.record.inputs
    if inputs.alike_rows >= max(MIN_BATCHES, inputs.batches):
        yield ALIKE_ROWS.found_in("", {"batches": inputs.batches})
    elif inputs.same_outputs >= MANY_LOSSES:
        yield COLLAPSED_OUTPUT.found_in("", {"losses": inputs.same_outputs})
    if inputs.rows >= MIN_ROWS and inputs.columns > 1 and inputs.constant_columns >= MOST_COLUMNS * inputs.columns:
        figures = {"constant": inputs.constant_columns, "columns": inputs.columns, "rows": inputs.rows}
        yield CONSTANT_COLUMNS.found_in("", figures)


@check("structural")
def check_repeats(view: RecordView) -> Iterator[Finding]:
    inputs = view.record.inputs
    if inputs.repeated >= max(MIN_REPEATED, 0.8 * (inputs.batches - 1)):
        figures = {
            "repeated": inputs.repeated,
            "batches": inputs.batches,
            "loaders restarted": inputs.loaders_restarted,
        }
        yield SAME_BATCH.found_in("", figures, "warning" if inputs.loaders_restarted >= inputs.repeated else "note")


@check("structural")
def check_targets(view: RecordView) -> Iterator[Finding]:
    inputs = view.record.inputs
    if inputs.padded_targets >= MIN_PADDING:
        yield PADDING.found_in("", {"padded": inputs.padded_targets}, token=inputs.padding)
    if inputs.single_class_batches > MIN_REPEATED and inputs.classes >= MIN_CLASSES:
        yield SORTED.found_in("", {"batches": inputs.single_class_batches, "classes": inputs.classes})
    if inputs.ordered_batches > MIN_REPEATED and inputs.classes >= MIN_CLASSES:
        yield ORDERED.found_in("", {"batches": inputs.ordered_batches, "classes": inputs.classes})
