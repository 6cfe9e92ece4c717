"""Hierarchical variational continual learning."""
