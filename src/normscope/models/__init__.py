"""Whole models: GPTs, an encoder, a vision transformer and a convnet, each from one frozen config."""
