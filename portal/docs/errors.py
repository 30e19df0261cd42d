"""The errors a program can get: code, status, meaning, what to do.

The gateway owns most of these codes; a test reads its sources and fails when one is missing here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorDoc:
    """One row of the table."""

    code: str
    status: int
    meaning: str
    do: str


WAIT = "Wait as long as Retry-After says; the openai client does so by itself."
ERRORS = (
    ErrorDoc("invalid_request", 400, "The body or an argument is wrong; the message names it.",
             "Correct the request. Trying again changes nothing."),
    ErrorDoc("invalid_json", 400, "The body is not a JSON object.", "Look at the end of the body: "
             "a missing bracket or a trailing comma."),
    ErrorDoc("invalid_http", 400, "This is no valid HTTP request.", "Look at proxies in between."),
    ErrorDoc("prompt_too_long", 400, "The prompt has more tokens than one request may have.",
             "Shorten it, or take a model with a larger context."),
    ErrorDoc("max_tokens_too_large", 400, "More output was asked for than one answer may have.",
             "Lower max_tokens."),
    ErrorDoc("context_length_exceeded", 400, "Prompt and answer together do not fit the model's "
             "context.", "Shorten the prompt or lower max_tokens."),
    ErrorDoc("wait_exceeds_timeout", 429, "The expected wait is longer than your client's own "
             "timeout, so waiting would be in vain.", "Raise the timeout, or submit a batch job."),
    ErrorDoc("weight_too_large", 400, "It asks for more answers at once (n, best_of) than a key "
             "may have in flight.", "Ask for fewer, in several requests."),
    ErrorDoc("engine_refused", 400, "The engine would not take the request and says why in its "
             "own words; the status is the engine's.", "Correct the request as the message says."),
    ErrorDoc("missing_api_key", 401, "No key was sent.", "Send Authorization: Bearer fw_…"),
    ErrorDoc("invalid_api_key", 401, "This is not a key of this server, or it is no longer "
             "alive; the message says which.", "Look for a missing letter; make or rotate a key."),
    ErrorDoc("key_expired", 401, "The key has expired.", "Rotate it on the keys page."),
    ErrorDoc("key_disabled", 401, "The key is disabled.", "Enable it on the keys page."),
    ErrorDoc("key_revoked", 401, "The key was revoked; that is final.", "Make another key."),
    ErrorDoc("revoked", 401, "The key was revoked while the request waited.", "Use another key."),
    ErrorDoc("forbidden", 403, "The key may not do this, such as use this model.",
             "Use a key that may, or ask the people who run this."),
    ErrorDoc("model_not_found", 404, "No model of that name is registered, or your key may not "
             "use it.", "List the models with GET /v1/models."),
    ErrorDoc("not_found_at_engine", 404, "The engine does not know this address or model.",
             "Tell the people who run this: the engine is not what the books say."),
    ErrorDoc("not_found", 404, "There is nothing at this address, or it is not yours.",
             "Compare with the list of addresses."),
    ErrorDoc("method_not_allowed", 405, "The address exists, but not with this method.",
             "Compare with the list of addresses."),
    ErrorDoc("request_timeout", 408, "The body did not arrive in time.", "Send it again."),
    ErrorDoc("stopped", 409, "You stopped this request in the portal, or an administrator did.",
             "Nothing; send it again if that was a mistake. What it used so far is counted."),
    ErrorDoc("body_too_large", 413, "The body is larger than this server takes.",
             "Shorten it; put large inputs into a file."),
    ErrorDoc("request_exceeds_limit", 400, "Prompt and longest answer together are more than a "
             "limit on tokens allows even when nothing of it is used; the answer names the limit.",
             "Lower max_tokens or shorten the prompt."),
    ErrorDoc("token_limit_exceeded", 400, "The batch is larger than what your limit on enqueued "
             "batch tokens has room for.", "Wait until lines have ended, or submit fewer."),
    ErrorDoc("queue_full_key", 429, "This key has as many requests waiting as it may.",
             "Send fewer at once. " + WAIT),
    ErrorDoc("queue_full_user", 429, "You have as many requests waiting as you may, over all "
             "your keys.", "Send fewer at once. " + WAIT),
    ErrorDoc("queue_full", 429, "The queue of this model is full for everyone.", WAIT),
    ErrorDoc("queue_timeout", 429, "It waited 60 s (batch: an hour) and no slot came free.",
             WAIT + " The same request keeps its place."),
    ErrorDoc("rate_limit_exceeded", 429, "Too many requests or tokens in this minute.", WAIT),
    ErrorDoc("already_held", 429, "Administrators only: the engine is held by another "
             "measurement.", "Wait for its end."),
    ErrorDoc("insufficient_quota", 429, "The tokens of the day or month are used up.",
             "Not before the reset the message names; ask for more on the dashboard."),
    ErrorDoc("engine_key_refused", 502, "The engine asks for a key of its own, which Fairway has "
             "not got or has wrong. It is not yours.", "Tell the people who run this."),
    ErrorDoc("engine_failed", 502, "The engine broke, or the way to it.",
             "Send it again; the admins see it."),
    ErrorDoc("engine_unreachable", 502, "The engine broke off before it answered.",
             "Send it again; the admins see it."),
    ErrorDoc("engine_stream_broken", 502, "The engine ended the answer early; what came is cut.",
             "Send it again. Never take the cut text for a whole answer."),
    ErrorDoc("unavailable", 503, "A part of the installation is away for a moment.", WAIT),
    ErrorDoc("no_replica", 503, "No engine of this model is up.", WAIT),
    ErrorDoc("shutting_down", 503, "This gateway process is being restarted.", WAIT),
    ErrorDoc("scheduler_unavailable", 503, "The queue's store is away for a moment.", WAIT),
    ErrorDoc("directory_unavailable", 503, "Keys cannot be checked at the moment. Yours may be "
             "fine.", WAIT),
    ErrorDoc("portal_unavailable", 503, "Pages, files and batches are away; chat goes on.", WAIT),
    ErrorDoc("measuring", 503, "The card is being measured and takes no work until the time the "
             "message names.", WAIT),
    ErrorDoc("engine_timeout", 504, "The engine accepted the request and then said nothing for "
             "too long.", "Send it again; shorten the prompt if it happens twice."),
    ErrorDoc("engine_silent", 504, "The engine fell silent in the middle of the answer.",
             "Send it again; what came is cut."),
    ErrorDoc("total_timeout", 504, "The answer took longer than one request may take.",
             "Ask for less at once."),
    ErrorDoc("internal_error", 500, "Something broke on our side.",
             "Send it again; if it stays, tell us the request id."),
)  # fmt: skip
