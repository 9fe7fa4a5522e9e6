"""Systems over the rate, as figures of the subject `study` draw them: from sweeps, searches or several of them.

from harness import answers
from reports import study
from reports.figures.curves import attainment_rate

attainment_rate(study.of_sweep(answers.of("curve"), "curve")).show()
"""

from reports.study.capacity import of_capacity
from reports.study.runs import Capacity, Kept, Point, Study, System, of_many
from reports.study.sweep import of_curve, of_sweep

__all__ = ["Capacity", "Kept", "Point", "Study", "System", "of_capacity", "of_curve", "of_many", "of_sweep"]
