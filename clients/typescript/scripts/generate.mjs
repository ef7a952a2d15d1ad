// Writes types/api.d.ts and src/operations.js from gateway/openapi.json: the types of all objects, and a table of all operations.
//
//   node scripts/generate.mjs            writes the files
//   node scripts/generate.mjs --check    fails if they differ

import { readFileSync, writeFileSync } from 'node:fs'

const ROOT = new URL('../', import.meta.url)
const DOCUMENT = new URL('../../gateway/openapi.json', ROOT)
const PREFIX = '/api/v1'
const PROBLEM_PREFIX = 'urn:millrace:problem:'
// Names for schemas whose own names are no names of types.
const NAMES = { answer: 'AnswerLine', file: 'FileLine', limit: 'LimitLine', question: 'QuestionLine', result: 'RunData', run: 'RunLine' }
// Wide schemas of which an operation returns one variant.
const VARIANTS = { AppliedCommand: 'command_applied', SubmittedRun: 'run_submitted' }
const METHODS = ['get', 'put', 'post', 'delete', 'patch']

/** Returns the name of the type of a schema. */
function typeName(name) {
  return NAMES[name] ?? name.split('_').map((part) => part.charAt(0).toUpperCase() + part.slice(1)).join('')
}

/** Returns a name in camel case. */
function camelCase(name) {
  return name.replace(/[_-]+(.)/g, (_, letter) => letter.toUpperCase()).replace(/^./, (letter) => letter.toLowerCase())
}

function comment(text, indent) {
  if (!text) return ''
  const lines = text.replaceAll('*/', '* /').trim().split(/\s*\n\s*/)
  if (lines.length === 1) return `${indent}/** ${lines[0]} */\n`
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}\n`).join('')}${indent} */\n`
}

function union(types) {
  const unique = [...new Set(types)]
  if (unique.includes('unknown')) return 'unknown'
  return unique.length ? unique.join(' | ') : 'unknown'
}

function grouped(type) {
  return / [|&] /.test(type) ? `(${type})` : type
}

/** Returns the type of a schema. */
function typeOf(schema, indent = '') {
  if (typeof schema !== 'object') return schema === false ? 'never' : 'unknown'
  if (schema.$ref) return typeName(schema.$ref.split('/').at(-1))
  if ('const' in schema) return JSON.stringify(schema.const)
  if (schema.enum) return union(schema.enum.map((value) => JSON.stringify(value)))
  const variants = schema.oneOf ?? schema.anyOf
  const own = schema.properties || !variants ? ownType(schema, indent) : undefined
  if (!variants) return own
  const choice = union(variants.map((variant) => typeOf(variant, indent)))
  return own === undefined ? choice : `${grouped(own)} & ${grouped(choice)}`
}

function narrowed(name, type) {
  return VARIANTS[name] ? `Extract<${type}, { type: ${JSON.stringify(VARIANTS[name])} }>` : type
}

function ownType(schema, indent) {
  const types = [schema.type ?? (schema.properties ? 'object' : [])].flat()
  return union(types.map((type) => typeOfKind(type, schema, indent)))
}

function typeOfKind(type, schema, indent) {
  switch (type) {
    case 'string':
    case 'boolean':
    case 'null':
      return type
    case 'integer':
    case 'number':
      return 'number'
    case 'array':
      return `${grouped(typeOf(schema.items ?? true, indent))}[]`
    case 'object':
      return objectType(schema, indent)
    default:
      return 'unknown'
  }
}

function objectType(schema, indent) {
  if (schema.properties) return `{\n${fields(schema, `${indent}  `)}${indent}}`
  const values = Object.values(schema.patternProperties ?? {})[0] ?? schema.additionalProperties ?? true
  return `Record<string, ${typeOf(values, indent)}>`
}

function fields(schema, indent) {
  const required = new Set(schema.required ?? [])
  return Object.entries(schema.properties)
    .map(([name, field]) => {
      const key = /^\w+$/.test(name) ? name : JSON.stringify(name)
      const optional = required.has(name) ? '' : '?'
      return `${comment(field.description, indent)}${indent}${key}${optional}: ${typeOf(field, indent)}\n`
    })
    .join('')
}

/** Returns all operations of the document. */
function readOperations(document) {
  const operations = []
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const method of METHODS.filter((method) => method in methods)) {
      const operation = methods[method]
      const parameters = [...(methods.parameters ?? []), ...(operation.parameters ?? [])]
      const ok = Object.entries(operation.responses).filter(([status]) => status.startsWith('2'))
      operations.push({
        id: camelCase(operation.operationId),
        method: method.toUpperCase(),
        path: path.startsWith(PREFIX) ? path.slice(PREFIX.length) : path,
        isBelowApi: path.startsWith(PREFIX),
        summary: operation.summary ?? '',
        pathNames: parameters.filter((one) => one.in === 'path').map((one) => one.name),
        query: parameters.filter((one) => one.in === 'query'),
        hasKey: parameters.some((one) => one.in === 'header' && one.name === 'Idempotency-Key'),
        body: operation.requestBody?.content ?? {},
        isBodyRequired: operation.requestBody?.required === true,
        responses: ok.map(([, response]) => response.content ?? {}),
      })
    }
  }
  return operations.sort((a, b) => (a.id < b.id ? -1 : 1))
}

