"""aiconfigurator: estimates from tables of kernels, one number a setting (`cli estimate`).

Its wheel holds `silicon_sample.csv`, a table of measurements that most rows of the leaderboard come from: it may have
been tuned on them. `HYBRID` is what its help names for models newer than its tables; where they hold the kernels, its
answers are those of the default.
"""

import logging
from math import ceil

REQUIREMENTS = ("aiconfigurator==0.12.0", "aiconfigurator-core==0.12.0")
RELEASED = "2026-09"
MEAN_LENGTH = 0.9


def predict(row):
    """(TTFT, TPOT) in seconds; lengths are those that requests have on average."""
    import _nvidia

    what = _nvidia.described(row)
    if isinstance(what, str):
        return what
    logging.disable(logging.WARNING)
    from aiconfigurator.cli.api import cli_estimate

    moe_tp, moe_ep = what["moe"] or (None, None)
    answer = cli_estimate(
        what["model"], what["system"], backend_name=row["engine"], database_mode="HYBRID",
        isl=round(MEAN_LENGTH * row["prompt"]), osl=round(MEAN_LENGTH * row["output"]),
        batch_size=ceil(row["clients"] / row["dp"]), tp_size=row["tp"], attention_dp_size=row["dp"],
        moe_tp_size=moe_tp, moe_ep_size=moe_ep, gemm_quant_mode=what["gemm"], kvcache_quant_mode=what["kv"],
        moe_quant_mode=what["experts"],
    )  # fmt: skip
    return float(answer.ttft) / 1e3, float(answer.tpot) / 1e3
