// Plays the features of the Responses API with the official Node SDK, whose
// .stream() is the strictest reader of its events. One line of JSON for each
// feature that is named on the command line says what came of it.
import OpenAI from 'openai'
import { play, weather } from './play.mjs'

const client = new OpenAI({ baseURL: process.env.WEIR_URL + '/v1', apiKey: process.env.WEIR_API_KEY, maxRetries: 0 })
const limited = new OpenAI({ baseURL: client.baseURL, apiKey: process.env.WEIR_LIMITED_KEY, maxRetries: 0 })
const poor = new OpenAI({ baseURL: process.env.WEIR_POOR_URL + '/v1', apiKey: process.env.WEIR_POOR_KEY }) // with its retries
const model = 'scripted'

const textOf = (part) => part.text ?? part.refusal ?? ''
const told = (r) => ({
  text: r.output_text,
  reasoning: r.output.filter((i) => i.type === 'reasoning').flatMap((i) => i.content.map(textOf)).join(''),
  refusal: r.output.filter((i) => i.type === 'message').flatMap((i) => i.content.filter((p) => p.type === 'refusal').map(textOf)).join(''),
  calls: r.output.filter((i) => i.type.endsWith('_call')).map((i) => `${i.namespace ? i.namespace + '/' : ''}${i.name} ${i.arguments ?? i.input}`),
  outcome: r.status,
  id: r.id,
})

async function stream (body) {
  const s = client.responses.stream({ model, ...body })
  let heard = ''
  s.on('response.output_text.delta', (e) => { heard += e.delta })
  const final = await s.finalResponse()
  const answer = told(final)
  if (heard !== answer.text) throw new Error(`heard ${heard}, and the response says ${answer.text}`)
  return { ...answer, output: final.output }
}

// loop answers calls until there are none.
async function loop (prompt, tools) {
  const input = [{ role: 'user', content: prompt }]
  const calls = []
  for (;;) {
    const r = await stream({ input, tools })
    calls.push(...r.calls)
    const asked = r.output.filter((i) => i.type.endsWith('_call'))
    if (asked.length === 0) return { ...r, calls }
    input.push(...r.output)
    for (const c of asked) {
      if (c.type === 'custom_tool_call') input.push({ type: 'custom_tool_call_output', call_id: c.call_id, output: 'done' })
      else input.push({ type: 'function_call_output', call_id: c.call_id, output: weather(JSON.parse(c.arguments).city) })
    }
  }
}

const city = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }
const weatherTool = { type: 'function', name: 'weather', description: 'Weather of a city', parameters: city, strict: true }

await play({
  'streamed text': () => stream({ input: '[play text]' }),
  'text in one document': async () => told(await client.responses.create({ model, input: '[play text]' })),
  reasoning: () => stream({ input: '[play reasoning]', include: ['reasoning.encrypted_content'] }),
  'reasoning, text and a call in one turn': () => stream({ input: '[play mixed]', tools: [weatherTool] }),
  'a tool loop': () => loop('[play loop]', [weatherTool]),
  'parallel calls': () => loop('[play parallel]', [weatherTool]),
  'custom tools': () => loop('[play custom]', [{ type: 'custom', name: 'patch', description: 'Applies a patch' }]),
  'tools in namespaces': () => stream({ input: '[play namespace]', tools: [{ type: 'namespace', name: 'files', description: 'Files', tools: [{ type: 'function', name: 'read', parameters: city, strict: false }] }] }),
  'structured output': async () => {
    const schema = { type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'], additionalProperties: false }
    const r = await client.responses.parse({ model, input: '[play json]', text: { format: { type: 'json_schema', name: 'reply', schema, strict: true } } })
    return { ...told(r), text: JSON.stringify(r.output_parsed ?? JSON.parse(r.output_text)) }
  },
  refusals: () => stream({ input: '[play refusal]' }),
  'an answer that is cut off': () => stream({ input: '[play length]' }),
  'an answer without a word': () => stream({ input: '[play nothing]' }),
  'an engine that breaks off': () => stream({ model: 'flaky', input: '[play broken]' }),
  'an engine that reports an error': () => stream({ model: 'flaky', input: '[play fault]' }),
  'a rate limit': async () => {
    await limited.responses.create({ model, input: '[play text]' }).catch(() => {})
    return told(await limited.responses.create({ model, input: '[play text]' }))
  },
  'no credit left': async () => told(await poor.responses.create({ model, input: '[play text]' })),
  'a model at capacity': async () => told(await client.responses.create({ model: 'busy', input: '[play busy]' })),
  'going on from a response': async () => {
    const first = await stream({ input: '[play twice]' })
    return stream({ input: 'and then?', previous_response_id: first.id })
  },
  'a conversation': async () => {
    const conversation = await client.conversations.create({})
    await stream({ input: '[play twice]', conversation: conversation.id })
    return stream({ input: 'and then?', conversation: conversation.id })
  },
})
