// A gateway of a test that serves a log of events, and cuts its connections at random bytes.

import { createServer } from 'node:http'
import { once } from 'node:events'

/**
 * Pseudorandom numbers from 0 to 1, the same for the same seed.
 *
 * @param {number} seed
 */
export function seededRandom(seed) {
  let state = (seed + 1) * 0x9e3779b9
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** @param {() => number} random @param {number} end */
function below(random, end) {
  return Math.floor(random() * end)
}

/** @param {string | undefined} id @param {string} name @param {object} data */
export function frame(id, name, data) {
  return `${id === undefined ? '' : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify({ type: name, ...data })}\n\n`
}

/**
 * @param {import('node:http').RequestListener} handler
 * @returns {Promise<{url: string, close: () => Promise<unknown>}>}
 */
export async function serve(handler) {
  const server = createServer(handler)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  const close = () => {
    server.closeAllConnections()
    return new Promise((resolve) => server.close(resolve))
  }
  return { url: `http://127.0.0.1:${address.port}`, close }
}

/**
 * A log of events with ids like those of the gateway: with gaps, and several events of one sequence.
 *
 * @param {() => number} random
 */
export function makeLog(random) {
  const log = []
  let sequence = 0
  for (let number = 0; number < 5 + below(random, 30); number += 1) {
    sequence += 1 + below(random, 9)
    for (let index = 0; index < ([1, 1, 1, 2, 5][below(random, 5)] ?? 1); index += 1) {
      const text = 'ä€𝄞\n'.repeat([0, 1, 40][below(random, 3)] ?? 0)
      log.push({ id: `${sequence}.${index}`, name: random() < 0.5 ? 'step' : 'task_completed', data: { number, text } })
    }
  }
  return log
}

/**
 * Serves a log from the client's position on.
 *
 * @param {() => number} random
 * @param {ReturnType<typeof makeLog>} log
 * @returns {import('node:http').RequestListener}
 */
export function unreliable(random, log) {
  let faults = 0
  return (request, response) => {
    const fault = faults > 25 ? 1 : random()
    faults += 1
    if (fault < 0.05) {
      response.writeHead(503, { 'content-type': 'application/problem+json' })
      response.end(JSON.stringify({ type: 'urn:millrace:problem:cluster-unavailable', title: 'x', status: 503, detail: 'x' }))
      return
    }
    if (fault < 0.1) {
      response.writeHead(502, { 'content-type': 'text/html' }).end('<html>bad gateway</html>')
      return
    }
    const last = request.headers['last-event-id']
    const begin = last === undefined ? 0 : log.findIndex((event) => event.id === last) + 1
    let text = ': millrace events\n\n'
    // A proxy repeats the last event that the client has.
    const from = begin > 0 && fault < 0.2 ? begin - 1 : begin
    for (const { id, name, data } of log.slice(from)) {
      text += frame(id, name, data)
      if (random() < 0.2) text += random() < 0.5 ? ': keep-alive\n\n' : frame(undefined, 'lagged', {})
    }
    if (fault < 0.3) text = text.slice(0, text.indexOf('\n\n') + 2) + frame(undefined, 'gateway_stopping', {})
    else text += frame(undefined, 'end', { last: log.at(-1)?.id })
    const bytes = Buffer.from(text)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const cut = fault < 0.9 ? below(random, Math.min(bytes.length, random() < 0.5 ? 300 : bytes.length)) : bytes.length
    for (let start = 0; start < cut; ) {
      const size = [1, 7, 100, 5_000][below(random, 4)] ?? 1
      response.write(bytes.subarray(start, Math.min(cut, start + size)))
      start += size
    }
    if (cut < bytes.length) setTimeout(() => response.destroy(), 1)
    else response.end()
  }
}
