"""The page's section on what left each client."""

from __future__ import annotations

from fedsieve.report.folder import Runs
from fedsieve.report.section import Section
from fedsieve.report.tables import Table, count


def disclosure_section(runs: Runs) -> Section | None:
    told = {run.method: run.summary for run in reversed(runs.runs) if run.summary and run.summary.disclosure}
    if not told:
        return None
    ways = {"up": "client to server", "down": "server to client"}
    users: dict[tuple[str, ...], list[str]] = {}
    for method in reversed(told):
        for item in told[method].disclosure:
            way = ways.get(item.direction, item.direction)
            users.setdefault((way, item.part, item.name, item.shape, count(item.bytes), item.stage), []).append(method)
    rows = tuple((*row, ", ".join(methods)) for row, methods in users.items())
    answers = {
        True: "Works under secure aggregation, as the server needs no more than sums over clients: ",
        False: "Does not work under secure aggregation, as the server looks at what single clients send: ",
    }
    able = {
        answer: [method for method in reversed(told) if told[method].secure_aggregation is answer] for answer in answers
    }
    text = " ".join(f"{answers[answer]}{', '.join(methods)}." for answer, methods in able.items() if methods)
    talked = [
        f"{method} {of.bytes_talk / 1e6:.2f} MB or {of.bytes_talk / of.bytes_exchange:.2f} exchanges"
        for method, of in reversed(told.items())
        if of.bytes_talk and of.bytes_exchange
    ]
    if talked:
        text += f" An exchange is the model to every client and back. Conversations took: {'; '.join(talked)}."
    header = ("direction", "part", "what", "shape", "bytes", "stage", "method")
    return Section("What left each client", text, table=Table(header, rows))
