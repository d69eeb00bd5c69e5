"""Starting and resuming runs. Workers are started first, so that they load PyTorch while this process does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedsieve.base.ending import load_pytorch, typed
from fedsieve.base.errors import ConfigError
from fedsieve.base.own_code import AllowCode
from fedsieve.evaluate.schema import File
from fedsieve.methods import build_method
from fedsieve.report.progress import Progress
from fedsieve.runs.findings import Findings, findings
from fedsieve.runs.folder import check_free, read_config
from fedsieve.runs.recommendation import Advice, Facts, advice, facts_of
from fedsieve.runtime.crew import Crew
from fedsieve.settings.auditing import AUDIT, about_data, audit_options, for_auditing
from fedsieve.settings.config import FREE, Config, resolve
from fedsieve.settings.pretraining import ENCODERS, for_pretraining
from fedsieve.settings.splitting import federation_of


def run(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """One run from its settings; returns its folder and its summary."""
    config = resolve(settings, allow_code=allow_code)
    folder = config.folder()
    with typed():
        check_free(folder, config.top.overwrite)
        return folder, _start(config, folder, progress, resuming=False)


def pretrain(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """One run that learns an encoder; settings that are not given are those of pre-training."""
    config = resolve(for_pretraining(settings), allow_code=allow_code)
    load_pytorch()
    if build_method(config.top.method, config.options, config.code).test != "probe":
        known = ", ".join(ENCODERS)
        raise ConfigError("FS002", f"method={config.top.method} trains a classifier, not an encoder. Take {known}")
    return run(for_pretraining(settings), progress, allow_code=allow_code)


def audit(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """One run that judges labels; settings that are not given are those of an audit."""
    config = resolve(for_auditing(settings), allow_code=allow_code)
    if AUDIT not in config.top.method.split("+"):
        raise ConfigError("FS002", f"method={config.top.method} is no audit. Take {AUDIT}, or add it: {AUDIT}+fedrn")
    return run(for_auditing(settings), progress, allow_code=allow_code)


def recommend(
    settings: Mapping[str, Any], progress: Progress, *, allow_code: AllowCode = False
) -> tuple[Facts, Advice]:
    """What is known of a federation before any training, and which method to take; its labels are audited for it.

    Of the settings those of the data count. What the audit leaves is for this alone, and is not kept.
    """
    given = about_data(settings)
    with typed():
        federation, _ = federation_of(resolve(for_auditing(given), allow_code=allow_code))
    found: list[Findings] = []
    look = audit_options(given)
    if facts_of(federation, found, look).labelled:
        with TemporaryDirectory(prefix="fedsieve-") as place:
            folder, _ = audit({**given, "out": str(Path(place) / AUDIT)}, progress, allow_code=allow_code)
            found = findings(folder)
    facts = facts_of(federation, found, look)
    return facts, advice(facts)


def resume(
    folder: Path, progress: Progress, changes: Mapping[str, Any] = {}, *, allow_code: AllowCode = False
) -> tuple[Path, dict[str, Any]]:
    """Go on with a run from its last checkpoint. Only keys that do not alter results may change."""
    config = read_config(folder, allow_code=allow_code)
    if (folder / File.NODES).exists():
        raise ConfigError(
            "FS007",
            f"{folder}: its clients are Flower nodes. Go on with it by starting the Flower app again (`flwr run`)",
        )
    for key in changes:
        if key not in FREE:
            raise ConfigError(
                "FS001", f"'{key}' cannot change when a run is resumed. You may set {', '.join(sorted(FREE))}"
            )
    with typed():
        return folder, _start(config.with_keys(**changes), folder, progress, resuming=True)


def _start(config: Config, folder: Path, progress: Progress, *, resuming: bool) -> dict[str, Any]:
    if config.top.runtime == "flower":
        from fedsieve.flower.simulation import simulate

        return simulate(config, folder, progress, resuming=resuming)
    crew = Crew(config.top.workers) if config.top.runtime == "pool" else None
    try:
        load_pytorch()
        from fedsieve.runs.session import run_session  # which uses it
        from fedsieve.runs.venue import ThisMachine

        return run_session(config, folder, ThisMachine(crew), progress, resuming=resuming)
    finally:
        if crew is not None:
            crew.close()
