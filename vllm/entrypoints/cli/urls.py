# SPDX-License-Identifier: Apache-2.0
"""The address of a server as users write it: with or without scheme and /v1."""

from urllib.parse import urlsplit

from vllm.exceptions import ConfigError


def server_url(given: str) -> str:
    """The server's address, without /v1 and without a slash at the end.

    Raises:
        ConfigError: it is no http address.
    """
    url = given.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and (parts.port is None or parts.port > 0)
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise ConfigError(f"url={given!r}: pass an address like http://localhost:8000")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def api_url(given: str) -> str:
    """The address under which the OpenAI-compatible routes are: the server's with /v1.

    Raises:
        ConfigError: it is no http address.
    """
    return f"{server_url(given)}/v1"
