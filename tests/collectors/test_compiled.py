"""What is worked out once for a layout: the same samples as page by page, whatever the plans and the values are."""

from hypothesis import given
from hypothesis import strategies as st

from collectors.engine_pages import pages
from collectors.engine_pages.pages import PagePlan, PageRules, compiled
from collectors.formats import exposition
from collectors.formats.exposition import Page, Series
from collectors.model import Limits, Sample, State

LABELS = ((), (("engine", "0"),), (("engine", "1"),))
METRICS = ("generator_tokens_total", "kv_cache_usage_ratio", "unknown_metric")


def plan_of(also: st.SearchStrategy[PagePlan | None]) -> st.SearchStrategy[PagePlan]:
    return st.builds(
        PagePlan,
        metric=st.sampled_from(METRICS),
        labels=st.sampled_from(LABELS),
        rank=st.integers(0, 2),
        fold=st.sampled_from(["first", "sum", "max", "min"]),
        scale=st.sampled_from([1.0, 0.001, 1024.0]),
        copy=st.sampled_from([(), (("tp_rank", "0"),), (("tp_rank", "1"),)]),
        scope=st.sampled_from([None, (), LABELS[1]]),
        also=also,
    )


plans = plan_of(st.none() | plan_of(st.none()))
values = st.floats(0, 1e12) | st.integers(0, 5).map(float)
odd = st.sampled_from([-1.0, float("nan"), float("inf"), float("-inf")])


def slow(page: Page, made: list[PagePlan], numbers: list[float]) -> list[Sample]:
    """Value by value, as a page without a layout is read."""
    held: dict[pages.Key, tuple[PagePlan, float]] = {}
    for plan, value in zip(made, numbers, strict=True):
        if 0.0 <= value < float("inf") or pages._makes_sense(page, plan, value):
            pages._offer(held, plan, value)
    return list(pages._settled(held))


@given(st.lists(st.tuples(plans, values), max_size=12))
def test_samples_worked_out_beforehand_are_those_of_values_one_by_one(rows: list[tuple[PagePlan, float]]) -> None:
    series = [Series(f"s{at}", ()) for at in range(len(rows))]
    made, numbers = [plan for plan, _ in rows], [value for _, value in rows]
    program = compiled(series, dict(zip(series, made, strict=True)), {}, True)
    assert program.samples(numbers) == slow(Page(), made, numbers)


@given(st.lists(st.tuples(plans, values), min_size=1, max_size=6), st.data())
def test_a_value_that_may_make_no_sense_is_looked_at_one_by_one(
    rows: list[tuple[PagePlan, float]], data: st.DataObject
) -> None:
    series = [Series(f"s{at}", ()) for at in range(len(rows))]
    made, numbers = [plan for plan, _ in rows], [value for _, value in rows]
    numbers[data.draw(st.integers(0, len(rows) - 1))] = data.draw(odd)
    program = compiled(series, dict(zip(series, made, strict=True)), {}, True)
    assert program.samples(numbers) is None
    page, expected = Page.by(layout_of(series), numbers), Page()
    held = slow(expected, made, numbers)
    assert list(pages._by_layout(page, program).samples) == held
    assert (page.dropped, page.why) == (expected.dropped, expected.why)


def layout_of(series: list[Series]) -> "exposition.Layout[Series]":
    return exposition.Layout((), [], 0, (), series, {}, tuple, tuple)


def test_folded_values_are_added_in_their_order_under_the_newest_name() -> None:
    words = PageRules("v", lambda series, *_: PLANS.get(series.name), lambda _: True, "stranger")
    body = b"# TYPE x gauge\nold 9\nnew 1\nother 2\nworst 3\n# end\n"
    state: State = {}
    exposition.forget()
    readings = [pages.read(body, state, Limits(), words) for _ in range(3)]
    assert [sample.value for sample in readings[-1].samples] == [3.0, 3.0]
    assert readings[0] == readings[1] == readings[2]


PLANS = {
    "old": PagePlan("kv_cache_usage_ratio", (), rank=1),
    "new": PagePlan("kv_cache_usage_ratio", (), fold="sum"),
    "other": PagePlan("kv_cache_usage_ratio", (), fold="sum"),
    "worst": PagePlan("generator_tokens_total", (), fold="max"),
}
