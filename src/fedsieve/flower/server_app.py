"""The ServerApp: holds a run over the nodes that are connected."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsieve.flower.deployment import serve
from fedsieve.report.progress import Lines

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, context.run_config, Lines())