const MEDIA_KINDS = [
  ['application/json', 'json'],
  ['text/event-stream', 'stream'],
  ['text/', 'text'],
]

/** Returns how a response is read: as JSON, text, bytes or a stream; `none` if it has no body. */
function responseKind(operation) {
  const types = operation.responses.flatMap((content) => Object.keys(content))
  if (types.length === 0) return 'none'
  const kinds = new Set(types.map((type) => MEDIA_KINDS.find(([prefix]) => type.startsWith(prefix))?.[1] ?? 'bytes'))
  return kinds.size === 1 ? [...kinds][0] : 'any'
}

function responseType(operation, kind) {
  if (kind === 'json') {
    const schemas = operation.responses.flatMap((content) => (content['application/json'] ? [content['application/json'].schema] : []))
    return union(schemas.map((schema) => typeOf(schema ?? true, '    ')))
  }
  return { text: 'string', bytes: 'Uint8Array', stream: 'Response', any: 'Response', none: 'undefined' }[kind]
}

function argumentsType(operation) {
  const lines = operation.pathNames.map((name) => `      ${camelCase(name)}: string\n`)
  for (const parameter of operation.query) {
    const optional = parameter.required ? '' : '?'
    lines.push(`${comment(parameter.description, '      ')}      ${camelCase(parameter.name)}${optional}: ${typeOf(parameter.schema ?? true)}\n`)
  }
  const schema = operation.body['application/json']?.schema ?? operation.body['multipart/form-data']?.schema
  const hasForm = 'multipart/form-data' in operation.body
  if (schema) {
    const form = hasForm ? ' | FormData' : ''
    lines.push(`      body${operation.isBodyRequired ? '' : '?'}: ${typeOf(schema, '      ')}${form}\n`)
  }
  if (operation.hasKey) {
    lines.push('      /** A key by which a repetition is recognised; random by default. */\n      idempotencyKey?: string\n')
  }
  return lines.length ? `{\n${lines.join('')}    }` : '{}'
}

function apiModule(document, operations) {
  const schemas = Object.entries(document.components.schemas).map(([name, schema]) => [typeName(name), schema])
  const types = schemas
    .filter(([name, schema]) => schema.$ref === undefined || typeOf(schema) !== name)
    .map(([name, schema]) => `${comment(schema.description, '')}export type ${name} = ${narrowed(name, typeOf(schema))}\n`)
  const problems = document.components.schemas.Problem.properties.type.enum.map((type) => JSON.stringify(type.replace(PROBLEM_PREFIX, '')))
  const lines = operations.map((operation) => {
    const response = responseType(operation, responseKind(operation))
    return `${comment(operation.summary, '  ')}  ${operation.id}: {\n    arguments: ${argumentsType(operation)}\n    response: ${response}\n  }\n`
  })
  return `// The objects and operations of the API. Generated by scripts/generate.mjs from gateway/openapi.json; do not edit.
//
// Objects may have more fields than these, and enumerations more values: a newer gateway adds them.

${types.join('\n')}
/** The kinds of problems. */
export type ProblemKind = ${problems.join(' | ')}

/** The operations: what each takes and returns. */
export interface Operations {
${lines.join('')}}
`
}

function operationsModule(operations) {
  const lines = operations.map((operation) => {
    const { method, path, query, hasKey } = operation
    const names = query.map((parameter) => parameter.name)
    const accept = [...new Set(operation.responses.flatMap((content) => Object.keys(content)))]
    const entry = { method, path, query: names, hasKey, response: responseKind(operation), accept }
    if (!operation.isBelowApi) entry.isAbsolute = true
    return `  ${operation.id}: ${JSON.stringify(entry)},\n`
  })
  return `// The operations of the API. Generated by scripts/generate.mjs from gateway/openapi.json; do not edit.

/**
 * @typedef {object} Operation
 * @property {string} method
 * @property {string} path the path below /api/v1
 * @property {string[]} query the names of the parameters of the query
 * @property {boolean} hasKey \`true\` if a repetition is recognised by an idempotency key
 * @property {'json' | 'text' | 'bytes' | 'stream' | 'any' | 'none'} response how a response is read
 * @property {string[]} accept the media types of responses
 * @property {boolean} [isAbsolute] \`true\` if the path is not below /api/v1
 */

/** @type {Record<keyof import('../types/api.js').Operations, Operation>} */
export const operations = {
${lines.join('')}}
`
}

const document = JSON.parse(readFileSync(DOCUMENT, 'utf8'))
const operations = readOperations(document)
const files = { 'types/api.d.ts': apiModule(document, operations), 'src/operations.js': operationsModule(operations) }
for (const [name, text] of Object.entries(files)) {
  const file = new URL(name, ROOT)
  if (!process.argv.includes('--check')) {
    writeFileSync(file, text)
  } else if (readFileSync(file, 'utf8') !== text) {
    console.error(`${name} is not what gateway/openapi.json generates; run \`npm run generate\` in clients/typescript`)
    process.exitCode = 1
  }
}
