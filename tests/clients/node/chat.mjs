// Talks with ws: chat.mjs URL [KEY]. Prints what came back and how the connection was closed, or how it was refused.

import WebSocket from "ws";

const [url, key] = process.argv.slice(2);
const socket = new WebSocket(url, key ? { headers: { "Idempotency-Key": key } } : {});
const heard = [];
socket.on("open", () => {
  socket.send("hello");
  socket.send(Buffer.alloc(200_000, 1));
});
socket.on("message", (data, isBinary) => {
  heard.push(isBinary ? data.length : data.toString());
  if (heard.length === 2) socket.close(1000);
});
socket.on("close", (code) => heard.length && console.log(...heard, code));
socket.on("unexpected-response", (request, answer) => {
  let text = "";
  answer.setEncoding("utf8").on("data", (data) => (text += data));
  answer.on("end", () => {
    console.log(`refused with ${answer.statusCode} ${JSON.parse(text).error.code}`);
    process.exit();
  });
});
