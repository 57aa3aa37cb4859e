// The OpenAI Agents SDK, whose runner goes round by itself until a turn calls
// no tool.
import OpenAI from 'openai'
import { Agent, OpenAIResponsesModel, Runner, setTracingDisabled, tool } from '@openai/agents'
import { play, weather } from '../../sdk/node/play.mjs'

setTracingDisabled(true)
const clientOf = (apiKey, maxRetries = 0, url = process.env.WEIR_URL) => new OpenAI({ baseURL: url + '/v1', apiKey, maxRetries })
const client = clientOf(process.env.WEIR_API_KEY)
const limited = clientOf(process.env.WEIR_LIMITED_KEY)
const poor = clientOf(process.env.WEIR_POOR_KEY, 2, process.env.WEIR_POOR_URL)

const calls = () => {
  const made = []
  return [made, tool({
    name: 'weather',
    description: 'Weather of a city',
    strict: true,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
    execute: ({ city }) => { made.push(`weather ${JSON.stringify({ city })}`); return weather(city) },
  })]
}

async function run (prompt, { stream = false, model = 'scripted', from = client, ...options } = {}) {
  const [made, weatherTool] = calls()
  const agent = new Agent({ name: 'tester', instructions: 'Answer.', model: new OpenAIResponsesModel(from, model), tools: [weatherTool] })
  const r = await new Runner({ tracingDisabled: true }).run(agent, prompt, { stream, ...options })
  if (stream) {
    for await (const _ of r) { /* to its end */ }
    await r.completed
  }
  return { text: r.finalOutput, calls: made, outcome: 'completed', id: r.lastResponseId }
}

await play({
  'streamed text': () => run('[play text]', { stream: true }),
  'text in one document': () => run('[play text]'),
  reasoning: () => run('[play reasoning]', { stream: true }),
  'a tool loop': () => run('[play loop]'),
  'parallel calls': () => run('[play parallel]', { stream: true }),
  'an engine that breaks off': () => run('[play broken]', { stream: true, model: 'flaky' }),
  'an engine that reports an error': () => run('[play fault]', { stream: true, model: 'flaky' }),
  'a rate limit': async () => {
    await run('[play text]', { from: limited }).catch(() => {})
    return run('[play text]', { from: limited })
  },
  'no credit left': () => run('[play text]', { from: poor }),
  'a model at capacity': () => run('[play busy]', { model: 'busy' }),
  'going on from a response': async () => {
    const first = await run('[play twice]')
    return run('and then?', { previousResponseId: first.id })
  },
  'a conversation': async () => {
    const { id } = await client.conversations.create({})
    await run('[play twice]', { conversationId: id })
    return run('and then?', { conversationId: id })
  },
})
