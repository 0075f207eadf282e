# SPDX-License-Identifier: Apache-2.0
"""Building blocks of models. Import each from its defining file."""
