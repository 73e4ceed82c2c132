# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Everything that nginx, systemd and the last hop read from us, as text: pure functions of the settings."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from . import derive, endpoints
from . import settings as settings_

HEADER = "# Written by llmhost.hardening; changes here are lost.\n"
UNIT = "llmhost-gateway.service"
ACCOUNT = "llmhost-gateway"
MODULES = "/usr/lib/nginx/modules"


class Places(NamedTuple):
    """Where the files lie that nginx reads and writes."""

    config: str = "/etc/llmhost/gateway/nginx.conf"
    tenants: str = "/etc/llmhost/gateway/tenants"
    key: str = "/etc/llmhost/gateway/salt.key"
    verify: str = "/etc/llmhost/gateway/verify.json"
    lua: str = "/usr/local/lib/llmhost/gateway"
    run: str = "/run/llmhost-gateway"
    credentials: str = "/run/credentials/" + UNIT
    access_log: str = "syslog:server=unix:/dev/log,nohostname,tag=llmhost_gateway"
    error_log: str = "stderr"


HOST = Places()


def _lua(value: str) -> str:
    """A Lua string; settings hold no quote, backslash or line end."""
    return f'"{value}"'


def _credentials(settings: dict[str, Any]) -> dict[str, str]:
    """Name of a credential to the file that systemd takes it from."""
    found = {"salt.key": HOST.key, "engine.key": settings["engine_key_file"]}
    if settings["tls_certificate"]:
        found["tls.crt"], found["tls.key"] = settings["tls_certificate"], settings["tls_key"]
    if settings["client_ca"]:
        found["client-ca.crt"] = settings["client_ca"]
    return found


def _listener(settings: dict[str, Any], places: Places) -> list[str]:
    where = settings_.address(settings["listen"])
    if not settings["tls_certificate"]:
        return [f"listen {where};"]
    lines = [
        f"listen {where} ssl;",
        f"ssl_certificate {places.credentials}/tls.crt;",
        f"ssl_certificate_key {places.credentials}/tls.key;",
        "ssl_protocols TLSv1.2 TLSv1.3;",
        "ssl_session_tickets off;",
    ]
    if settings["client_ca"]:
        verify = "on" if settings["identity"] == "client_certificate" else "optional"
        lines += [f"ssl_client_certificate {places.credentials}/client-ca.crt;", f"ssl_verify_client {verify};"]
    return lines


def _auth(settings: dict[str, Any]) -> list[str]:
    if settings["identity"] != "auth_request":
        return []
    header = settings["auth_header"].lower().replace("-", "_")
    return [
        "auth_request /llmhost-auth;",
        f"auth_request_set $llmhost_auth_tenant $upstream_http_{header};",
        "location = /llmhost-auth {",
        "    internal;",
        "    proxy_pass {};".format(settings["auth_url"]),
        "    proxy_pass_request_headers on;",
        "    proxy_pass_request_body off;",
        "    proxy_ssl_server_name on;",
        "    proxy_ssl_verify on;",
        "    proxy_ssl_verify_depth 4;",
        "    proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;",
        '    proxy_set_header Content-Length "";',
        "    proxy_set_header X-Original-URI $uri;",
        # An answer of the client's own making must not come back as the service's.
        '    proxy_set_header {} "";'.format(settings["auth_header"]),
        "}",
    ]


def _paths(settings: dict[str, Any]) -> str:
    version = settings["engine_version"]
    entries = (
        f'["{path}"] = {{ no_persist = {str(endpoints.can_skip_store(path, version)).lower()} }}'
        for path in settings["paths"]
    )
    return "{ " + ", ".join(entries) + " }"


def nginx_conf(settings: dict[str, Any], places: Places = HOST, code: str = "") -> str:
    """The configuration of the gateway's own nginx; code names the Lua that goes with it."""
    return _nginx_conf(settings, places, config_id(settings, places, code))


def config_id(settings: dict[str, Any], places: Places = HOST, code: str = "") -> str:
    """What the running gateway calls the configuration and the code that it has."""
    return derive.text_id((_nginx_conf(settings, places, "") + code).encode())


def _indent(lines: list[str], depth: int) -> str:
    return "\n".join(" " * depth + line for line in lines)


