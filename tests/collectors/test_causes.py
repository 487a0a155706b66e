"""Why a sandbox failed, from texts that providers and their SDKs were seen to write."""

import pytest

from collectors.sandbox_providers.provider import cause_of


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Sandbox creation rate limit (5/s) exceeded", "rate_limit"),
        ("Total CPU limit exceeded. Maximum allowed: 30", "quota"),
        ("you have reached the maximum number of concurrent E2B sandboxes (20)", "quota"),
        ("Organization is suspended: Depleted credits", "credit"),
        ("Insufficient capacity to create sandbox.", "capacity"),
        ("Runtime did not start within 299s: timed out", "timeout"),
        ("IMAGE_PULL_FAILED", "image"),
        ("429 Too Many", "rate_limit"),
        ("RateLimitException: slow down", "rate_limit"),
        ("server said HTTP 503", "internal"),
        ("status code: 402", "credit"),
        ("exec of step 429 of 500", "unknown"),
        ("HTTP 404", "unknown"),
        ("something else", "unknown"),
    ],
)
def test_causes_by_the_words_that_providers_use(words: str, cause: str) -> None:
    assert cause_of(words) == cause


def test_codes_go_before_prose_and_a_silent_text_asks_the_next() -> None:
    assert cause_of("HTTP 404", "image not found") == "image"
    assert cause_of("429", "image not found") == "rate_limit"
