// Starts small jobs over HTTP and waits for each, some at once; prints jobs per second and the median time in milliseconds.
// usage: node http_load.mjs restate|millrace URL JOBS IN_FLIGHT
import http from "node:http";

const [kind, base, jobs, inFlight] = [process.argv[2], process.argv[3], Number(process.argv[4]), Number(process.argv[5])];
const agent = new http.Agent({ keepAlive: true, maxSockets: inFlight });

function request(method, path, body) {
  return new Promise((resolve, reject) => {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    const call = http.request(base + path, { agent, method, headers }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (part) => (text += part));
      response.on("end", () =>
        response.statusCode < 300 ? resolve(text) : reject(new Error(`${path}: ${response.statusCode} ${text}`)),
      );
    });
    call.on("error", reject);
    call.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

const submission = { objective: "say it", plan: { tasks: [{ id: "a", objective: "say it", capability: "echo", review: "none" }] } };
const start = {
  restate: (number) => request("POST", "/echo/one", number),
  millrace: async () => {
    const { run } = JSON.parse(await request("POST", "/api/v1/runs", submission));
    const result = JSON.parse(await request("GET", `/api/v1/runs/${run}/wait`));
    if (result.state !== "completed") throw new Error(JSON.stringify(result));
  },
}[kind];

async function run(count) {
  const times = [];
  let next = 0;
  const one = async () => {
    while (next < count) {
      const number = next++;
      const since = performance.now();
      await start(number);
      times.push(performance.now() - since);
    }
  };
  const since = performance.now();
  await Promise.all(Array.from({ length: inFlight }, one));
  return [count / ((performance.now() - since) / 1000), times];
}

await run(Math.min(jobs, 2 * inFlight));
const [perSecond, times] = await run(jobs);
times.sort((a, b) => a - b);
console.log(JSON.stringify({ starts_per_s: perSecond, start_p50_ms: times[Math.floor(times.length / 2)] }));
agent.destroy();
