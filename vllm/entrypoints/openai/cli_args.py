# SPDX-License-Identifier: Apache-2.0
"""Options of the HTTP server itself; those of the engine are `EngineArgs`."""

import argparse
import json
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from vllm import envs
from vllm.exceptions import ConfigError


def _cli(doc: str, **argument: Any) -> dict[str, Any]:
    return {"doc": doc, "argument": argument}


def _json_list(text: str) -> list[str]:
    value = json.loads(text)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError
    return value


_json_list.__name__ = "JSON list of strings"


def _default(f: "Field[Any]") -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendArgs:
    """The HTTP server's options; each field is one option of `vllm serve`."""

    host: str = field(
        default="127.0.0.1", metadata=_cli("Address to listen on; 0.0.0.0 opens it to the network.")
    )
    port: int = field(
        default=8000, metadata=_cli("TCP port; 0 takes a free one and logs it.", type=int)
    )
    uds: str | None = field(
        default=None, metadata=_cli("Unix socket to listen on instead of host and port.")
    )
    api_key: list[str] = field(
        default_factory=list,
        metadata=_cli(
            "Key that clients must send as a bearer token; repeat for several. Covers every route "
            "but /health. Default: the variable VLLM_API_KEY.",
            action="append",
        ),
    )
    root_path: str = field(
        default="", metadata=_cli("Path prefix under which a proxy serves this server.")
    )
    allowed_origins: list[str] = field(
        default_factory=list,
        metadata=_cli(
            'CORS: origins allowed, as JSON, e.g. ["*"]. None by default.', type=_json_list
        ),
    )
    allowed_methods: list[str] = field(
        default_factory=lambda: ["*"], metadata=_cli("CORS: methods, as JSON.", type=_json_list)
    )
    allowed_headers: list[str] = field(
        default_factory=lambda: ["*"], metadata=_cli("CORS: headers, as JSON.", type=_json_list)
    )
    allow_credentials: bool = field(
        default=False, metadata=_cli("CORS: allow cookies.", action="store_true")
    )
    ssl_keyfile: str | None = field(default=None, metadata=_cli("Private key file for HTTPS."))
    ssl_certfile: str | None = field(default=None, metadata=_cli("Certificate file for HTTPS."))
    ssl_ca_certs: str | None = field(
        default=None, metadata=_cli("CA file to check client certificates with.")
    )
    ssl_cert_reqs: int = field(
        default=0, metadata=_cli("Client certificates: 0 none, 1 optional, 2 required.", type=int)
    )
    enable_fastapi_docs: bool = field(
        default=False, metadata=_cli("Serve /docs, /redoc and /openapi.json.", action="store_true")
    )
    max_request_body_bytes: int = field(
        default=16 * 2**20,
        metadata=_cli("Largest request body, in bytes; larger ones get 413.", type=int),
    )
    h11_max_incomplete_event_size: int = field(
        default=64 * 1024, metadata=_cli("Largest block of request headers, in bytes.", type=int)
    )
    request_receive_timeout: float = field(
        default=60.0,
        metadata=_cli("Seconds within which a request must have arrived whole.", type=float),
    )
    response_send_timeout: float = field(
        default=60.0,
        metadata=_cli(
            "Seconds after which a client that reads nothing is taken for gone.", type=float
        ),
    )
    timeout_keep_alive: int = field(
        default=5,
        metadata=_cli("Seconds to keep an idle connection open for the next request.", type=int),
    )
    max_connections: int | None = field(
        default=None,
        metadata=_cli(
            "Most open connections; further ones get 503. Unbounded by default.", type=int
        ),
    )
    shutdown_timeout: float = field(
        default=10.0,
        metadata=_cli(
            "Seconds that running requests get to finish after SIGINT or SIGTERM, before they are "
            "aborted; a second signal aborts them at once.",
            type=float,
        ),
    )
    uvicorn_log_level: str = field(
        default="warning",
        metadata=_cli(
            "Log level of the HTTP library.",
            choices=["critical", "error", "warning", "info", "debug", "trace"],
        ),
    )
    disable_uvicorn_access_log: bool = field(
        default=False, metadata=_cli("Do not log each request.", action="store_true")
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port}: pass 0 to 65535")
        for name in (
            "max_request_body_bytes",
            "h11_max_incomplete_event_size",
            "request_receive_timeout",
            "response_send_timeout",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: pass a positive number")
        if self.shutdown_timeout < 0:
            raise ConfigError(f"shutdown_timeout={self.shutdown_timeout}: pass 0 or more seconds")
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path={self.root_path!r}: pass a path that starts with /")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("api_key: an empty key would let everyone in; pass a key or none")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile: pass both for HTTPS, or neither")
        self._check_client_certificates()

    def _check_client_certificates(self) -> None:
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs={self.ssl_cert_reqs}: pass 0, 1 or 2")
        if (self.ssl_ca_certs is not None) != (self.ssl_cert_reqs > 0):
            raise ConfigError(
                f"ssl_ca_certs={self.ssl_ca_certs!r} with ssl_cert_reqs={self.ssl_cert_reqs}: to "
                "check client certificates pass a CA file and 1 or 2; to check none, leave both out"
            )
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_ca_certs: needs HTTPS; pass ssl_certfile and ssl_keyfile too")

    @property
    def api_keys(self) -> list[str]:
        """Keys in force: the options', else the environment's; none means no check."""
        if self.api_key:
            return self.api_key
        from_environment = envs.VLLM_API_KEY
        return [from_environment] if from_environment is not None else []

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add one option per field to `parser`, in a group of their own."""
        group = parser.add_argument_group(
            "Frontend", "The HTTP server: where it listens, who may call it, how it stops."
        )
        for f in fields(cls):
            argument = dict(f.metadata["argument"])
            default = _default(f)
            doc = f.metadata["doc"]
            if argument.get("action") == "append":
                argument["default"] = None  # a list here would be shared and appended to
            else:
                argument["default"] = default
                if argument.get("action") is None and default not in (None, ""):
                    doc += f" Default: {json.dumps(default) if default == ['*'] else default}."
            if "type" in argument or not argument:
                argument.setdefault("metavar", f.name.upper())
            group.add_argument(f"--{f.name.replace('_', '-')}", help=doc, **argument)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "FrontendArgs":
        """The options as `parser` read them.

        Raises:
            ConfigError: a value is out of range, or two contradict each other.
        """
        values = {f.name: getattr(args, f.name) for f in fields(cls)}
        values["api_key"] = values["api_key"] or []
        return cls(**values)
