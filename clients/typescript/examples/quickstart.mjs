// Submits a run, follows it, answers its questions, and prints the report.
//
//   millrace up --api                          in another terminal
//   node examples/quickstart.mjs [URL]

import { Client } from '../src/index.js'

const client = new Client({ url: process.argv[2] ?? 'http://127.0.0.1:7070' })
const notes = '# The mill\n\nThe mill race turns the wheel. The wheel turns the stone.\n'
const run = await client.submit({ objective: 'What turns the stone?', documents: { 'mill.md': notes }, approve_plan: true })
console.log(`run ${run.id}`)
for await (const event of run.events()) {
  console.log(event.id, event.type, event.data.task ?? '')
  if (event.type !== 'plan_question_asked' && event.type !== 'attempt_parked') continue
  for (const question of await run.questions()) {
    console.log(`? ${question.text}`)
    await run.answer(question, question.kind === 'input' ? { value: 'yes' } : { approve: true })
  }
}
console.log(await run.report())
