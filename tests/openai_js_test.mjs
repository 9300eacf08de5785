// The tests of openai_js_test.py: node openai_js_test.mjs PORT QUESTIONS_AS_JSON, in the folder of the client.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import test from 'node:test';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const OpenAI = require('openai');
const [port, questions] = [process.argv[2], JSON.parse(process.argv[3])];
const client = new OpenAI({
  baseURL: `http://127.0.0.1:${port}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 300_000,
});

const ask = (prompt) => [{ role: 'user', content: prompt }];
const greedy = { temperature: 0, max_tokens: 100 };

test('models', async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids.toSorted?.() ?? [...ids].sort(), questions.map((question) => question.model).sort());
  assert.equal((await client.models.retrieve('reverse')).object, 'model');
});

test('chat answers with each adapter, whole and streamed', async () => {
  for (const { model, prompt, answer } of questions) {
    const whole = await client.chat.completions.create({ model, messages: ask(prompt), ...greedy });
    assert.equal(whole.choices[0].message.content, answer);
    assert.equal(whole.choices[0].message.refusal, null);
    assert.equal(whole.model, model);
    const stream = await client.chat.completions.create({
      model, messages: [{ role: 'user', content: [{ type: 'text', text: prompt }] }], ...greedy, stream: true,
      stream_options: { include_usage: true },
    });
    let text = '';
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage;
    }
    assert.equal(text, answer);
    // The second time the cache has the full pages of the prompt. Where the answer filled the next page too, the cache has
    // all but one of the prompt's tokens.
    const cached = usage.prompt_tokens_details.cached_tokens;
    const pages = Math.floor((usage.prompt_tokens - 1) / 16);
    assert.ok(cached >= pages * 16 && cached < usage.prompt_tokens, `${cached} of ${usage.prompt_tokens}`);
    assert.deepEqual({ ...usage, prompt_tokens_details: whole.usage.prompt_tokens_details }, whole.usage);
  }
});

test('the stream helper accumulates', async () => {
  const stream = client.chat.completions.stream({ model: 'upper', messages: ask('hello'), ...greedy });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, 'HELLO');
  assert.equal(final.choices[0].finish_reason, 'stop');
});

test('completions of several prompts', async () => {
  const wrap = (text) => `<|bos|><|user|>${text}<|end|><|assistant|>`;
  const body = { model: 'reverse', prompt: [wrap('duxe'), wrap('hello')], ...greedy, add_special_tokens: false };
  const whole = await client.completions.create({ ...body, n: 2, logprobs: 1 });
  assert.deepEqual(whole.choices.map((choice) => choice.text), ['exud', 'exud', 'olleh', 'olleh']);
  assert.equal(whole.choices[0].logprobs.tokens.join('').slice(0, 4), 'exud');
  const texts = ['', ''];
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    for (const choice of chunk.choices) texts[choice.index] += choice.text;
  }
  assert.deepEqual(texts, ['exud', 'olleh']);
});

test('logprobs, stop, n and seed', async () => {
  const cut = await client.chat.completions.create({
    model: 'upper', messages: ask('hello'), ...greedy, stop: ['L'], logprobs: true, top_logprobs: 2,
  });
  assert.equal(cut.choices[0].message.content, 'HE');
  assert.equal(cut.choices[0].logprobs.content[0].token, 'H');
  assert.equal(cut.choices[0].logprobs.content[0].top_logprobs.length, 2);
  const sample = async () => (await client.chat.completions.create({
    model: 'demo', messages: ask('hello'), temperature: 2, max_tokens: 10, n: 3, seed: 9, ignore_eos: true,
  })).choices.map((choice) => choice.message.content);
  assert.deepEqual(await sample(), await sample());
});

test('embeddings of each adapter, as floats and as base64', async () => {
  const embed = async (model, options) =>
    (await client.embeddings.create({ model, input: ['hello', 'world'], ...options })).data.map((one) => one.embedding);
  const floats = await embed('upper', { encoding_format: 'float' });
  assert.equal(floats.length, 2);
  const rounded = (vectors) => vectors.map((vector) => Array.from(vector, Math.fround));
  assert.deepEqual(rounded(await embed('upper')), rounded(floats));   // the client asks for base64
  assert.notDeepEqual(rounded(await embed('reverse')), rounded(floats));
});

test('errors have their classes', async () => {
  const create = (body) => client.chat.completions.create({ model: 'demo', messages: ask('x'), ...body });
  await assert.rejects(create({ model: 'unknown' }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.status, error.param, error.type, error.code], [404, 'model', 'NotFoundError', 404]);
    return true;
  });
  await assert.rejects(create({ top_p: 7 }), (error) => error instanceof OpenAI.BadRequestError && error.param === 'top_p');
  await assert.rejects(create({ top_p: 7, stream: true }), OpenAI.BadRequestError);
  await assert.rejects(client.moderations.create({ model: 'demo', input: 'x' }), OpenAI.NotFoundError);
});

test('the raw response is there', async () => {
  const { data, response } = await client.chat.completions
    .create({ model: 'swap', messages: ask('a b'), ...greedy }).withResponse();
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('content-type'), 'application/json');
  assert.equal(data.choices[0].message.content, 'b a');
});

test('a stream can be left', async () => {
  const stream = await client.chat.completions.create({
    model: 'count', messages: ask('hello'), stream: true, max_tokens: 900, ignore_eos: true,
  });
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    break;   // the client aborts; openai_js_test.py waits for the server to be idle
  }
});

test('all adapters at once', async () => {
  const answers = await Promise.all(questions.map(({ model, prompt }) =>
    client.chat.completions.create({ model, messages: ask(prompt), ...greedy })));
  assert.deepEqual(answers.map((answer) => answer.choices[0].message.content), questions.map(({ answer }) => answer));
});
