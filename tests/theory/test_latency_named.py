"""Latency models with named constants: what was published of them, their files, and the time before the scheduler."""

import json

import pytest

from backends.sim import Sim
from backends.systems.distserve import chunking
from harness.api import Request
from harness.errors import UsageError
from harness.registry import make

YI = ("mixed:yi-34b-tp2", "table:yi-34b-tp2")


@pytest.mark.parametrize("spec", YI)
def test_a_decode_that_rides_along_costs_no_more_than_the_prompt_it_displaces(spec):
    """The point of chunked prefill would be lost (Sarathi-Serve, table 2: 3 decodes in a 1024-token step)."""
    model = make("latency", spec)
    prompt_s = model.step_s([(1024, 0)], 0, 0)

    assert prompt_s + 3 * prompt_s / 1024 >= model.step_s([(1021, 0)], 3, 3 * 1024)


@pytest.mark.parametrize(("chunk", "published"), [(512, (1.15, 1.19, 1.12, 0.995)), (2048, (0.999, 1.02, 0.94, 0.81))])
def test_chunks_of_the_table_cost_what_was_measured(chunk: int, published: tuple[float, ...]):
    """Chunked prefill would look dearer or cheaper than it was measured to be (S12; Sarathi-Serve, figure 9)."""
    table = {"model": "yi-34b", "tp": 2, "latency": "table:yi-34b-tp2"}
    ratios = [chunking(chunk, prompt, **table)[0]["chunks_ratio"] for prompt in (2047, 4095, 8191, 16383)]

    assert published == pytest.approx(ratios, rel=0.03)


def test_chunks_never_take_less_than_prompts_of_as_many_tokens():
    """A chunk with a long past would be faster than one without any."""
    model = make("latency", "table:yi-34b-tp2")

    for new in (1, 100, 512, 1300, 2048, 5000):
        alone_s = model.step_s([(new, 0)], 0, 0)
        assert all(model.step_s([(new, stored)], 0, 0) >= alone_s for stored in (1, 900, 4096, 12032, 60_000))


def test_a_table_gives_its_own_points_and_lines_between_them():
    """The published points of Yi-34B on two A100 are what the table is for."""
    model = make("latency", "table:yi-34b-tp2")

    assert [0.0468, 0.0697, 0.1893] == pytest.approx([model.decode_s(b, 0) for b in (1, 8, 128)])
    assert [0.1056, 0.366, 4.407] == pytest.approx([model.step_s([(n, 0)], 0, 0) for n in (512, 2048, 16384)])
    assert (0.0773 + 0.0879) / 2 == pytest.approx(model.decode_s(24, 0))


def test_a_piece_after_stored_tokens_pays_their_attention():
    """Chunks would be free of the prefix that they read (mixed: c^2 + 2cp)."""
    model = make("latency", "mixed:yi-34b-tp2")

    assert 0.172e-3 * 512 + 6e-9 * (512**2 + 2 * 512 * 1024) == pytest.approx(model.step_s([(512, 1024)], 0, 0))
    assert 45.5e-3 + 0.1e-6 * 4000 == pytest.approx(model.decode_s(4, 4000))


@pytest.mark.parametrize(("tp", "idle_ms"), [(8, 13.83), (4, 20.14), (2, 31.78)])
def test_one_set_of_constants_explains_three_parallel_degrees(tp, idle_ms):
    """TPOT of vLLM with Llama-3.1-70B on H100 under light load (microsoft/apex_plus); a step is within 4 % of it."""
    model = make("latency", "fit6:h100", model="llama3-70b", tp=tp)

    assert idle_ms == pytest.approx(model.decode_s(1, 300) * 1000, rel=0.04)


def test_the_front_end_delays_the_first_token_and_no_other():
    """A front-end time inside the step would be charged for every token."""
    requests = [Request(i, 0.1 * i, 200, 20) for i in range(8)]
    system = {"model": "llama3-70b", "hardware": "h100", "tp": 8}
    plain = Sim(latency="fit6:h100,front_end=0", **system).simulate(requests)
    delayed = Sim(latency="fit6:h100,front_end=16ms", **system).simulate(requests)

    for one, other in zip(plain, delayed, strict=True):
        assert (one.scheduled_s, one.sent_s) == (other.scheduled_s, other.sent_s)
        assert [t + 0.016 for t in one.token_s] == pytest.approx(list(other.token_s), abs=1e-9)


def test_a_server_in_real_time_has_the_front_end_too():
    """`bench serve` would answer earlier than the simulation that it stands for."""
    live = Sim(latency="linear:base=10ms,front_end=16ms").real_time()

    live.arrive(Request(0, 1.0, 20, 2), 1.0)
    ends = [step.step.end_s for step in live.advance(2.0)]

    assert [1.026, 1.036] == pytest.approx(ends)


