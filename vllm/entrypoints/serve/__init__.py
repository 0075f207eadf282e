# SPDX-License-Identifier: Apache-2.0
"""The server around the endpoints: process life, middleware, health, metrics, tokenizing."""
