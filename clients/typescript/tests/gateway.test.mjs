// The client with a real gateway, whose URL is in MILLRACE_TEST_API. Connections go through a proxy that cuts them.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { test } from 'node:test'

import { Client, isProblem } from '../src/index.js'
import { seededRandom } from './unreliable.mjs'

const API = process.env.MILLRACE_TEST_API
const options = { skip: API === undefined && 'MILLRACE_TEST_API is not the URL of a gateway' }
const SEEDS = Number(process.env.MILLRACE_STREAM_SEEDS ?? 2)
const PATIENT = { firstDelay: 20, maxDelay: 200 }

/**
 * A proxy that cuts most of its first connections after a random number of bytes.
 *
 * @param {number} seed
 */
async function cuttingProxy(seed) {
  const random = seededRandom(seed)
  const target = new URL(API ?? '')
  let count = 0
  const server = createServer((client) => {
    count += 1
    let left = count < 20 ? random() * ([100, 2_000, 20_000][Math.floor(random() * 3)] ?? 0) : Infinity
    const gateway = connect(Number(target.port), target.hostname)
    gateway.unref()
    client.unref()
    client.on('data', (data) => gateway.write(data)).on('close', () => gateway.destroy()).on('error', () => {})
    gateway.on('error', () => {}).on('close', () => client.destroy())
    gateway.on('data', (data) => {
      client.write(data.subarray(0, left))
      left -= data.length
      if (left <= 0) setTimeout(() => client.destroy(), 1)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  server.unref()
  return { url: `http://127.0.0.1:${address.port}`, close: () => server.close(), connections: () => count }
}

/** @param {string} id @param {object} [more] */
function echo(id, more) {
  return { id, objective: `say ${id}`, capability: 'echo', ...more }
}

test('a run is submitted, followed and read over cut connections', options, async () => {
  const direct = new Client({ url: API })
  for (let seed = 0; seed < SEEDS; seed += 1) {
    const proxy = await cuttingProxy(seed)
    const client = new Client({ url: proxy.url, retry: PATIENT })
    const tasks = [echo('a', { parameters: { steps: 5 } }), echo('b', { depends_on: ['a'], final: true })]
    const submission = { objective: 'say it', plan: { tasks }, documents: { 'notes/ä.md': '# Ä' }, labels: { seed: String(seed) } }
    const run = await client.submit(submission)
    /** @param {import('../src/index.js').Run} run */
    const read = async (run) => {
      const events = []
      for await (const event of run.events({ level: 'steps' })) events.push([event.id, event.type, event.data.task])
      return events
    }
    const events = await read(run)
    assert.deepEqual(events, await read(direct.run(run.id)), `seed ${seed}`)
    assert.deepEqual([events[0]?.[1], events.at(-1)?.[1]], ['run_started', 'run_ended'])
    const state = await run.wait({ timeout: 60 })
    assert.equal(state.state, 'completed')
    assert.equal((await run.report()).trim(), (await run.result()).output.trim())
    assert.match(await run.report('html'), /^<!doctype html>/i)
    const listed = []
    for await (const line of client.runs({ label: [`seed=${seed}`], limit: 10 })) listed.push(line.run)
    assert.ok(listed.includes(run.id))
    assert.ok(proxy.connections() > 3)
    proxy.close()
  }
})

test('a run is steered, and refusals have a kind', options, async () => {
  const client = new Client({ url: API })
  const run = await client.submit({ objective: 'wait', plan: { tasks: [echo('a', { parameters: { await_event: 'go' } })] } })
  const paused = await run.pause()
  assert.equal(paused.type, 'command_applied')
  await run.resume()
  await run.add([echo('b', { depends_on: ['a'] })])
  await run.edit('b', { objective: 'say more' })
  await assert.rejects(run.edit('missing', { objective: 'x' }), (error) => isProblem(error))
  await run.signal('go', { commit: 'abc' })
  await run.wait({ timeout: 60 })
  await assert.rejects(run.cancel('too late'), (error) => isProblem(error, 'command-refused') && error.isRefusal)
  await assert.rejects(client.run('missing').get(), (error) => isProblem(error, 'run-not-found'))
})

test('questions are answered', options, async () => {
  const client = new Client({ url: API })
  const task = echo('a', { parameters: { ask: ['Which region?'] }, final: true })
  const run = await client.submit({ objective: 'ask', plan: { tasks: [task] }, approve_plan: true })
  for await (const event of run.events()) {
    if (event.type !== 'plan_question_asked' && event.type !== 'attempt_parked') continue
    for (const question of await run.questions()) {
      const answer = await client.answer(question, question.kind === 'plan' ? { approve: true } : { value: 'eu' })
      assert.equal(answer.outcome, 'answered')
      await assert.rejects(client.answer(question, { decline: true }), (error) => isProblem(error) && error.isRefusal)
    }
  }
  assert.deepEqual((await run.result()).data, ['eu'])
  assert.equal((await run.questions({ history: true })).length, 2)
})

test('files and the cluster are read', options, async () => {
  const client = new Client({ url: API })
  assert.ok((await client.call('readVersion')).version)
  assert.ok((await client.call('listCapabilities')))
  const run = await client.submit({ objective: 'o', plan: { tasks: [echo('a')] }, documents: { 'a b/ä.md': new TextEncoder().encode('# Ä') } })
  await run.wait({ timeout: 60 })
  assert.deepEqual(await run.files(), [])
  await assert.rejects(run.file('/missing.txt'), (error) => isProblem(error, 'file-not-found'))
})
