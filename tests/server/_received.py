"""What one client of a service receives, and a service that is started and closed."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Received:
    """The tokens of one answer, when they were ready and due, and how the answer ended."""

    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    due_s: list[float] = field(default_factory=list)
    end: str | None = None
    error: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def step(self, token_ids, at_s, due_s, end, error=""):
        assert self.end is None, "something came after the end"

        self.tokens += token_ids
        self.at_s.append(at_s)
        self.due_s.append(due_s)
        self.end, self.error = end, error
        self.first.set()
        if end is not None:
            self.ended.set()


@asynccontextmanager
async def running(service):
    """Start the service, and close it twice."""
    try:
        await service.start()
        async with asyncio.timeout(120):
            yield service
    finally:
        await service.close()
        await service.close()
