"""What stands before the scheduler: a constant time that every request spends in the front end of its server."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from operator import attrgetter

from harness.api import FollowUps, Request, RequestRecord

_rest = attrgetter(*[field.name for field in fields(Request)][2:])  # all but the id and when it is due


def behind_front_end(
    front_s: float,
    requests: Iterable[Request],
    follow_ups: FollowUps | None,
    simulate: Callable[[Iterator[Request], FollowUps | None], Iterator[RequestRecord]],
) -> Iterator[RequestRecord]:
    """Simulate with each request at its scheduler `front_s` seconds after it is due; records keep when it was due."""
    due_s: dict[int, float] = {}

    def delayed(incoming: Iterable[Request]) -> Iterator[Request]:
        for request in incoming:
            at_s = due_s[request.id] = request.scheduled_s
            yield Request(request.id, at_s + front_s, *_rest(request))  # replace() takes three times as long

    more = None if follow_ups is None else lambda record: delayed(follow_ups(record))
    for record in simulate(delayed(requests), more):
        record.scheduled_s = record.sent_s = due_s.pop(record.request_id)
        yield record