def test_a_short_prompt_overtakes_a_long_one_in_the_tokenizer():
    """TTFT of long prompts was too short by the time of their tokenizer, which no number of GPUs makes shorter."""
    requests = [Request(0, 1.0, 50_000, 2), Request(1, 1.1, 10, 2), Request(2, 1.1, 20_000, 2)]
    system = {"model": "llama3.1-8b", "hardware": "h100", "policy": "vllm-v1"}
    with_front, without = (
        {
            r.request_id: r
            for r in Sim(latency=f"operators:front_s=1ms,front_token_s={one}", **system).simulate(requests)
        }
        for one in ("10us", "0")
    )
    live = Sim(latency="operators:front_s=1ms,front_token_s=10us", **system).real_time()
    for request in requests:
        live.arrive(request, request.scheduled_s)
    started = [step.started for step in live.advance(60.0)]

    assert [1.501, 1.1011, 1.301] == pytest.approx([with_front[i].arrived_s for i in range(3)])
    assert [1.001, 1.101, 1.101] == pytest.approx([without[i].arrived_s for i in range(3)])
    assert with_front[1].token_s[0] < with_front[2].token_s[0] <= with_front[0].token_s[0]
    assert [1, 2, 0] == [number for pieces in started for number in pieces]


def test_leaps_equal_steps_where_a_short_context_is_hidden():
    """A decode that computes longer than it reads is no line in its context; a leap must not take it for one."""
    requests = [Request(i, 0.0, 8, 40 + i % 7) for i in range(300)]
    system = {"model": "llama3-8b", "hardware": "h100", "latency": "fit6:h100", "policy": "vllm-v0"}

    leap, step = ([r.token_s for r in Sim(**system, leap=on).simulate(requests)] for on in (True, False))

    assert step == leap


@pytest.mark.parametrize("form", ["toml", "json"])
def test_a_model_in_a_file_is_the_model(tmp_path, form):
    """What `bench fit` writes must be what the simulator reads."""
    constants = {"constants": "given", "floor_s": 0.02, "token_s": 1e-4, "context_token_s": 1.25e-7}
    lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in constants.items())
    held = {"toml": f'latency = "mixed"\n[arguments]\n{lines}',
            "json": json.dumps({"latency": "mixed", "arguments": constants})}[form]  # fmt: skip
    (tmp_path / f"x.{form}").write_text(held)
    model = make("latency", "mixed:constants=given,floor=0.02,token=1e-4,context_token=1.25e-7")

    read = make("latency", f"file:{tmp_path}/x.{form}", model="opt-13b")

    assert model.step_s([(100, 50)], 3, 777) == read.step_s([(100, 50)], 3, 777)
    assert model.decode_line(9) == read.decode_line(9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('latency = "mixd"', "Did you mean 'mixed'?"),
        ("x = 1", "must name its latency model"),
        ("x = ", "cannot be read: it is not TOML"),
        ('latency = "mixed"\n[arguments]\ntoken = "1parsec"', "token_s must be a duration"),
        ('latency = "mixed"\narguments = 3', "arguments must be a table"),
        ('latency = "table"', "is not a table of step times"),
        ('latency = "table"\n[arguments]\nprefill = [[8, 1.0], [9, 0.5]]\ndecode = [[1, 0, 0.1]]', "takes less than"),
        ('latency = "table"\n[arguments]\nprefill = [[8, 1.0]]\ndecode = [[1, 0, 0.1], [1, 0, 0.2]]', "two decode"),
        ('latency = "table"\n[arguments]\nprefill = []\ndecode = []', "at least one point"),
        ('latency = "table"\n[arguments]\nprefill = [[8, 1.0]]\ndecode = [[1, 0, 0.0]]', "takes no time"),
        (
            'latency = "table"\n[arguments]\nprefill = [[8, 1.0]]\ndecode = [[1, 0, 0.1]]\nchunks = [[8, 0, 1]]',
            "above 0",
        ),
        (
            'latency = "table"\n[arguments]\nprefill = [[8, 1.0]]\ndecode = [[1, 0, 0.1]]\nchunks = [8]',
            "chunks must be",
        ),
    ],
)
def test_a_wrong_file_is_reported_in_a_sentence(tmp_path, text, message):
    """A missing comma must not end in a traceback."""
    (tmp_path / "x.toml").write_text(text)

    with pytest.raises(UsageError) as found:
        make("latency", f"file:{tmp_path}/x.toml")

    assert message in str(found.value)
