"""The command line."""

from fedsieve.cli.app import main

__all__ = ["main"]
