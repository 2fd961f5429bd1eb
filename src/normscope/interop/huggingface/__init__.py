"""Folders of Hugging Face: a table for each family of models, from which reading and writing are derived."""
