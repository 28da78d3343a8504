// Ask a model from Node with nothing but fetch: node examples/ask.mjs [URL]

const TEXTS = ["have a nice day", "you are an idiot"];

const url = process.argv[2] ?? "http://127.0.0.1:8000";
const response = await fetch(`${url}/v2/models/toxicity/infer`, {
  method: "POST",
  headers: { "content-type": "application/json", "headrace-timeout-ms": "5000" },
  body: JSON.stringify({ inputs: [{ name: "text", datatype: "BYTES", shape: [TEXTS.length, 1], data: TEXTS }] }),
  signal: AbortSignal.timeout(10_000), // later than the deadline: the server answers 504 by then
});
const answer = await response.json();
if (!response.ok) {
  // 503 and 429 say when to come back; every error has a code.
  console.error(`${response.status} ${response.headers.get("headrace-error")}: ${answer.error}`);
  process.exit(1);
}

const [labels, scores] = ["label", "score"].map((name) => answer.outputs.find((o) => o.name === name).data);
TEXTS.forEach((text, row) => console.log(`${labels[row] ? "toxic" : "fine"}  ${scores[row].toFixed(3)}  ${text}`));
