# SPDX-License-Identifier: Apache-2.0
"""ASGI middleware: what every request passes before it reaches a route."""
