// "Try it here" and the test button of a new key: one streamed chat, shown as it arrives.
(() => {
  "use strict";
  const form = document.getElementById("try-form");
  const test = document.getElementById("test-key");
  const answer = document.getElementById("try-answer");
  const facts = document.getElementById("try-facts");
  const stop = document.getElementById("try-stop");
  const MOST = 20000; // characters of one answer or tool call the page shows
  const MOST_ERROR = 300;
  let cut = null;

  const mark = (size) => ` … cut here, ${size.toLocaleString("en")} characters in all`;
  const short = (text) =>
    text.length <= MOST_ERROR ? text : text.slice(0, MOST_ERROR) + mark(text.length);

  // One part of the answer: shows its head as it arrives, and says at the end what is left out.
  class Part {
    size = 0;
    take(text) {
      const room = MOST - this.size;
      this.size += text.length;
      if (room > 0) answer.append(text.slice(0, room));
    }
    end() {
      if (this.size > MOST) answer.append(mark(this.size));
    }
  }

  // Yields the data of each server-sent event, wherever the network splits the stream.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }

  async function credential() {
    const response = await fetch(form.action, { method: "POST", body: new FormData(form) });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
    return body.credential;
  }

  async function chat(bearer, model, text) {
    cut = new AbortController();
    const began = performance.now();
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      signal: cut.signal,
      headers: { Authorization: `Bearer ${bearer}`, "Content-Type": "application/json" },
      body: JSON.stringify({
        model,
        stream: true,
        stream_options: { include_usage: true },
        max_tokens: 400,
        messages: [{ role: "user", content: text }],
      }),
    });
    if (!response.ok) {
      const body = await response.json().catch(() => ({}));
      throw new Error(body.error?.message || `The gateway answered ${response.status}.`);
    }
    let first = 0;
    let usage = null;
    let part = new Part();
    let tool = null;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const delta = event.choices?.[0]?.delta;
      if (!delta?.content && !delta?.tool_calls) continue;
      if (!first) facts.textContent = "Writing.";
      first ||= performance.now() - began;
      if (delta.content) part.take(delta.content);
      for (const call of delta.tool_calls || []) {
        if (call.index !== tool) {
          part.end();
          part = new Part();
          tool = call.index;
          answer.append(`${answer.textContent ? "\n" : ""}Tool call ${short(call.function?.name || "")}: `);
        }
        part.take(call.function?.arguments || "");
      }
    }
    part.end();
    const took = performance.now() - began;
    const id = response.headers.get("x-request-id") || "";
    const tokens = usage ? `${usage.completion_tokens} tokens` : "tokens unknown";
    facts.textContent =
      `First word after ${(first / 1000).toFixed(1)} s, ${tokens} in ${(took / 1000).toFixed(1)} s` +
      (id ? `, request ${id}` : "");
  }

  async function run(bearer, model, text) {
    answer.hidden = false;
    answer.textContent = "";
    facts.textContent = "Sent; waiting for a slot and the first word.";
    if (stop) stop.disabled = false;
    try {
      await chat(await bearer(), model, text);
    } catch (error) {
      facts.textContent = error.name === "AbortError" ? "Stopped by you." : short(error.message);
    } finally {
      if (stop) stop.disabled = true;
    }
  }

  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    run(credential, form.elements.model.value, form.elements.text.value);
  });
  stop?.addEventListener("click", () => cut?.abort());
  test?.addEventListener("click", () => {
    const secret = document.getElementById("secret").value;
    run(async () => secret, test.dataset.model, "Say hello");
  });
})();
