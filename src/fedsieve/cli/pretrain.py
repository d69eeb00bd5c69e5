"""The command `fedsieve pretrain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from fedsieve.cli.arguments import Code, Json, Keys, Quiet, code_of, interruptible, settings_of


def pretrain(keys: Keys = None, quiet: Quiet = False, as_json: Json = False, allow_code: Code = False) -> None:
    """Learn an encoder without labels. Example: fedsieve pretrain method=simclr clients=5 rounds=10"""
    from fedsieve import start
    from fedsieve.report.progress import chosen_progress
    from fedsieve.settings.config import resolve
    from fedsieve.settings.pretraining import for_pretraining

    settings, code = settings_of(keys), code_of(keys, allow_code)
    with interruptible(resolve(for_pretraining(settings), allow_code=code).folder(), code):
        folder, summary = start.pretrain(settings, chosen_progress(quiet), allow_code=code)
    typer.echo(json.dumps(summary | {"folder": str(folder)}, indent=1) if as_json else told(folder, summary))


def told(folder: Path, summary: dict[str, Any]) -> str:
    """What a person wants to know of an encoder, and what it is used for."""
    references = ", ".join(f"{name} {value:.4f}" for name, value in (summary["reference_probes"] or {}).items())
    tested = "features: not tested, as no rows are kept for it\n"
    if summary["knn_accuracy"] is not None:
        tested = (
            f"features: kNN accuracy {summary['knn_accuracy']:.4f} (without learning: {references}), "
            f"linear probe {summary['linear_accuracy']:.4f}, "
            f"spread {summary['feature_spread']:.3f}, rank {summary['feature_rank']:.1f}\n"
        )
    return (
        f"{tested}encoder {folder}/model.safetensors: take it as ksim.features=FILE, fb-nll.features=FILE or --map FILE"
    )
