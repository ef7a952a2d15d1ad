// Streams of events over connections that are cut, and the parser of streams.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Client, GatewayUnreachable, StreamError, isProblem } from '../src/index.js'
import { StreamParser } from '../src/sse.js'
import { frame, makeLog, seededRandom, serve, unreliable } from './unreliable.mjs'

const FAST = { firstDelay: 1, maxDelay: 5, requestTime: 5_000, streamTime: 5_000 }
const SEEDS = Number(process.env.MILLRACE_STREAM_SEEDS ?? 15)

/** @param {import('../src/stream.js').EventStream} stream */
async function readAll(stream) {
  const events = []
  for await (const event of stream) events.push(event)
  return events
}

test('cut streams deliver every event once', async () => {
  for (let seed = 0; seed < SEEDS; seed += 1) {
    const random = seededRandom(seed)
    const log = makeLog(random)
    const server = await serve(unreliable(random, log))
    try {
      const stream = new Client({ url: server.url, retry: FAST }).run('r').events({ level: 'steps' })
      const events = await readAll(stream)
      assert.deepEqual(
        events.map(({ id, type, data }) => ({ id, name: type, data })),
        log.map(({ id, name, data }) => ({ id, name, data: { type: name, ...data } })),
        `seed ${seed}`,
      )
      assert.equal(stream.lastId, log.at(-1)?.id)
      assert.equal(stream.end?.last, stream.lastId)
    } finally {
      await server.close()
    }
  }
})

test('streams continue after a position and select events', async () => {
  /** @type {string[]} */
  const requests = []
  const server = await serve((request, response) => {
    requests.push(`${request.url} ${request.headers['last-event-id']} ${request.headers.authorization}`)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(frame('17.0', 'step', {}) + frame('18.0', 'step', {}) + frame(undefined, 'end', {}))
  })
  const client = new Client({ url: `${server.url}/api/v1/`, token: 'secret', retry: FAST })
  const events = await readAll(client.run('a b').events({ after: '17', types: ['step', 'run_ended'], task: 't', level: 'steps' }))
  assert.deepEqual(events.map((event) => event.id), ['18.0'])
  assert.deepEqual(requests, ['/api/v1/runs/a%20b/events?level=steps&types=step%2Crun_ended&task=t 17 Bearer secret'])
  await server.close()
})

test('output of models has no position', async () => {
  const server = await serve((_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(frame(undefined, 'delta', { text: 'a' }) + frame(undefined, 'lagged', {}) + frame(undefined, 'end', {}))
  })
  const run = new Client({ url: server.url, retry: FAST }).run('r')
  assert.deepEqual((await readAll(run.events({ level: 'live' }))).map((event) => event.type), ['delta', 'lagged'])
  assert.deepEqual((await readAll(run.events())).map((event) => event.type), ['delta'])
  await server.close()
})

test('silent and failing streams end with an error', async () => {
  let mode = 'silent'
  const server = await serve((_, response) => {
    if (mode === 'problem') {
      response.writeHead(404, { 'content-type': 'application/problem+json' })
      response.end(JSON.stringify({ type: 'urn:millrace:problem:run-not-found', title: 'x', status: 404, detail: 'no run' }))
      return
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    if (mode === 'error') response.end(frame(undefined, 'error', { run: 'r', message: 'damaged' }))
    else response.write(': begin\n\n')
  })
  const client = new Client({ url: server.url, streamTimeout: 20, retry: { ...FAST, streamTime: 100 } })
  await assert.rejects(readAll(client.run('r').events()), GatewayUnreachable)
  mode = 'problem'
  await assert.rejects(readAll(client.run('r').events()), (error) => isProblem(error, 'run-not-found'))
  mode = 'error'
  await assert.rejects(readAll(client.run('r').events()), (error) => error instanceof StreamError && error.message.includes('damaged'))
  await server.close()
})

test('a signal ends a stream', async () => {
  const server = await serve((_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(frame('1.0', 'step', {}))
  })
  const aborter = new AbortController()
  /** @type {(string | undefined)[]} */
  const seen = []
  await assert.rejects(async () => {
    for await (const event of new Client(server.url).run('r').events({ signal: aborter.signal })) {
      seen.push(event.id)
      aborter.abort()
    }
  }, { name: 'AbortError' })
  assert.deepEqual(seen, ['1.0'])
  await server.close()
})

test('messages are the same however the stream is split', () => {
  const text = '\ufeffid: 1\r\nevent: a\r\ndata: x\rdata:y\n\n: comment\nid\ndata\n\ndata: ä€𝄞\nid: 2\r\n\r\ndata: unfinished\n'
  const bytes = new TextEncoder().encode(text)
  const expected = [
    { id: '1', name: 'a', data: 'x\ny' },
    { id: '', name: 'message', data: '' },
    { id: '2', name: 'message', data: 'ä€𝄞' },
  ]
  for (let seed = 0; seed < 300; seed += 1) {
    const random = seededRandom(seed)
    const parser = new StreamParser()
    const messages = []
    for (let start = 0; start < bytes.length; ) {
      const size = 1 + Math.floor(random() * 9)
      messages.push(...parser.feed(bytes.subarray(start, start + size)))
      start += size
    }
    assert.deepEqual(messages, expected, `seed ${seed}`)
  }
})
