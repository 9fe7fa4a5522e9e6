# %% [markdown]
# # Figures of stored runs, without a page
# VS Code and Jupytext open this file as a notebook. As a program it writes every figure into FOLDER:
# `python docs/examples/report_figures.py RUN SWEEP FOLDER`.

# %%
"""Figures of a run and of a sweep, made from Python: the cells of a notebook, or a program."""

import sys
from pathlib import Path

import numpy as np

from harness.experiments import answers, imports
from harness.metrics.measure import metrics, per_request
from reports import figures, study
from reports.figures.cdf import latency_cdf
from reports.figures.curves import attainment_rate

run_path, sweep_path, folder = (Path(given) for given in sys.argv[1:4])
folder.mkdir(exist_ok=True)

# %% [markdown]
# ## A run
# `results.open` reads our folders and the result files of vLLM, SGLang, GuideLLM, AIPerf and inference-perf alike.
# `run.info` is run.json; `run.requests` is a pyarrow table with a row for each request, `run.measured` the same without
# the warm-up. Seconds and tokens everywhere.

# %%
(run,) = imports.open(run_path)
print(run.info["verdict"]["text"])
print(run.measured.select(["scheduled_s", "prompt_tokens", "output_tokens", "status"]).slice(0, 2).to_pylist())

ttft_s = per_request(metrics()["ttft"], run.measured)
print(f"{np.mean(ttft_s <= 0.25):.1%} of {len(ttft_s):,} requests had their first token within 0.25 s")

# %% [markdown]
# ## One figure
# `figure` gives a plotly Figure to show, to change or to save, or the sentence that says what would bring its data.

# %%
figure = latency_cdf(figures.measured(run))
print(figures.caption(figure))
figure.update_layout(title="Latency of one run", margin_t=80)
figure.write_html(folder / "latency.html", include_plotlyjs="directory")  # in a notebook: figure.show()

# %% [markdown]
# ## All figures of a run
# In the order of the page. Requests before the cut of the warm-up count for what is over time, and for the sending.

# %%
for name, row in figures.of("run").items():
    figure = row.draw(run if row.over_time else figures.measured(run))
    if isinstance(figure, str):
        print(f"{name}: {figure}")
    else:
        print(f"{name}: {figures.finding(figure)}")
        figure.write_json(folder / f"{name}.json")

# %% [markdown]
# ## A sweep
# A study is systems over the rate; `study.of_many` puts several beside one another.

# %%
curve = study.of_sweep(answers.of(sweep_path), sweep_path)
for system in curve.systems:
    for point in system.points:
        kept = "nothing measured" if point.attainment is None else f"{point.attainment.mean:.1%} kept the SLO"
        print(f"{system.name} at {point.rate_rps:g} req/s: {kept}")
figure = attainment_rate(curve)
print(figures.caption(figure))
figure.write_html(folder / "attainment.html", include_plotlyjs="directory")
