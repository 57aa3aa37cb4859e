// Drives a running Weir with the official Node SDK. Exits non-zero at the
// first promise that does not hold.
import assert from 'node:assert/strict'
import OpenAI from 'openai'

const client = new OpenAI({
  baseURL: process.env.WEIR_URL + '/v1',
  apiKey: process.env.WEIR_API_KEY,
  maxRetries: 0,
})
const model = 'sim-chat'
const messages = [{ role: 'user', content: 'Say hello in five words.' }]

const checks = {
  'lists models and finds one by id': async () => {
    const ids = []
    for await (const m of client.models.list()) ids.push(m.id)
    assert.ok(ids.includes('sim-chat') && ids.includes('sim-embed'), `models: ${ids}`)
    assert.equal((await client.models.retrieve(model)).id, model)
  },

  'answers a chat with usage': async () => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 20 })
    assert.equal(answer.model, model)
    assert.ok(answer.choices[0].message.content.length > 0)
    assert.ok(answer.usage.prompt_tokens > 0 && answer.usage.completion_tokens > 0)
  },

  'streams a chat through the strict accumulator': async () => {
    const stream = client.chat.completions.stream({
      model, messages, max_tokens: 20, stream_options: { include_usage: true },
    })
    let text = ''
    stream.on('content', (delta) => { text += delta })
    const final = await stream.finalChatCompletion()
    assert.equal(final.choices[0].message.content, text)
    assert.ok(final.choices[0].finish_reason)
    assert.ok(final.usage.completion_tokens > 0)
  },

  'streams without usage when it was not asked for': async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 8, stream: true })
    let chunks = 0
    for await (const chunk of stream) {
      chunks++
      assert.ok(chunk.usage === undefined || chunk.usage === null, 'a chunk carries usage')
      assert.equal(chunk.choices.length, 1, 'a chunk without choices')
    }
    assert.ok(chunks > 2)
  },

  'calls a tool': async () => {
    const answer = await client.chat.completions.create({
      model, messages, tool_choice: 'required',
      tools: [{
        type: 'function',
        function: {
          name: 'weather',
          parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
        },
      }],
    })
    const call = answer.choices[0].message.tool_calls[0]
    assert.equal(call.function.name, 'weather')
    JSON.parse(call.function.arguments)
  },

  'completes a prompt, streamed': async () => {
    const stream = await client.completions.create({ model, prompt: 'Once', max_tokens: 8, stream: true })
    let text = ''
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? ''
    assert.ok(text.length > 0)
  },

  'embeds': async () => {
    const answer = await client.embeddings.create({ model: 'sim-embed', input: ['a', 'b'] })
    assert.equal(answer.data.length, 2)
    assert.ok(answer.data[0].embedding.length > 0 && Number.isFinite(answer.data[0].embedding[0]))
  },

  'gets typed errors': async () => {
    await assert.rejects(client.chat.completions.create({ model: 'nobody', messages }), (err) => {
      assert.ok(err instanceof OpenAI.NotFoundError)
      assert.equal(err.code, 'model_not_found')
      assert.match(err.requestID, /^req_/)
      return true
    })
    const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: 'weir_sk_wrong', maxRetries: 0 })
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError)
  },

  'leaves a stream early': async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 500, stream: true })
    for await (const _ of stream) break
  },
}

for (const [name, check] of Object.entries(checks)) {
  await check()
  console.log('ok', name)
}
