"""Outcomes as people want to see them: a page, pictures, words in the terminal."""
