# SPDX-License-Identifier: Apache-2.0
"""The HTTP server's process: its socket, its signals, draining, and its exit code.

Life: bind, (engine loads), listen, serve. The first SIGINT or SIGTERM stops listening and lets
running requests finish for `shutdown_timeout` seconds; then, or on a second signal, they are
aborted, each client gets an error, and the process exits with 0. If the engine dies, /health
and every request answer 503 for `DEATH_GRACE_S` seconds, then the process exits with 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.exceptions import ConfigError, EngineDeadError
from vllm.logger import init_logger

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

logger = init_logger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEATH_POLL_S = 0.25
DEATH_GRACE_S = 3.0
WANTED_OPEN_FILES = 65_536


def bind_socket(args: FrontendArgs) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until the server is ready.

    Raises:
        ConfigError: the address is taken or is not this machine's.
    """
    if args.uds is not None:
        return _bind_unix(args.uds)
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((args.host, args.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {args.host}:{args.port}: {reason.lower()}; pass another --port or "
            "--host"
        ) from None
    if args.port == 0:
        logger.info("listening on port %d", sock.getsockname()[1])
    return sock


def _bind_unix(path: str) -> socket.socket:
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigError(f"uds={path!r} exists and is not a socket; pass another path")
        if _is_answered(path):
            raise ConfigError(f"uds={path!r} is in use by another server; pass another path")
        os.unlink(path)  # left behind by a process that is gone
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_mask = os.umask(0o077)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on uds={path!r}: {error.strerror}") from None
    finally:
        os.umask(old_mask)
    return sock


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def check_tls(args: FrontendArgs) -> None:
    """Read the certificate files once, so that a wrong one is told before the model loads.

    Raises:
        ConfigError: a file is missing, is no PEM file of its kind, or does not fit the other.
    """
    if args.ssl_certfile is None or args.ssl_keyfile is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        path = getattr(args, name)
        try:
            if path is not None:
                with open(path, "rb"):
                    pass
        except OSError as error:
            raise ConfigError(
                f"{name}={path!r}: {(error.strerror or str(error)).lower()}"
            ) from None
    try:
        # An empty password instead of a question on the terminal.
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"ssl_certfile={args.ssl_certfile!r} and ssl_keyfile={args.ssl_keyfile!r} cannot be "
            f"used ({_tls_reason(error)}); pass a PEM certificate chain and its PEM private key, "
            "without a password"
        ) from None
    try:
        if args.ssl_ca_certs is not None:
            context.load_verify_locations(args.ssl_ca_certs)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl_ca_certs={args.ssl_ca_certs!r} cannot be used ({_tls_reason(error)}); pass a PEM "
            "file of CA certificates"
        ) from None


def _tls_reason(error: ssl.SSLError | ValueError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else "it cannot be read"


def raise_file_limit() -> None:
    """Allow as many open files, thus connections, as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Inside the block, SIGINT and SIGTERM raise SystemExit: nothing is served yet."""

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        logger.info("%s while starting: stopping", signal.Signals(signum).name)
        raise SystemExit(128 + signum)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def serve_app(app: FastAPI, args: FrontendArgs, sock: socket.socket) -> int:
    """Serve `app` on `sock` until a signal or the engine's death; returns the exit code."""
    server = make_server(app, args)
    watcher = asyncio.create_task(_watch_engine(app, server))
    try:
        await server.serve(sockets=[sock])
    finally:
        watcher.cancel()
        if args.uds is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(args.uds)
    return 1 if app.state.server.engine.errored else 0


async def _watch_engine(app: FastAPI, server: uvicorn.Server) -> None:
    engine = app.state.server.engine
    while not engine.errored:
        # A hang is told by /health alone: the engine may come back.
        with contextlib.suppress(EngineDeadError):
            await engine.check_health()
        await asyncio.sleep(DEATH_POLL_S)
    logger.error("the engine has died; the server exits in %g s", DEATH_GRACE_S)
    await asyncio.sleep(DEATH_GRACE_S)
    server.should_exit = True


def make_server(app: FastAPI, args: FrontendArgs) -> uvicorn.Server:
    """A uvicorn server with our limits, signals and way of stopping."""
    import uvicorn

    from vllm.entrypoints.serve.draining import DrainingServer
    from vllm.entrypoints.serve.http_protocol import TimedH11Protocol

    config = uvicorn.Config(
        app,
        http=TimedH11Protocol.with_limits(
            receive_timeout_s=args.request_receive_timeout,
            send_timeout_s=args.response_send_timeout,
        ),
        ws="none",
        lifespan="off",
        log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log,
        server_header=False,
        root_path=args.root_path,
        limit_concurrency=args.max_connections,
        timeout_keep_alive=args.timeout_keep_alive,
        h11_max_incomplete_event_size=args.h11_max_incomplete_event_size,
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
    )
    return DrainingServer(config, app.state.server.in_flight, args.shutdown_timeout)
