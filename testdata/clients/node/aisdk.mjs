// The Vercel AI SDK, through the provider that the first argument names:
// @ai-sdk/openai, or the vendor-neutral @ai-sdk/open-responses.
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenResponses } from '@ai-sdk/open-responses'
import { play, weather } from '../../sdk/node/play.mjs'

const [provider] = process.argv.splice(2, 1)
const modelOf = (apiKey, baseURL = process.env.WEIR_URL + '/v1') => provider === 'openai'
  ? createOpenAI({ baseURL, apiKey }).responses
  : createOpenResponses({ name: 'weir', url: baseURL + '/responses', apiKey })
const models = modelOf(process.env.WEIR_API_KEY)
const limited = modelOf(process.env.WEIR_LIMITED_KEY)
const poor = modelOf(process.env.WEIR_POOR_KEY, process.env.WEIR_POOR_URL + '/v1')

const city = jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false })
const tools = { weather: tool({ description: 'Weather of a city', inputSchema: city, execute: ({ city }) => weather(city) }) }
const finish = { stop: 'completed', 'tool-calls': 'completed', length: 'incomplete' }
const called = (steps) => steps.flatMap((s) => s.toolCalls).map((c) => `${c.toolName} ${JSON.stringify(c.input)}`)

async function stream (settings, model = 'scripted') {
  let failure
  const r = streamText({ model: models(model), maxRetries: 0, onError: ({ error }) => { failure = error }, ...settings })
  let text = ''
  let reasoning = ''
  for await (const part of r.fullStream) {
    if (part.type === 'text-delta') text += part.text
    if (part.type === 'reasoning-delta') reasoning += part.text
    if (part.type === 'error') failure = part.error
  }
  if (failure) throw failure instanceof Error ? failure : Object.assign(new Error(failure.message ?? JSON.stringify(failure)), failure)
  return { text, reasoning, calls: called(await r.steps), outcome: finish[await r.finishReason] }
}

async function whole (settings, model = models('scripted')) {
  const r = await generateText({ model, maxRetries: 0, ...settings })
  return { text: r.text, calls: called(r.steps), outcome: finish[r.finishReason] }
}

await play({
  'streamed text': () => stream({ prompt: '[play text]' }),
  'text in one document': () => whole({ prompt: '[play text]' }),
  reasoning: () => stream({ prompt: '[play reasoning]' }),
  'a tool loop': () => stream({ prompt: '[play loop]', tools, stopWhen: stepCountIs(5) }).then((r) => ({ ...r, text: r.text })),
  'parallel calls': () => whole({ prompt: '[play parallel]', tools, stopWhen: stepCountIs(5) }),
  'structured output': async () => {
    const schema = jsonSchema({ type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'], additionalProperties: false })
    const r = await generateText({ model: models('scripted'), maxRetries: 0, prompt: '[play json]', output: Output.object({ schema }) })
    return { text: JSON.stringify(r.output), outcome: finish[r.finishReason] }
  },
  'an answer that is cut off': () => stream({ prompt: '[play length]' }),
  'an engine that breaks off': () => stream({ prompt: '[play broken]' }, 'flaky'),
  'an engine that reports an error': () => stream({ prompt: '[play fault]' }, 'flaky'),
  'a rate limit': async () => {
    await whole({ prompt: '[play text]' }, limited('scripted')).catch(() => {})
    return whole({ prompt: '[play text]' }, limited('scripted'))
  },
  'no credit left': () => whole({ prompt: '[play text]', maxRetries: 2 }, poor('scripted')),
  'a model at capacity': () => whole({ prompt: '[play busy]' }, models('busy')),
  'going on from a response': async () => {
    const first = await generateText({ model: models('scripted'), maxRetries: 0, prompt: '[play twice]' })
    return whole({ prompt: 'and then?', providerOptions: { openai: { previousResponseId: first.providerMetadata.openai.responseId } } })
  },
})
