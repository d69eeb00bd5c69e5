"""Without the extra `flower` there are no nodes to attack."""

from importlib.util import find_spec

from fedsieve.runtime.flower.quiet import hush

collect_ignore = [] if find_spec("flwr") else ["test_node_trust.py", "test_node_words.py"]
hush()
