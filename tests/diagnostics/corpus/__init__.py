"""Faults that people really make, and healthy setups, as whole training loops.

The faults follow collections of real ones: the silent errors of TrainCheck, the taxonomies of DeepFD, DEFault and
AUTOTRAINER, and questions in forums. Half of them was never looked at while findings were written.

    python -m tests.diagnostics.corpus tuning
"""
