"""Reports of outcomes: HTML page, Markdown with figures, and terminal."""
