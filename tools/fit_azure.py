"""Fits the parameters of the arrivals `azure` to the Azure 2023 conversation trace: a random rate and a gap law.

    python tools/fit_azure.py DATA_FOLDER            writes workloads/arrivals/figures/azure.json

Gap law: median over windows of 300 s, where the rate is nearly constant, of the maximum likelihood gamma shape. Rate:
the log-rate is one Ornstein-Uhlenbeck process, whose two parameters fit the expected index of dispersion to that of the
trace (least squares of the logarithm) over widths of 0.5 to 300 s. The expectation is that of an hour, not of an
endless record, which would include what a single hour cannot show. A second process does not improve the fit.

Windows: of each 20 minutes of the trace (one begins every 30 s) the variance of the rate over a minute, without the
noise of counting, as a share of what the process has in such a window; the 5 % and 95 % quantiles.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

from harness.stats import arrivals
from workloads import traces
from workloads.arrivals._services import Component, LogRate

FIGURES = Path(__file__).parents[1] / "workloads" / "arrivals" / "figures"
TRACE = "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
WIDTHS_S = (*arrivals.WIDTHS_S, 300.0)
WINDOW_S = 300.0
STEP_S = 1.0
CUT_S, EVERY_S, MINUTE_S = 1200.0, 30.0, 60.0


def main(data: Path) -> None:
    """Write the figures."""
    (FIGURES / "azure.json").write_text(json.dumps(figures(data), indent=1) + "\n", encoding="utf-8")


def figures(data: Path) -> dict[str, object]:
    """Parameters of `azure`."""
    trace = traces.read(str(data / TRACE))
    times_s = np.asarray(trace.at_s, np.float64)
    shape = gap_shape(times_s)
    found = fit_rate(times_s, shape)
    return {
        "source": "Azure/AzurePublicDataset @ b469a113, AzureLLMInferenceTrace_conv.csv (16 November 2023, one hour)",
        "licence": "CC-BY-4.0",
        "rate_rps": round((len(times_s) - 1) / float(times_s[-1] - times_s[0]), 3),
        "gamma_shape": round(shape, 3),
        "components": [[round(found.sd, 3), round(found.tau_s, 0)]],
        "step_s": STEP_S,
        "window_spread": [round(x, 2) for x in window_spread(times_s - times_s[0], shape, found)],
    }


def gap_shape(times_s: np.ndarray) -> float:
    """Median over windows of the maximum likelihood gamma shape (Minka, Estimating a Gamma distribution, 2002)."""
    from scipy.optimize import brentq  # slow to import
    from scipy.special import digamma

    shapes = []
    for start_s in np.arange(times_s[0], times_s[-1] - WINDOW_S, WINDOW_S):
        gaps = np.diff(times_s[(times_s >= start_s) & (times_s < start_s + WINDOW_S)])
        gaps = gaps[gaps > 0]
        spread = math.log(gaps.mean()) - float(np.log(gaps).mean())
        shapes.append(brentq(lambda k, s=spread: math.log(k) - float(digamma(k)) - s, 1e-3, 1e3))
    return float(np.median(shapes))


def window_spread(times_s: np.ndarray, shape: float, found: Component) -> list[float]:
    """How the rate varies in windows of the trace, by what the process leads to expect: 5 % and 95 % quantiles."""
    expected = LogRate((found,), STEP_S).variance_within(MINUTE_S, CUT_S)
    shares = []
    for start_s in np.arange(0, times_s[-1] - CUT_S, EVERY_S):
        inside = times_s[(times_s >= start_s) & (times_s < start_s + CUT_S)] - start_s
        counts = np.bincount((inside // MINUTE_S).astype(int), minlength=int(CUT_S / MINUTE_S))
        shares.append((counts.var(ddof=1) - counts.mean() / shape) / counts.mean() ** 2 / expected)
    return np.quantile(shares, [0.05, 0.95]).tolist()  # type: ignore[no-any-return]  # floats


def fit_rate(times_s: np.ndarray, shape: float) -> Component:
    """The Ornstein-Uhlenbeck process of the log-rate."""
    from scipy.optimize import least_squares

    seen = np.log(arrivals.dispersion_curve(times_s, WIDTHS_S))
    span_s, rate_rps = float(times_s[-1] - times_s[0]), len(times_s) / float(times_s[-1] - times_s[0])

    def misfit(logs: np.ndarray) -> np.ndarray:
        model = LogRate((Component(*np.exp(logs).tolist()),), STEP_S)
        return np.asarray(np.log(expected_dispersion(model, rate_rps, shape, span_s)) - seen)

    return Component(*np.exp(least_squares(misfit, np.log([0.2, 100.0])).x).tolist())


def expected_dispersion(model: LogRate, rate_rps: float, shape: float, span_s: float) -> np.ndarray:
    """(widths,) expected index of dispersion of counts over a record of `span_s`, which shares one mean."""
    widths = np.array(WIDTHS_S)
    bins = np.floor(span_s / widths)
    variance = np.array([_count_variance(model, rate_rps, shape, float(width)) for width in widths])
    of_mean = np.array([_count_variance(model, rate_rps, shape, float(width)) for width in bins * widths]) / bins**2
    return np.asarray(bins / (bins - 1) * (variance - of_mean) / (rate_rps * widths))


def _count_variance(model: LogRate, rate_rps: float, shape: float, width_s: float) -> float:
    """Variance of the arrivals in `width_s`: that of the rate, and of a gamma renewal process at the mean rate.

    The second is its expansion for widths of many gaps (Cox, Renewal Theory, 1962, section 4.5).
    """
    lags = np.concatenate([[0.0], np.geomspace(1e-3, width_s, 400)])
    of_rate = 2 * rate_rps**2 * float(np.trapezoid((width_s - lags) * model.covariance(lags), lags))
    return of_rate + rate_rps * width_s / shape + 1 / 6 - 1 / (6 * shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
