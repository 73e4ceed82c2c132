# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an operator may set for a gateway, and everything that is wrong with what was set."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, NamedTuple

from ..kv.datamap import Problem
from ..kv.mapkeys import is_loopback
from . import derive, endpoints, tenants

IDENTITIES = ("api_key", "client_certificate", "auth_request")
# Their names are those of the role's variables without its prefix.
DEFAULTS: dict[str, Any] = {
    "engine_version": "",
    "upstream": "127.0.0.1:8000",
    "engine_key_file": "",
    "listen": "127.0.0.1:8100",
    "tls_certificate": "",
    "tls_key": "",
    "client_ca": "",
    "identity": "api_key",
    "auth_url": "",
    "auth_header": "X-Llmhost-Tenant",
    "tenants": [],
    "label": derive.LABEL,
    "paths": [],
    "no_tool_server": False,
    "max_body_bytes": 8 << 20,
    "metrics_listen": "127.0.0.1:9413",
    "workers": 0,
    "verify": False,
}
_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
_PREFIX = "cache_salt_gateway_"


class Address(NamedTuple):
    """An address to listen on or to ask, and how nginx writes it."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


def address(text: Any) -> Address | None:
    """An IP address with a port, None if the text is none."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})", text) if isinstance(text, str) else None
    if not match or not 0 < int(match.group(3)) < 65536:
        return None
    try:
        return Address(ipaddress.ip_address(match.group(1) or match.group(2)), int(match.group(3)))
    except ValueError:
        return None


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Numbers as numbers: templates of ansible-core before 2.19 make texts of them."""
    numbers = {key for key, default in DEFAULTS.items() if isinstance(default, int) and not isinstance(default, bool)}
    return {
        key: int(value)
        if key in numbers and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value)
        else value
        for key, value in given.items()
    }


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with defaults filled in and the paths that are open."""
    settings = {**DEFAULTS, **_plain(given)}
    settings["paths"] = list(settings["paths"] or endpoints.defaults(str(settings["engine_version"])))
    return settings


def problems(given: dict[str, Any], host: str) -> list[Problem]:
    """Everything that is wrong with the settings of a host's gateway."""
    wrong_types = _types(_plain(given))
    if wrong_types:
        return [Problem(host, "", key, why, fix) for key, why, fix in wrong_types]
    settings = complete(given)
    found = [(_PREFIX + key, why, fix) for key, why, fix in _places(settings) + _identity(settings) + _engine(settings)]
    found += tenants.problems(settings["tenants"], settings["identity"])
    found += _no_persist(settings)
    return [Problem(host, "", key, why, fix) for key, why, fix in found]


def _types(given: dict[str, Any]) -> list[tenants.Reason]:
    found = [
        (_PREFIX + str(key), "there is no such setting", "see the role's README")
        for key in given
        if key not in DEFAULTS
    ]
    for key, default in DEFAULTS.items():
        value = given.get(key, default)
        if not isinstance(value, type(default)) or (isinstance(value, bool) and not isinstance(default, bool)):
            found.append((_PREFIX + key, f"it is no {type(default).__name__}", "see the role's README"))
    if not found and not all(isinstance(path, str) for path in given.get("paths", [])):
        found.append((_PREFIX + "paths", "it is no list of texts", "see the role's README"))
    return found


