"""Conversations as training data: messages, chat templates, and which tokens the model has to write."""
