"""Models and GPUs that the simulator knows, and the arithmetic of their memory.

The numbers live in `models.toml`, `hardware.toml` and `formats.toml`, each with its source, or come from a file of
the user (`tables.py`, `config_json.py`). Closed forms (`memory.py`): KV bytes per token, parameters, weight bytes of
one GPU, and how many KV blocks are left beside the weights.
"""

from harness.catalog.facts import (
    Compute,
    Experts,
    Format,
    Formats,
    Hardware,
    Latent,
    Linear,
    Model,
    Shape,
    Window,
)
from harness.catalog.memory import (
    SEQS,
    active_parameters,
    adapter_bytes,
    bits_of_kv,
    block_bytes,
    expert_bytes,
    kv_bytes_per_token,
    kv_capacity_blocks,
    parameters,
    weight_bytes,
    without_experts,
)
from harness.catalog.tables import (
    comparisons,
    described,
    facts_of_files,
    figures,
    format_named,
    formats,
    gpus,
    hardware,
    is_file,
    model,
    models,
    table,
)

__all__ = [
    "SEQS", "Compute", "Experts", "Format", "Formats", "Hardware", "Latent", "Linear", "Model", "Shape",
    "Window", "active_parameters", "adapter_bytes", "bits_of_kv", "block_bytes", "comparisons", "described",
    "expert_bytes", "facts_of_files", "figures", "format_named", "formats", "gpus", "hardware", "is_file",
    "kv_bytes_per_token", "kv_capacity_blocks", "model", "models", "parameters", "table", "weight_bytes",
    "without_experts",
]  # fmt: skip
