// Requests: what is sent, what is repeated, and what errors become.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

import { Client, GatewayUnreachable, ProblemError, UnexpectedResponse, answerBody, isProblem, operations } from '../src/index.js'
import { serve } from './unreliable.mjs'

const FAST = { firstDelay: 1, maxDelay: 5, requestTime: 2_000, streamTime: 2_000 }

/**
 * @param {(request: {method: string, url: string, headers: import('node:http').IncomingHttpHeaders, body: string}, count: number) => [number, string, string] | undefined} script
 */
async function scripted(script) {
  /** @type {Parameters<typeof script>[0][]} */
  const received = []
  const server = await serve(async (request, response) => {
    let body = ''
    for await (const part of request) body += part
    const one = { method: request.method ?? '', url: request.url ?? '', headers: request.headers, body }
    received.push(one)
    const reply = script(one, received.length)
    if (reply === undefined) return response.destroy()
    response.writeHead(reply[0], { 'content-type': reply[1] }).end(reply[2])
  })
  return { ...server, received, client: new Client({ url: server.url, retry: FAST, token: 'secret' }) }
}

const JSON_TYPE = 'application/json'

test('submissions have one key in all repetitions', async () => {
  const { client, received, close } = await scripted((_, count) => {
    if (count === 1) return undefined
    if (count === 2) return [503, 'text/plain', 'busy']
    return [201, JSON_TYPE, '{"type":"run_submitted","run":"r-1","sequence":7}']
  })
  const run = await client.submit({ objective: 'o', labels: { team: 'search' } })
  assert.deepEqual([run.id, run.sequence, received.length], ['r-1', 7, 3])
  assert.equal(new Set(received.map((request) => request.headers['idempotency-key'])).size, 1)
  assert.equal(received[0]?.headers.authorization, 'Bearer secret')
  assert.deepEqual(JSON.parse(received[2]?.body ?? ''), { objective: 'o', labels: { team: 'search' } })
  await client.submit({ objective: 'o', documents: { 'a/ä.md': '# Ä' }, idempotencyKey: 'k' })
  const upload = received.at(-1)
  assert.match(upload?.headers['content-type'] ?? '', /^multipart\/form-data; boundary=/)
  assert.equal(upload?.headers['idempotency-key'], 'k')
  assert.match(upload?.body ?? '', /filename="a\/ä.md"/)
  await close()
})

test('answers are sent once, and reads are repeated', async () => {
  const { client, received, close } = await scripted((request, count) => (request.method === 'POST' || count < 4 ? undefined : [200, JSON_TYPE, '{"runs":[],"next":""}']))
  await assert.rejects(client.answer({ id: 'r/t/1/1' }, { value: 'x' }), GatewayUnreachable)
  assert.deepEqual(received.map((request) => request.url), ['/api/v1/questions/r/t/1/1'])
  const runs = []
  for await (const run of client.runs({ state: ['running'], label: ['team=a', 'b'] })) runs.push(run)
  assert.deepEqual([runs, received.length, received.at(-1)?.url], [[], 4, '/api/v1/runs?state=running&label=team%3Da%2Cb'])
  await close()
})

test('errors of the API are problems with a kind', async () => {
  const problem = { type: 'urn:millrace:problem:command-refused', title: 'refused', status: 409, detail: 'the run has ended', errors: [] }
  const { client, close } = await scripted((request) =>
    request.url.includes('pause') ? [409, 'application/problem+json', JSON.stringify(problem)] : [404, 'text/html', '<html>'],
  )
  await assert.rejects(client.run('r').pause(), (error) => {
    assert.ok(isProblem(error, 'command-refused') && error.isRefusal && error instanceof ProblemError)
    assert.equal(error.message, 'the run has ended')
    return !isProblem(error, 'run-not-found')
  })
  await assert.rejects(client.run('r').get(), UnexpectedResponse)
  await close()
})

test('pages of the list follow the cursor', async () => {
  const { client, received, close } = await scripted((request) => {
    const cursor = Number(new URL(request.url, 'http://x').searchParams.get('cursor') ?? 0)
    const runs = [0, 1, 2].map((number) => ({ run: `r-${cursor * 3 + number}` }))
    return [200, JSON_TYPE, JSON.stringify({ runs, next: cursor < 4 ? String(cursor + 1) : '' })]
  })
  const all = []
  for await (const run of client.runs()) all.push(run.run)
  assert.equal(all.length, 15)
  const some = []
  for await (const run of client.runs({ limit: 4 })) some.push(run.run)
  assert.deepEqual(some, ['r-0', 'r-1', 'r-2', 'r-3'])
  assert.equal(received.length, 7)
  await close()
})

test('a wait polls until the end', async () => {
  const { client, received, close } = await scripted((_, count) => [count < 3 ? 202 : 200, JSON_TYPE, '{"state":"running"}'])
  assert.equal((await client.run('r').wait()).state, 'running')
  assert.deepEqual(received.map((request) => request.url), Array(3).fill('/api/v1/runs/r/wait?timeout=30'))
  await assert.rejects(client.run('r').wait({ signal: AbortSignal.abort() }))
  await close()
})

test('answers have exactly one kind', () => {
  assert.deepEqual(answerBody({ approve: true }), { answer: 'approve' })
  assert.deepEqual(answerBody({ edit: { v: 1 }, scope: 'this_tool_in_run' }), { answer: 'edit', value: { v: 1 }, scope: 'this_tool_in_run' })
  assert.deepEqual(answerBody({ value: null }), { answer: 'answer', value: null })
  assert.deepEqual(answerBody({ reject: 'no' }), { answer: 'reject', text: 'no' })
  assert.throws(() => answerBody({ approve: true, reject: 'no' }), TypeError)
  // @ts-expect-error no kind
  assert.throws(() => answerBody({}), TypeError)
})

test('every operation of the document can be called', async () => {
  const document = JSON.parse(readFileSync(new URL('../../../gateway/openapi.json', import.meta.url), 'utf8'))
  const { client, received, close } = await scripted(() => [200, JSON_TYPE, '{}'])
  /** @type {string[]} */
  const expected = []
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const method of Object.keys(methods).filter((name) => name !== 'parameters')) {
      expected.push(`${method.toUpperCase()} ${path.replace(/\{\w+\}/g, 'x')}`)
    }
  }
  for (const [name, operation] of Object.entries(operations)) {
    const values = Object.fromEntries([...operation.path.matchAll(/\{(\w+)\}/g)].map(([, key]) => [key, 'x']))
    await client.call(/** @type {'readStatus'} */ (name), /** @type {{}} */ (values))
  }
  assert.deepEqual(received.map((request) => `${request.method} ${request.url}`).sort(), expected.sort())
  // @ts-expect-error an argument is missing
  await assert.rejects(client.call('readRun', {}), /the argument run is missing/)
  await close()
})
