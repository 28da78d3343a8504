// Embed texts with OpenAI's own client: node examples/embeddings.mjs [URL]   (npm install --prefix examples)
import OpenAI from "openai";

const TEXTS = ["Where does a river flow?", "Rivers carry water to the sea.", "Bread is baked in an oven."];

const url = process.argv[2] ?? "http://127.0.0.1:8000";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" }); // a key where the gateway has a tenants file
const answer = await client.embeddings.create({ model: "minilm", input: TEXTS });

const [question, ...others] = answer.data.map((item) => item.embedding);
others.forEach((vector, index) => {
  const cosine = vector.reduce((sum, number, at) => sum + number * question[at], 0); // minilm's vectors have length 1
  console.log(`${cosine.toFixed(3)}  ${TEXTS[index + 1]}`);
});
console.log(`${answer.usage.prompt_tokens} tokens`);
