"""The ClientApp: serves every hook of every method, one message at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsieve.core.host import Host
from fedsieve.core.types import Answer, Up
from fedsieve.flower.briefing import Briefing
from fedsieve.flower.node import host_of, introduce, keep_public, state_folder, write_labels
from fedsieve.flower.records import Packer, unpack
from fedsieve.flower.telling import tell
from fedsieve.flower.vetting import NodeConfig
from fedsieve.flower.virtual import simulated_states
from fedsieve.flower.weights import held_weights, keep_file

app = ClientApp()


@app.query("greet")
def greet(message: Message, context: Context) -> Message:
    """Check the data, say what they are, and prove who says so."""

    def work(briefing: Briefing) -> Any:
        return introduce(context.node_config, briefing, str(unpack(message.content)["challenge"])).said()

    return _reply(message, work)


@app.query("public")
def public(message: Message, context: Context) -> Message:
    """Keep the public samples for as long as the run lasts."""

    def work(briefing: Briefing) -> Any:
        return keep_public(context.node_config, briefing, unpack(message.content))

    return _reply(message, work)


@app.query("weights")
def weights(message: Message, context: Context) -> Message:
    """Say by their hashes which of the weights that the run names are here."""
    node = context.node_config
    return _reply(message, lambda briefing: held_weights(node, state_folder(node), briefing))


@app.query("file")
def file(message: Message, context: Context) -> Message:
    """Keep a file of weights."""

    def work(briefing: Briefing) -> Any:
        sent = unpack(message.content)
        return keep_file(state_folder(context.node_config), briefing, str(sent["key"]), sent["content"])

    return _reply(message, work)


@app.train("round")
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    return _client_does(Host.train, message, context.node_config)


@app.query("answer")
def answer(message: Message, context: Context) -> Message:
    """One answer of a conversation."""
    return _client_does(Host.answer, message, context.node_config)


@app.evaluate("own")
def evaluate(message: Message, context: Context) -> Message:
    """Predictions of the client's own net for the server's test samples."""

    def work(briefing: Briefing) -> Any:
        mail, models, rows, samples = unpack(message.content)
        return host_of(context.node_config, briefing, samples).test_client(briefing.client, mail, models, rows)

    return _reply(message, work)


def _client_does(step: Callable[[Host, int, Any], Up | Answer], message: Message, node: NodeConfig) -> Message:
    """A step that may change what the client keeps, its labels among it."""

    def work(briefing: Briefing) -> Up | Answer:
        host = host_of(node, briefing)
        done = step(host, briefing.client, unpack(message.content))
        if simulated_states() is None:
            write_labels(node, briefing, host, done.version)
        return done

    return _reply(message, work)


def _reply(message: Message, work: Callable[[Briefing], Any]) -> Message:
    """What the work returns, or in its place what went wrong: Flower would pass on only the name of an exception."""
    try:
        done = work(Briefing.of(message.content))
    except Exception as problem:
        done = tell(problem)
    return Message(Packer().pack(done), reply_to=message)
