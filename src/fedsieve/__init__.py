"""FedSieve: federated learning when part of the labels are wrong."""

__version__ = "0.1.0"
