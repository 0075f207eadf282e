# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible server: the application, and the process that runs it.

Owns the wiring: routes, middleware, engine, metrics. Heavy imports happen inside functions, so
that they overlap with the start of the engine's process.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.logger import init_logger

if TYPE_CHECKING:
    from fastapi import FastAPI

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.engine_client import EngineClient
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import PrometheusStatLogger

logger = init_logger(__name__)

ROUTERS = (
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.entrypoints.serve.health.api_router",
    "vllm.entrypoints.serve.metrics.api_router",
    "vllm.entrypoints.serve.version.api_router",
)


def build_app(
    args: FrontendArgs,
    engine: EngineClient,
    *,
    stats: PrometheusStatLogger | None = None,
) -> FastAPI:
    """The application over `engine`.

    Args:
        stats: where the engine's metrics are; None serves an empty /metrics.
    """
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from vllm.entrypoints.openai.errors import install_error_handlers
    from vllm.entrypoints.openai.serving import ServerState

    docs = {} if args.enable_fastapi_docs else {"openapi_url": None}
    app = FastAPI(title="vllm", redirect_slashes=False, **docs)  # type: ignore[arg-type]
    app.state.server = ServerState(
        engine=engine,
        served_model_names=engine.model_config.served_model_name,
        registry=stats.registry if stats is not None else CollectorRegistry(),
        stats=stats,
    )
    for module in ROUTERS:
        app.include_router(importlib.import_module(module).router)
    install_error_handlers(app)
    _add_middleware(app, args)
    return app


def _add_middleware(app: FastAPI, args: FrontendArgs) -> None:
    """From the innermost to the outermost: size, key, CORS, request id."""
    from starlette.middleware.cors import CORSMiddleware

    from vllm.entrypoints.serve.middleware.authentication import AuthenticationMiddleware
    from vllm.entrypoints.serve.middleware.body_limit import BodyLimitMiddleware
    from vllm.entrypoints.serve.middleware.request_id import RequestIdMiddleware

    app.add_middleware(BodyLimitMiddleware, max_bytes=args.max_request_body_bytes)
    if args.api_keys:
        app.add_middleware(AuthenticationMiddleware, api_keys=args.api_keys)
    if args.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=args.allowed_origins,
            allow_methods=args.allowed_methods,
            allow_headers=args.allowed_headers,
            allow_credentials=args.allow_credentials,
        )
    app.add_middleware(RequestIdMiddleware)


def run_server(engine_args: AsyncEngineArgs, args: FrontendArgs) -> int:
    """Serve until a signal or the engine's death; returns the process's exit code.

    Raises:
        ConfigError: the engine's arguments do not fit the model or the machine.
        OSError: the address is in use.
    """
    from vllm.entrypoints.serve.launcher import (
        bind_socket,
        check_tls,
        exit_on_signals,
        raise_file_limit,
    )

    started = time.perf_counter()
    check_tls(args)
    raise_file_limit()
    sock = bind_socket(args)  # before anything slow: a taken port should be told at once
    try:
        with exit_on_signals():
            return asyncio.run(_serve(engine_args, args, sock, started))
    finally:
        sock.close()


async def _serve(
    engine_args: AsyncEngineArgs, args: FrontendArgs, sock: socket.socket, started: float
) -> int:
    from vllm.entrypoints.serve.launcher import serve_app

    engine, stats = start_engine(engine_args)
    try:
        engine_s = time.perf_counter() - started
        app = build_app(args, engine, stats=stats)
        _log_start(engine, time.perf_counter() - started, engine_s)
        return await serve_app(app, args, sock)
    finally:
        engine.shutdown()


def _import_routes() -> None:
    for module in (*ROUTERS, "uvicorn", "vllm.entrypoints.serve.http_protocol"):
        importlib.import_module(module)


def start_engine(engine_args: AsyncEngineArgs) -> tuple[AsyncLLM, PrometheusStatLogger]:
    """Start the engine's process and wait until it is ready; also returns its metrics."""
    from vllm.v1.engine.core_launcher import CoreProcess

    process = CoreProcess()
    try:
        vllm_config = engine_args.create_engine_config()
    except BaseException:
        process.stop(0.0)
        raise
    # From here on the process loads the model; until then both import the same large libraries,
    # and a second importing thread would only share this one's lock.
    threading.Thread(target=_import_routes, name="import-routes", daemon=True).start()
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import LoggingStatLogger, PrometheusStatLogger

    engine = AsyncLLM.from_vllm_config(vllm_config, process=process)
    config = engine.vllm_config
    stats = PrometheusStatLogger(
        config.model_config.served_model_name[0],
        config.model_config.max_model_len,
        cache_config=config.cache_config,
    )
    if not config.observability_config.disable_log_stats:
        engine.stat_loggers += [
            stats,
            LoggingStatLogger(config.observability_config.log_interval_s),
        ]
    return engine, stats


def _log_start(engine: AsyncLLM, total_s: float, engine_s: float) -> None:
    model = engine.model_config
    logger.info(
        "serving %s: ready after %.1f s (engine %.1f s), context of %d tokens",
        model.served_model_name[0],
        total_s,
        engine_s,
        model.max_model_len,
    )
