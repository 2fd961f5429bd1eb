"""An x-ray to look at: as text in a terminal (`terminal`), and as a page for a browser (`page`)."""
