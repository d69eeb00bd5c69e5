"""Options that matter only where something else is chosen: alone they would be recorded and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsieve.base.errors import ConfigError
from fedsieve.base.options import options_of
from fedsieve.data.federation import SHARED, ServerOptions

SETS = ("unlabelled", "clean", "noisy", "public")
"""What the server may hold."""


def idle(key: str, flat: Mapping[str, Any]) -> str | None:
    """Why a key changes nothing in these settings, and what would let it; None where it matters."""
    section, dot, name = key.partition(".")
    if not dot:
        return None
    if section == "server":
        return _idle_at_server(name, flat)
    if section == "noise" and flat.get("noise", "none") == "none":
        return "noise is none. Set noise too, for instance noise=symmetric"
    if section == "schedule" and flat.get("schedule") != "exponential":
        return f"schedule is {flat.get('schedule', 'none')}. Set schedule=exponential too"
    if section == "flower" and flat.get("runtime") != "flower":
        return f"runtime is {flat.get('runtime', 'pool')}. Set runtime=flower too"
    if section == "combine" and flat.get("combine") is None:
        return "combine is not set. Set combine too"
    if key == "admit.excess" and flat[key] != "refuse" and flat.get("admit.factor") == 0:
        return "admit.factor is 0, so no update is too long. Set admit.factor too"
    return None


def refuse_idle(flat: Mapping[str, Any]) -> None:
    """FS001 for the first option that changes nothing."""
    for key in flat:
        if why := idle(key, flat):
            raise ConfigError("FS001", f"{key} has no effect: {why}, or leave it out")


def _idle_at_server(name: str, flat: Mapping[str, Any]) -> str | None:
    known = options_of(ServerOptions)
    if name not in known or flat[f"server.{name}"] in (known[name].default, {}):
        return None  # settings that were written out hold every default
    held = {one: bool(flat.get(f"server.{one}")) for one in SETS}
    if name == "noisy_rate" and not held["noisy"]:
        return "the server holds no noisy samples. Set server.noisy too"
    if name == "clean_noise" and not held["clean"]:
        return "the server holds no clean samples. Set server.clean too"
    spoilt = held["noisy"] or (held["clean"] and flat.get("server.clean_noise"))
    if name in ("noise", "noise_options") and not spoilt:
        return "none of the server's labels are made wrong. Set server.noisy, or server.clean and server.clean_noise"
    if name == "unlabelled_from" and not held["clean" if flat["server.unlabelled_from"] == SHARED else "unlabelled"]:
        needed = "clean" if flat["server.unlabelled_from"] == SHARED else "unlabelled"
        return f"the server holds no such samples. Set server.{needed} too"
    if name == "balanced" and not any(held.values()):
        return f"the server holds no samples. Set one of {', '.join(f'server.{one}' for one in SETS)} too"
    return None