def _places(settings: dict[str, Any]) -> list[tenants.Reason]:
    found = []
    taken: dict[tuple[str, int], str] = {}
    for key in ("listen", "metrics_listen", "upstream"):
        where = address(settings[key])
        if where is None:
            reason = f"{settings[key]!r} is no IP address with a port"
            if str(settings[key]).startswith("unix:"):
                reason = "the engine's UMask=0077 would close its socket to the gateway"
            found.append((key, reason, "write for example " + DEFAULTS[key]))
            continue
        if taken.setdefault((str(where.ip), where.port), key) != key:
            found.append((key, f"{where} is {taken[str(where.ip), where.port]} already", "give each its own port"))
        if key != "listen" and not where.ip.is_loopback:
            why = "the way to the engine is not encrypted" if key == "upstream" else "metrics tell tenants' names"
            found.append((key, f"{where} is not on this host, and {why}", "use an address of the loopback interface"))
        if key == "listen" and not where.ip.is_loopback and not settings["tls_certificate"]:
            fix = "set tls_certificate and tls_key, or listen on the loopback interface behind what ends TLS"
            found.append((key, f"{where} is open to the network and API keys would cross it in clear", fix))
    for key in ("tls_certificate", "tls_key", "client_ca", "engine_key_file"):
        if settings[key] and not _PATH.fullmatch(settings[key]):
            found.append((key, "it is no absolute path of letters, digits and ._-", "name a file on the host so"))
    if bool(settings["tls_certificate"]) != bool(settings["tls_key"]):
        found.append(("tls_key", "certificate and key go together", "set tls_certificate and tls_key"))
    if not settings["engine_key_file"]:
        fix = "start vLLM with an API key of its own (VLLM_API_KEY) and name the file on the host that holds it"
        found.append(("engine_key_file", "whoever is on the host could ask the engine past the gateway", fix))
    if not 1 << 16 <= settings["max_body_bytes"] <= 64 << 20:
        fix = "choose 65536 to 67108864 (64 MiB); every request is held in memory"
        found.append(("max_body_bytes", "{} is out of range".format(settings["max_body_bytes"]), fix))
    if not 0 <= settings["workers"] <= 64:
        found.append(("workers", "{} is out of range".format(settings["workers"]), "choose 0 (one a core) to 64"))
    if not derive.EPOCH.fullmatch(settings["label"]):
        found.append(("label", "it is not 1 to 64 of A-Z, a-z, 0-9, '.', _ and -", "choose such a label"))
    return found


def _identity(settings: dict[str, Any]) -> list[tenants.Reason]:
    found = []
    identity, url = settings["identity"], settings["auth_url"]
    if identity not in IDENTITIES:
        found.append(("identity", f"{identity!r} is unknown", "choose one of " + ", ".join(IDENTITIES)))
    if identity == "client_certificate" and not (settings["client_ca"] and settings["tls_certificate"]):
        fix = "set tls_certificate, tls_key and client_ca (the CA that signed the tenants' certificates)"
        found.append(("identity", "client certificates need TLS and their CA", fix))
    if (identity == "auth_request") != bool(url):
        found.append(("auth_url", "it goes with identity auth_request", "set both or neither"))
    match = re.fullmatch(r"(https?)://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?", url)
    if url and not match:
        found.append(("auth_url", f"{url!r} is no plain http or https URL", "write https://HOST[:PORT]/PATH"))
    elif url and match and match.group(1) == "http" and not is_loopback(match.group(2)):
        fix = "use https, or a service on the loopback interface"
        found.append(("auth_url", "clients' credentials would cross the network in clear", fix))
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", settings["auth_header"]):
        found.append(("auth_header", "it is no name of a header", "write for example " + DEFAULTS["auth_header"]))
    return found


def _engine(settings: dict[str, Any]) -> list[tenants.Reason]:
    version = settings["engine_version"]
    why = endpoints.version_problem(version)
    if why:
        fix = "set it to the version that runs, %d.%d to %d.%d" % (*endpoints.OLDEST, *endpoints.NEWEST)
        return [("engine_version", why, fix)]
    found: list[tenants.Reason] = []
    for path in settings["paths"]:
        reason = endpoints.path_problem(path, version, settings["no_tool_server"])
        if reason:
            fix = "leave it out"
            if reason == endpoints.TOOL_TURNS:
                fix = "leave it out, or set no_tool_server: true if vLLM runs without --tool-server"
            found.append(("paths", f"{path} may not be opened: {reason}", fix))
    if len(set(settings["paths"])) != len(settings["paths"]):
        found.append(("paths", "a path stands twice", "remove one"))
    return found


def _no_persist(settings: dict[str, Any]) -> list[tenants.Reason]:
    """A tenant that must not be stored needs an engine that can be told so."""
    version = endpoints.parse_version(settings["engine_version"])
    if version is None or version >= endpoints.NO_PERSIST:
        return []
    known = [tenant for tenant in settings["tenants"] if isinstance(tenant, dict)]
    names = [tenant.get("name") for tenant in known if tenant.get("no_persist")]
    why = "no_persist needs vLLM %d.%d or newer: older ones store every prompt" % endpoints.NO_PERSIST
    return [(f"tenant {name}", why, "upgrade vLLM or take no_persist away") for name in names]