def _nginx_conf(settings: dict[str, Any], places: Places, config_id: str) -> str:
    limit = settings["max_body_bytes"]
    locations = [f"location = {path} {{ proxy_pass http://llmhost_engine{path}; }}" for path in settings["paths"]]
    temporary = [
        f"{kind}_temp_path {places.run}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    ]
    return f"""{HEADER}\
load_module {MODULES}/ndk_http_module.so;
load_module {MODULES}/ngx_http_lua_module.so;
daemon off;
pid {places.run}/nginx.pid;
error_log {places.error_log} error;
worker_processes {settings["workers"] or "auto"};
# Old workers finish their answers after a reload, but not for ever.
worker_shutdown_timeout 600s;
events {{
    worker_connections 4096;
}}
http {{
    server_tokens off;
    default_type application/json;
    # No argument and no text of a client's in a log; an argument would be refused before this is written.
    log_format llmhost 'tenant=$llmhost_tenant path=$llmhost_path status=$status reason=$llmhost_reason '
                       'in=$request_length out=$body_bytes_sent seconds=$request_time';
    access_log {places.access_log} llmhost;
    # Below /run: what nginx must have, memory and no disk.
{_indent(temporary, 4)}
    lua_package_path "{places.lua}/?.lua;/usr/share/lua/5.1/?.lua;;";
    lua_shared_dict llmhost_metrics 4m;
    init_by_lua_block {{
        llmhost = require "llmhost_gateway"
        llmhost.init {{
            key = {_lua(places.credentials + "/salt.key")},
            engine_key = {_lua(places.credentials + "/engine.key")},
            tenants = {_lua(places.tenants)},
            label = {_lua(settings["label"])},
            identity = {_lua(settings["identity"])},
            config_id = {_lua(config_id)},
            paths = {_paths(settings)},
        }}
    }}
    init_worker_by_lua_block {{ llmhost.init_worker() }}
    client_header_timeout 15s;
    client_body_timeout 30s;
    send_timeout 600s;
    keepalive_timeout 75s;
    keepalive_requests 1000000;
    reset_timedout_connection on;
    upstream llmhost_engine {{
        server {settings_.address(settings["upstream"])};
        keepalive 64;
        keepalive_requests 1000000;
    }}
    server {{
{_indent(_listener(settings, places), 8)}
        set $llmhost_tenant "-";
        set $llmhost_path "-";
        set $llmhost_reason "-";
        set $llmhost_authorization "";
        set $llmhost_auth_tenant "";
        # Before anything looks at the size: nginx quotes the request line when a body is too large.
        if ($is_args) {{
            return 404;
        }}
        # The whole body in memory, or refused.
        client_max_body_size {limit};
        client_body_buffer_size {limit};
        client_body_in_single_buffer on;
        access_by_lua_block {{ llmhost.access() }}
        body_filter_by_lua_block {{ llmhost.body() }}
        log_by_lua_block {{ llmhost.log() }}
        # Of the client's headers only Accept gets through.
        proxy_pass_request_headers off;
        proxy_set_header Host $proxy_host;
        proxy_set_header Connection "";
        proxy_set_header Accept $http_accept;
        proxy_set_header Content-Type application/json;
        proxy_set_header Authorization $llmhost_authorization;
        proxy_set_header X-Llmhost-Tenant $llmhost_tenant;
        proxy_http_version 1.1;
        proxy_buffering off;
        proxy_cache off;
        proxy_max_temp_file_size 0;
        proxy_next_upstream off;
        proxy_connect_timeout 5s;
        proxy_send_timeout 60s;
        proxy_read_timeout 3600s;
        proxy_ignore_headers X-Accel-Redirect X-Accel-Buffering X-Accel-Charset X-Accel-Expires X-Accel-Limit-Rate;
        location / {{
            client_max_body_size 0;
            return 404;
        }}
{_indent(locations + _auth(settings), 8)}
    }}
    server {{
        listen {settings_.address(settings["metrics_listen"])};
        access_log off;
        location = /metrics {{
            content_by_lua_block {{ llmhost.metrics() }}
        }}
        location / {{
            return 404;
        }}
    }}
}}
"""


def unit(settings: dict[str, Any], places: Places = HOST) -> str:
    """The gateway's own unit; an operator's nginx.service is not touched."""
    credentials = "\n".join(f"LoadCredential={name}:{path}" for name, path in sorted(_credentials(settings).items()))
    where = settings_.address(settings["listen"])
    low = "CAP_NET_BIND_SERVICE" if where and where.port < 1024 else ""
    # Not the log of an operator's nginx, which it would open before it reads the configuration.
    nginx = f"/usr/sbin/nginx -e stderr -c {places.config}"
    return f"""{HEADER}\
[Unit]
Description=Cache salts of the tenants, in front of the LLM server
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={ACCOUNT}
Group={ACCOUNT}
{credentials}
ExecStartPre={nginx} -t -q
ExecStart={nginx}
ExecReload={nginx} -t -q
ExecReload=/bin/kill -HUP $MAINPID
KillMode=mixed
KillSignal=SIGQUIT
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
RuntimeDirectory={places.run.rpartition("/")[2]}
RuntimeDirectoryMode=0700
UMask=0077
# A core or a swapped page would hold prompts and the key.
LimitCORE=0
CoredumpFilter=0x0
MemorySwapMax=0
LimitNOFILE=16384
CapabilityBoundingSet={low}
AmbientCapabilities={low}
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def verify(settings: dict[str, Any], key: bytes) -> str:
    """What the last hop compares with: digests of the tenants' salts, neither a salt nor the key."""
    digests = {
        tenant["name"]: derive.hashlib.sha256(
            derive.salt(key, tenant["name"], tenant["epoch"], settings["label"]).encode()
        ).hexdigest()
        for tenant in settings["tenants"]
    }
    document = {"schema": 1, "paths": settings["paths"], "tenants": digests}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
