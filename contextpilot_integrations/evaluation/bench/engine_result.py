"""What passes over the same requests took, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from contextpilot_integrations.evaluation.bench.paired import PrefillFit, Ratio, fit_prefill, ratio_of_sums

__all__ = ["Comparison", "EnginePass", "EngineResult", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request took. None is unknown.

    Attributes:
        ttft: Seconds until the first token, planning included where it is done request by request.
        duration: Seconds until the end.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those found cached, as the engine says.
        error: Why there was no answer; None if there was one.
    """

    ttft: float = 0.0
    duration: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EnginePass:
    """A pass over the requests, perhaps repeated: figures are means of the repeats.

    Requests that failed are counted, and are in no other figure.

    Attributes:
        name: "original", "ours" or "ours_events".
        samples: For each repeat one per request, in arrival order.
        repeat_seconds: For each repeat, how long the whole of it took, without the turns of other passes.
    """

    name: str
    samples: tuple[tuple[Sample, ...], ...]
    repeat_seconds: tuple[float, ...]

    @property
    def errors(self) -> list[str]:
        """Why requests failed."""
        return [sample.error for sample in self._all if sample.error is not None]

    @property
    def failed(self) -> int:
        """How many requests failed, of all repeats."""
        return len(self.errors)

    @property
    def seconds(self) -> float:
        """How long the whole pass took."""
        return mean(self.repeat_seconds)

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of all prompts; None where the server does not tell."""
        tokens = [sample.prompt_tokens for sample in self._answered]
        return None if not tokens or None in tokens else self._per_repeat(tokens)

    @property
    def tells_cached_tokens(self) -> bool:
        """Whether any answer told them. Engines that do so leave out a count of 0."""
        return any(sample.cached_tokens is not None for sample in self._answered)

    @property
    def cached_tokens(self) -> int:
        """Tokens of all prompts that were found cached, as far as was told."""
        return self._per_repeat([sample.cached_tokens for sample in self._answered])

    @property
    def ttft_p50(self) -> float | None:
        """The median time to first token, in seconds."""
        return median(self._ttfts) if self._ttfts else None

    @property
    def ttft_mean(self) -> float | None:
        """The mean time to first token, in seconds."""
        return mean(self._ttfts) if self._ttfts else None

    @property
    def ttft_total(self) -> float:
        """Seconds until the first token, of all requests together."""
        return sum(self._ttfts) / len(self.samples)

    def per_request(self, what: Callable[[Sample], float], kept: Sequence[int]) -> list[float]:
        """Return a figure of each request that is kept, as the mean of its repeats."""
        return [mean(what(repeat[place]) for repeat in self.samples) for place in kept]

    @property
    def _all(self) -> list[Sample]:
        return [sample for repeat in self.samples for sample in repeat]

    @property
    def _answered(self) -> list[Sample]:
        return [sample for sample in self._all if sample.error is None]

    @property
    def _ttfts(self) -> list[float]:
        return [sample.ttft for sample in self._answered]

    def _per_repeat(self, counts: Sequence[int | None]) -> int:
        return round(sum(count or 0 for count in counts) / len(self.samples))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pass of ours beside the original one; a ratio above 1 speaks for ours.

    Attributes:
        ttft: Times to first token, the original's by ours.
        cached_tokens: Cached tokens, ours by the original's.
        seconds: Times of the whole pass, the original's by ours.
    """

    ttft: Ratio
    cached_tokens: Ratio
    seconds: Ratio


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Passes over the same requests on servers that are alike.

    Attributes:
        mode: "offline" or "online".
        sessions: How many requests were in flight.
        repeats: How often each pass ran.
        model: The model's name.
        cold_start: How each pass started cold.
        cache_tokens: How many tokens the server's cache holds; None where it is not known.
        passes: The original one first.
        bound: For each request the most cached tokens possible (`bound_cached_tokens`); None if unknown.
    """

    mode: str
    sessions: int
    repeats: int
    model: str
    cold_start: str
    cache_tokens: int | None
    passes: tuple[EnginePass, ...]
    bound: tuple[int, ...] | None

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.passes[0].samples[0])

    @property
    def took_turns(self) -> bool:
        """Whether the passes ran side by side, with one request in flight in all."""
        return self.sessions == 1

    @property
    def tells_cached_tokens(self) -> bool:
        """Whether the server reports cached tokens at all."""
        return any(one.tells_cached_tokens for one in self.passes)

    @property
    def fit(self) -> PrefillFit | None:
        """The time to first token by what is computed, over all passes; None where it has no meaning."""
        if not self.took_turns or not self.tells_cached_tokens:
            return None
        samples = [s for one in self.passes for repeat in one.samples for s in repeat if s.error is None]
        prompts = [sample.prompt_tokens for sample in samples if sample.prompt_tokens is not None]
        if len(prompts) != len(samples):
            return None
        cached = [sample.cached_tokens or 0 for sample in samples]
        return fit_prefill(prompts, cached, [sample.ttft for sample in samples])

    @property
    def ttft_total_bound(self) -> float | None:
        """The least seconds until first tokens, of all requests together.

        It is what the original pass took, less what `fit` says of the tokens that each request could have
        found cached besides (`bound`). So it is no less where nothing can be found.
        """
        fit, original, every = self.fit, self.passes[0], range(self.requests)
        if self.bound is None or not self.took_turns:
            return None
        ttfts = original.per_request(lambda sample: sample.ttft, every)
        prompts = original.per_request(lambda sample: sample.prompt_tokens or 0, every)
        cached = original.per_request(lambda sample: sample.cached_tokens or 0, every)
        if cached == list(self.bound):
            return original.ttft_total  # Whatever a token takes.
        if fit is None:
            return None
        return sum(
            max(0.0, ttft - fit.saved(prompt, most, instead_of=found))
            for ttft, prompt, found, most in zip(ttfts, prompts, cached, self.bound, strict=True)
        )

    def compare(self, ours: EnginePass) -> Comparison:
        """Compare a pass with the original one, over the requests that no pass failed."""
        original = self.passes[0]
        kept = [
            place
            for place in range(self.requests)
            if all(repeat[place].error is None for one in self.passes for repeat in one.samples)
        ]
        ttft_bound = seconds_bound = cached_bound = None
        if least := self.ttft_total_bound:
            ttft_bound = original.ttft_total / least
            # All but the prefill takes what it took.
            seconds_bound = original.seconds / (original.seconds - original.ttft_total + least)
        if self.bound is not None and original.cached_tokens:
            cached_bound = sum(self.bound) / original.cached_tokens

        def ratio(
            above: EnginePass, below: EnginePass, what: Callable[[Sample], float], **rest: Any
        ) -> Ratio:
            return ratio_of_sums(above.per_request(what, kept), below.per_request(what, kept), **rest)

        cached = Ratio()
        if self.tells_cached_tokens:
            cached = ratio(ours, original, lambda sample: sample.cached_tokens or 0, bound=cached_bound)
        return Comparison(
            ttft=ratio(original, ours, lambda sample: sample.ttft, bound=ttft_bound),
            cached_tokens=cached,
            seconds=ratio(
                original,
                ours,
                lambda sample: sample.duration / self.sessions,
                constants=(self._overhead(original), self._overhead(ours)),
                bound=seconds_bound,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures under plain names: of a pass behind its name, of a comparison before it."""
        fit = self.fit
        figures: dict[str, Any] = {
            "mode": self.mode,
            "sessions": self.sessions,
            "repeats": self.repeats,
            "requests": self.requests,
            "model": self.model,
            "cold_start": self.cold_start,
            "cache_tokens": self.cache_tokens,
            "cached_tokens_bound": None if self.bound is None else sum(self.bound),
            "ttft_fit_s": None if fit is None else fit.seconds_per_request,
            "ttft_fit_s_per_1000_tokens": None if fit is None else 1e3 * fit.seconds_per_token,
            "ttft_fit_s_per_1000000_pairs": None if fit is None else 1e6 * fit.seconds_per_pair,
        }
        for one in self.passes:
            cached = one.cached_tokens if self.tells_cached_tokens else None
            prompt = one.prompt_tokens
            figures |= {
                f"failed_{one.name}": one.failed,
                f"prompt_tokens_{one.name}": prompt,
                f"cached_tokens_{one.name}": cached,
                f"cached_share_{one.name}": cached / prompt if cached is not None and prompt else None,
                f"ttft_p50_s_{one.name}": one.ttft_p50,
                f"ttft_mean_s_{one.name}": one.ttft_mean,
                f"ttft_total_s_{one.name}": one.ttft_total,
                f"seconds_{one.name}": one.seconds,
            }
        for one in self.passes[1:]:
            compared, prefix = self.compare(one), "events_" if one.name == "ours_events" else ""
            figures |= compared.ttft.to_dict(f"{prefix}ttft_ratio")
            figures |= compared.cached_tokens.to_dict(f"{prefix}cached_tokens_ratio")
            figures |= compared.seconds.to_dict(f"{prefix}seconds_ratio")
        return figures

    def _overhead(self, one: EnginePass) -> float:
        """Return what a pass took beside its requests, had all sessions been busy all the time: planning."""
        answered = sum(sample.duration for repeat in one.samples for sample in repeat if sample.error is None)
        return one.seconds - answered / self.repeats / self.sessions
