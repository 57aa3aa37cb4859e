// LangChain's ChatOpenAI, told to use the Responses API.
import { ChatOpenAI } from '@langchain/openai'
import { HumanMessage, ToolMessage } from '@langchain/core/messages'
import { play, weather } from '../../sdk/node/play.mjs'

const chat = (model = 'scripted', apiKey = process.env.WEIR_API_KEY, more = {}) => new ChatOpenAI({
  model, apiKey, useResponsesApi: true, maxRetries: 0, configuration: { baseURL: process.env.WEIR_URL + '/v1' }, ...more,
})
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }
const weatherTool = { type: 'function', function: { name: 'weather', description: 'Weather of a city', parameters: schema } }

const told = (m) => ({
  text: m.text,
  reasoning: (m.additional_kwargs.reasoning?.content ?? []).map((p) => p.text).join(''),
  refusal: m.additional_kwargs.refusal,
  outcome: m.response_metadata.status ?? 'completed',
  id: m.response_metadata.id,
})

async function stream (model, prompt) {
  let sum
  for await (const chunk of await model.stream(prompt)) sum = sum ? sum.concat(chunk) : chunk
  return told(sum)
}

async function loop (prompt) {
  const model = chat().bindTools([weatherTool])
  const messages = [new HumanMessage(prompt)]
  const calls = []
  for (;;) {
    const m = await model.invoke(messages)
    if (m.tool_calls.length === 0) return { ...told(m), calls }
    messages.push(m)
    for (const c of m.tool_calls) {
      calls.push(`${c.name} ${JSON.stringify(c.args)}`)
      messages.push(new ToolMessage({ content: weather(c.args.city), tool_call_id: c.id }))
    }
  }
}

await play({
  'streamed text': () => stream(chat(), '[play text]'),
  'text in one document': async () => told(await chat().invoke('[play text]')),
  reasoning: async () => told(await chat().invoke('[play reasoning]')),
  'a tool loop': () => loop('[play loop]'),
  'parallel calls': () => loop('[play parallel]'),
  'structured output': async () => {
    const reply = { title: 'reply', type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'], additionalProperties: false }
    const r = await chat().withStructuredOutput(reply, { method: 'jsonSchema', strict: true }).invoke('[play json]')
    return { text: JSON.stringify(r), outcome: 'completed' }
  },
  refusals: async () => told(await chat().invoke('[play refusal]')),
  'an answer that is cut off': () => stream(chat(), '[play length]'),
  'an engine that breaks off': () => stream(chat('flaky'), '[play broken]'),
  'an engine that reports an error': () => stream(chat('flaky'), '[play fault]'),
  'a rate limit': async () => {
    const limited = chat('scripted', process.env.WEIR_LIMITED_KEY)
    await limited.invoke('[play text]').catch(() => {})
    return told(await limited.invoke('[play text]'))
  },
  'no credit left': async () => told(await chat('scripted', process.env.WEIR_POOR_KEY, { maxRetries: 2, configuration: { baseURL: process.env.WEIR_POOR_URL + '/v1' } }).invoke('[play text]')),
  'a model at capacity': async () => told(await chat('busy').invoke('[play busy]')),
  'going on from a response': async () => {
    const first = told(await chat().invoke('[play twice]'))
    return told(await chat().invoke('and then?', { previous_response_id: first.id }))
  },
})
