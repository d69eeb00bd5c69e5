"""Serving a review until the reader ends it."""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Callable

from fedsieve.base.error_words import as_ours
from fedsieve.base.errors import ConfigError
from fedsieve.review.desk import Desk

HERE = "127.0.0.1"
"""No other machine reaches it."""


def serve(desk: Desk, port: int, *, show: bool, say: Callable[[str], None]) -> None:
    """Until an interrupt. Says the address, and opens it in a browser if asked to."""
    try:
        import uvicorn

        from fedsieve.review.server import review_app
    except ImportError:
        raise ConfigError(
            "FS008", "the review page needs the packages starlette and uvicorn. Run `pip install fedsieve[review]`"
        ) from None
    listening = _listening(port)
    port = listening.getsockname()[1]
    app = review_app(desk, port)
    address = f"http://{HERE}:{port}/?token={app.token}"
    say(f"review of {desk.subject.owner} by {desk.sitting.reader}: {address}")
    say("the address is for you alone; Ctrl+C ends, and every decision is already on disk")
    threading.Thread(target=_prepare, args=[desk, say], daemon=True).start()
    if show:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="off", ws="none", loop="asyncio",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    try:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def _prepare(desk: Desk, say: Callable[[str], None]) -> None:
    desk.prepare()
    if desk.trouble is not None:
        say(f"no similar rows can be shown: {as_ours(desk.trouble)}")


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HERE, port))
        listening.listen()
    except OSError as problem:
        listening.close()
        raise ConfigError("FS002", f"--port {port}: {problem.strerror}. Choose another, or leave it out") from None
    return listening
