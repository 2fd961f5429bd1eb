"""Explanations that a person can check: drawings of scopes, and numbers worked step by step."""
