"""The run as JSON: what `run.json` holds, for other programs."""

import json
from dataclasses import dataclass

from harness.data.codec import encode
from harness.data.folder import Run
from harness.metrics.summary import summarize
from reports import _data


@dataclass(frozen=True, slots=True)
class Json:
    """`run.json`, indented by `indent` spaces; a run that was killed gets the summary of what it recorded."""

    indent: int = 2

    def render(self, run: Run) -> str:
        """The text, ending with a newline; control characters are escaped as JSON does."""
        info = encode(run.info) | {"complete": run.complete}
        if not run.info.summary:
            info["summary"] = encode(summarize(run.measured, _data.slo(run)))
        return json.dumps(info, indent=self.indent, ensure_ascii=True, allow_nan=False) + "\n"
