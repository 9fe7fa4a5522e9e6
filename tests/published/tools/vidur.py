"""Vidur: an event simulator over profiled operators, of Llama-2 and Llama-3 in FP16 on A100 and H100."""

REQUIREMENTS = ("vidur==0.0.26",)
RELEASED = "2025-08"


def predict(row):
    """Why there is no answer: the wheel holds code alone, and reads tables from a hub of data sets when it starts."""
    if row["gpu"] not in ("a100", "h100") or not row["model"].startswith("llama"):
        return f"no {row['model']} on {row['gpu']}"
    if dict(row["formats"]).get("linear") != "bf16":
        return "no formats but FP16"
    return "its tables of operators are not in the wheel, but on a hub of data sets that cannot be reached here"
