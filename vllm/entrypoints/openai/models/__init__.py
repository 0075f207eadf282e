# SPDX-License-Identifier: Apache-2.0
"""/v1/models."""
