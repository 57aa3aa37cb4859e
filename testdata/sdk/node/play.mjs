// What the clients' programs share.

// weather is the tool that the scripts call.
export const weather = (city) => ({ Paris: 'sunny', Rome: 'rain' })[city] ?? 'unknown'

// play runs the features that the command line names, side by side, and prints
// one line of JSON for each. An error is an answer too: clients must be able to
// tell what went wrong.
export async function play (features) {
  await Promise.all(process.argv.slice(2).map(async (feature) => {
    const run = features[feature]
    let answer
    try {
      answer = run ? await run() : { outcome: 'missing', message: `no feature ${feature}` }
    } catch (err) {
      const cause = err.lastError ?? err
      answer = {
        outcome: 'error',
        status: cause.status ?? cause.statusCode,
        code: cause.code ?? cause.data?.error?.code,
        message: String(err.message ?? err),
        stack: err.stack,
      }
    }
    const { output, ...rest } = answer
    console.log(JSON.stringify({ feature, ...rest }))
  }))
}
