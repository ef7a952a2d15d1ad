// The services that the load calls: one small handler, a fan-out and a chain.
import * as restate from "@restatedev/restate-sdk";

// Node.js 20 does not have it, and the SDK needs it.
Promise.withResolvers ??= function withResolvers() {
  const resolvers = {};
  resolvers.promise = new this((resolve, reject) => Object.assign(resolvers, { resolve, reject }));
  return resolvers;
};

const echo = restate.service({
  name: "echo",
  handlers: { one: async (context, value) => context.run("echo", () => value ?? null) },
});

const shapes = restate.service({
  name: "shapes",
  handlers: {
    fanOut: async (context, tasks) => {
      const client = context.serviceClient(echo);
      const calls = [];
      for (let number = 0; number < tasks; number += 1) calls.push(client.one(number));
      return (await restate.RestatePromise.all(calls)).length;
    },
    chain: async (context, length) => {
      const client = context.serviceClient(echo);
      let value = 0;
      for (let number = 0; number < length; number += 1) value = await client.one(value);
      return value;
    },
  },
});

restate.serve({ services: [echo, shapes], port: Number(process.env.PORT) });
