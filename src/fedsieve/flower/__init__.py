"""Clients as nodes of Flower: its simulation on one machine, or SuperNodes on machines of their own.

Needs the extra `flower`. Every module here may import flwr; none is imported unless a run asks for it.
"""
