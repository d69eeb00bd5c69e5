"""A Grid in this process: every node is a call of the ClientApp, so that faults can be staged without processes."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsieve.flower.client_app import app

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower sets them before it calls an app


class GridHere(Grid):
    """Nodes by id with their node configuration. `spoil(node, message, reply)` may change or drop a reply."""

    def __init__(self, nodes, spoil=lambda node, message, reply: [reply]):
        self.nodes = dict(nodes)
        self.spoil = spoil
        self.kinds = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{len(self.kinds)}-{number}"
        for message in reversed(messages):  # the order of completion is nobody's promise
            node = message.metadata.dst_node_id
            context = Context(1, node, self.nodes[node], RecordDict(), {})
            replies += self.spoil(node, message, app(message, context))
        self.kinds.append(messages[0].metadata.message_type)
        return replies


def failure(message, reason="gone"):
    """As the SuperLink makes it up: from its own node, in answer to the message."""
    return Message(Error(3, reason), reply_to=message)
