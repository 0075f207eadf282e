# SPDX-License-Identifier: Apache-2.0
"""Addresses, ports and socket folders of this machine."""

import os
import socket
import sys
import tempfile
from pathlib import Path

_MAX_SOCKET_PATH = 100  # bytes; the system's limit is 107


def get_open_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free now; another process may take it before the caller does."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def get_ip() -> str:
    """The address other machines reach this one by; 127.0.0.1 when there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket only looks up the route; nothing is sent.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def make_socket_folder() -> Path:
    """A new folder that only this user can enter, with a path short enough for Unix sockets."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _MAX_SOCKET_PATH - 40:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="vllm-", dir=base))


def loopback_interface() -> str:
    """Name of the network interface that leads to this machine only."""
    return "lo0" if sys.platform == "darwin" else "lo"
