# SPDX-License-Identifier: Apache-2.0
"""The record that names an adapter. Adapters are refused at use; clients may import the name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter: a name, a positive id, and the folder it is read from."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
