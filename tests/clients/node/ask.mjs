// Asks once, or several times at once, and prints each answer as a line of JSON: ask.mjs HOW URL KEY COUNT METHOD.
//
// HOW is `fetch` (undici, as Node has it) or `agent` (node:http with an agent that keeps connections). With RETRY set a
// request whose connection breaks is sent again on a new one, as clients do that know their request carries a key.

import http from "node:http";
import https from "node:https";

const [how, url, key, count, method] = process.argv.slice(2);
const headers = { "Content-Type": "application/json", ...(key ? { "Idempotency-Key": key } : {}) };
const body = method === "POST" ? '{"amount": 10}' : undefined;
const kept = { keepAlive: true };
const agent = url.startsWith("https") ? new https.Agent(kept) : new http.Agent(kept);

async function byFetch() {
  const answer = await fetch(url, { method, headers, body });
  return { status: answer.status, headers: Object.fromEntries(answer.headers), body: await answer.text() };
}

function byAgent() {
  return new Promise((resolve, reject) => {
    const sender = url.startsWith("https") ? https : http;
    const request = sender.request(url, { method, headers, agent }, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (data) => (text += data));
      answer.on("error", reject);
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, body: text }));
    });
    request.on("error", reject).end(body);
  });
}

async function ask() {
  const once = how === "fetch" ? byFetch : byAgent;
  try {
    return await once();
  } catch (error) {
    if (!process.env.RETRY) throw error;
    return { ...(await once()), error: (error.cause ?? error).code };
  }
}

const answers = await Promise.all(Array.from({ length: Number(count) }, ask));
for (const answer of answers) console.log(JSON.stringify(answer));
agent.destroy();
