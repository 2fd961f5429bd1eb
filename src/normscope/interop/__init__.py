"""In and out: weights and configs of other projects."""
