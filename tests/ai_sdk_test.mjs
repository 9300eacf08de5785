// The tests of ai_sdk_test.py: node ai_sdk_test.mjs PORT QUESTIONS_AS_JSON CALL, in the folder of the client. CALL is what
// the base model repeats as a call of the tool `double` with the number 21.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import test from 'node:test';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const { APICallError, Output, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } = require('ai');
const { createOpenAI } = require('@ai-sdk/openai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { z } = require('zod');

const [port, questions, call] = [process.argv[2], JSON.parse(process.argv[3]), process.argv[4]];
const baseURL = `http://127.0.0.1:${port}/v1`;
const compatible = createOpenAICompatible({ name: 'loramux', baseURL, supportsStructuredOutputs: true, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey: 'unused' });
// The three ways to a model: both packages' chat, and OpenAI's responses, which is the default of @ai-sdk/openai.
const ways = { compatible: (name) => compatible(name), chat: (name) => openai.chat(name), responses: (name) => openai(name) };
const greedy = { temperature: 0, maxOutputTokens: 400, maxRetries: 0 };

const each = (name, run) => {
  for (const [way, model] of Object.entries(ways)) test(`${name}: ${way}`, () => run(model, way));
};

// Reads a stream to its end; an error in it fails the test, which the SDK would only print.
const streamed = (start, options) => new Promise((resolve, reject) => {
  const stream = start({ ...options, onError: ({ error }) => reject(error) });
  (async () => {
    const deltas = [];
    for await (const part of stream.fullStream) if (part.type === 'text-delta') deltas.push(part.text);
    resolve({ stream, deltas });
  })().catch(reject);
});

each('text, whole and streamed', async (model) => {
  for (const { model: name, prompt, answer } of questions) {
    const asked = { model: model(name), prompt, ...greedy };
    const whole = await generateText(asked);
    assert.equal(whole.text, answer);
    assert.equal(whole.finishReason, 'stop');
    assert.equal(whole.response.modelId, name);
    assert.equal(whole.usage.totalTokens, whole.usage.inputTokens + whole.usage.outputTokens);
    assert.ok(whole.usage.outputTokens > 0);
    const { stream, deltas } = await streamed(streamText, asked);
    assert.equal(deltas.join(''), answer);
    assert.equal(await stream.finishReason, 'stop');
    assert.deepEqual([(await stream.usage).inputTokens, (await stream.usage).outputTokens],
      [whole.usage.inputTokens, whole.usage.outputTokens]);
  }
});

each('a conversation that the length ends', async (model) => {
  const whole = await generateText({
    model: model('upper'), ...greedy, maxOutputTokens: 2, system: 'be loud',
    messages: [{ role: 'user', content: 'a' }, { role: 'assistant', content: 'A' },
      { role: 'user', content: [{ type: 'text', text: 'hello' }] }],
  });
  assert.equal(whole.finishReason, 'length');
  assert.equal(whole.usage.outputTokens, 2);
});

const person = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(120) });

each('objects, whole and streamed', async (model) => {
  const asked = { model: model('json'), schema: person, prompt: 'name=bob age=7', ...greedy };
  const whole = await generateObject(asked);
  assert.deepEqual(whole.object, { name: 'bob', age: 7 });
  assert.equal(whole.finishReason, 'stop');
  const stream = streamObject(asked);
  let last;
  for await (const piece of stream.partialObjectStream) last = piece;
  assert.deepEqual(last, whole.object);
  assert.deepEqual(await stream.object, whole.object);
  const text = await generateText({ ...asked, output: Output.object({ schema: person }) });
  assert.deepEqual(text.output, whole.object);
});

each('choices', async (model) => {
  const asked = { model: model('demo'), output: 'enum', enum: ['yes', 'no'], prompt: 'x', ...greedy };
  assert.ok(['yes', 'no'].includes((await generateObject(asked)).object));
});

each('a tool and the answer to its result', async (model) => {
  const calls = [];
  const tools = {
    double: tool({
      description: 'Doubles a number.', inputSchema: z.object({ number: z.number().int() }),
      execute: async ({ number }) => { calls.push(number); return 2 * number; },
    }),
  };
  const asked = { model: model('demo'), prompt: call, tools, stopWhen: stepCountIs(3), ...greedy };
  const whole = await generateText(asked);
  assert.deepEqual(calls, [21]);
  assert.equal(whole.text, '42');
  assert.deepEqual(whole.steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
  const { stream } = await streamed(streamText, asked);
  assert.deepEqual(calls, [21, 21]);
  assert.equal(await stream.text, '42');
  assert.deepEqual((await stream.steps).map((step) => step.finishReason), ['tool-calls', 'stop']);
});

each('a tool that must be called', async (model) => {
  const heat = tool({ inputSchema: z.object({ unit: z.enum(['C', 'F']), on: z.boolean() }) });
  for (const toolChoice of ['required', { type: 'tool', toolName: 'heat' }]) {
    const asked = { model: model('demo'), prompt: 'x', tools: { heat }, toolChoice, ...greedy };
    const whole = await generateText(asked);
    assert.equal(whole.toolCalls[0].toolName, 'heat');
    assert.deepEqual(Object.keys(whole.toolCalls[0].input).sort(), ['on', 'unit']);
    const { stream } = await streamed(streamText, asked);
    assert.deepEqual((await stream.toolCalls)[0].input, whole.toolCalls[0].input);
  }
});

each('errors', async (model) => {
  await assert.rejects(generateText({ model: model('unknown'), prompt: 'x', ...greedy }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.message, error.isRetryable],
      [404, 'The model `unknown` does not exist.', false]);
    return true;
  });
  await assert.rejects(streamed(streamText, { model: model('demo'), prompt: 'x', ...greedy, topP: 7 }),
    (error) => error.statusCode === 400);
});

test('embeddings', async () => {
  for (const model of [compatible.embeddingModel('demo'), openai.embedding('demo')]) {
    const { embeddings, usage } = await embedMany({ model, values: ['hello', 'world'], maxRetries: 0 });
    assert.equal(embeddings.length, 2);
    assert.equal(embeddings[0].length, 192);
    assert.ok(usage.tokens > 0);
  }
});

test('a stream can be left', async () => {
  const abort = new AbortController();
  const stream = streamText({
    model: compatible('count'), prompt: 'hello', ...greedy, maxOutputTokens: 900, abortSignal: abort.signal,
    providerOptions: { loramux: { ignore_eos: true } },
  });
  for await (const part of stream.fullStream) {
    if (part.type === 'text-delta') abort.abort();   // ai_sdk_test.py waits for the server to be idle
  }
});
