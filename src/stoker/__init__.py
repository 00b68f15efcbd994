"""Stoker keeps a machine's local LLM engines fed and in order."""

__version__ = "0.1.0"
