"""Histories, the models that they are compared with, and the verdicts."""
