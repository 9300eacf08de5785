// The tests of page_test.py: node page_test.mjs PORT QUESTIONS_AS_JSON FACTS_AS_JSON, in the folder of the clients.
// The page stands behind a proxy that removes a path prefix, and behind API keys.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import path from 'node:path';
import test, { after, before } from 'node:test';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const puppeteer = require('puppeteer-core');
const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const port = Number(process.argv[2]);
const questions = JSON.parse(process.argv[3]);
const facts = JSON.parse(process.argv[4]);
const PREFIX = '/a/prefix';
const PATIENCE = 120_000;
const HOSTILE = '<img src=x onerror="document.title=1">';
const PARTS = ['playground', 'adapters', 'live', 'replay'];

let browser, proxy, origin, home;
const complaints = [];   // of all pages: what the browser refused, requests elsewhere, errors of scripts

// Removes PREFIX, as an operator's proxy does. Anything else is not found.
function prefixProxy() {
  return http.createServer((request, response) => {
    if (!request.url.startsWith(`${PREFIX}/`)) { response.writeHead(404).end(); return; }
    const forward = http.request({ port, host: '127.0.0.1', method: request.method, path: request.url.slice(PREFIX.length),
      headers: { ...request.headers, host: `127.0.0.1:${port}` } }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    forward.on('error', () => response.destroy());
    response.on('close', () => forward.destroy());
    request.pipe(forward);
  });
}

before(async () => {
  proxy = prefixProxy();
  await new Promise((resolve) => { proxy.listen(0, '127.0.0.1', resolve); });
  origin = `http://127.0.0.1:${proxy.address().port}`;
  home = `${origin}${PREFIX}/`;
  browser = await puppeteer.launch({ executablePath: facts.browser, headless: true, protocolTimeout: PATIENCE,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking'] });
});
after(async () => {
  await browser?.close();
  proxy?.closeAllConnections();
  proxy?.close();
});

async function open(url, { theme = 'light', width = 1440, height = 900, key = facts.key, admin = facts.admin } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }]);
  await page.evaluateOnNewDocument((api, adminKey) => {
    if (api) sessionStorage.setItem('loramux.api-key', api);
    if (adminKey) sessionStorage.setItem('loramux.admin-key', adminKey);
    window.refused = [];
    document.addEventListener('securitypolicyviolation', (event) => window.refused.push(`${event.violatedDirective} ${event.blockedURI}`));
  }, key, admin);
  page.on('request', (request) => {
    const to = request.url();
    if (!to.startsWith(home) && !to.startsWith('data:') && !to.startsWith('blob:')) complaints.push(`a request to ${to}`);
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    const text = message.text();
    const expected = /status of (401|503|400)/.test(text);
    if (message.type() === 'error' && !expected) complaints.push(`console: ${text}`);
  });
  await page.goto(url, { waitUntil: 'load' });
  return page;
}

async function close(page) {
  complaints.push(...await page.evaluate(() => window.refused));
  await page.browserContext().close();
}

const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent);
const waitText = (page, selector, wanted) => page.waitForFunction(
  (s, w) => [...document.querySelectorAll(s)].some((element) => element.textContent.includes(w)), {}, selector, wanted);
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };
const focused = (page) => page.evaluate(() => {
  const at = document.activeElement;
  return at.getAttribute('aria-label') ?? at.labels?.[0]?.textContent ?? at.textContent;
});
// Tab until what has the focus is called `name`: as a person without a mouse does.
async function tabTo(page, name, { back = false, most = 200 } = {}) {
  for (let i = 0; i < most; ++i) {
    if (back) await page.keyboard.down('Shift');
    await press(page, 'Tab');
    if (back) await page.keyboard.up('Shift');
    if ((await focused(page))?.trim() === name) return;
  }
  assert.fail(`no ${name} within ${most} tabs; the focus is on ${await focused(page)}`);
}

const answerOf = (page, model) => page.evaluate((name) => {
  const pane = [...document.querySelectorAll('.pane')].find((each) => each.querySelector('h3').textContent === name);
  const value = (label) => [...pane.querySelectorAll('.facts div')].find((d) => d.firstChild.textContent === label).lastChild.textContent;
  return pane && { text: pane.querySelector('.said:last-child').textContent, end: value('End'), ttft: value('TTFT'), tokens: value('Tokens'), speed: value('Tokens/s') };
}, model);
const waitAnswers = (page) => waitText(page, '#status', 'answers are complete');

async function choose(page, ...models) {
  await page.waitForSelector('.choice input');
  for (const box of await page.$$('.choices input:checked')) await box.click();
  for (const model of models) {
    await page.$eval('input[type=search]', (input) => { input.value = ''; });
    await page.type('#panel-playground input[type=search]', model);
    await page.evaluate((name) => document.querySelector(`.choices input[value="${name}"]`).click(), model);
  }
}

test('a stranger sees the page but no data, and enters the key by keyboard', async () => {
  const page = await open(home, { key: '', admin: '' });
  await waitText(page, '#notice', 'needs an API key');
  assert.equal(await page.$('.choice'), null);
  await press(page, 'Tab');
  assert.equal(await focused(page), 'Skip to the content');
  await tabTo(page, 'Enter it');
  await press(page, 'Enter');
  assert.equal(await focused(page), 'API key');
  await page.keyboard.type(facts.key);
  await press(page, 'Enter');
  await page.waitForSelector('.choice');
  // The head of the page asks for itself: the list of adapters can be there before it.
  await waitText(page, '#model', 'demo');
  assert.equal(await textOf(page, '#model'), 'demo');
  const kept = await page.evaluate(() => [sessionStorage.getItem('loramux.api-key'), localStorage.length, document.cookie]);
  assert.deepEqual(kept, [facts.key, 0, '']);
  await close(page);
});

test('two adapters answer side by side, by keyboard alone', async () => {
  const [first, second] = questions.filter((q) => ['reverse', 'upper'].includes(q.model));
  const page = await open(home);
  await page.waitForSelector('.choice');
  await tabTo(page, 'Find');
  await page.keyboard.type('reverse');
  await press(page, 'Tab', 'Space');
  await tabTo(page, 'Find', { back: true });
  await press(page, ...Array(7).fill('Backspace'));
  await page.keyboard.type('upper');
  await press(page, 'Tab', 'Space');
  await tabTo(page, 'Do not ask demo');
  await press(page, 'Enter');
  await tabTo(page, 'Prompt');
  await page.keyboard.type(first.prompt);
  await page.keyboard.down('Control');
  await press(page, 'Enter');
  await page.keyboard.up('Control');
  await waitAnswers(page);
  const answer = await answerOf(page, first.model);
  assert.equal(answer.text, first.answer);
  assert.equal(answer.end, 'stop');
  assert.match(answer.ttft, /^[\d.,]+ m?s$/);
  assert.match(answer.tokens, /^\d+$/);
  assert.ok((await answerOf(page, second.model)).text.length > 0);
  await close(page);
});

test('adapters that write no text are not offered', async () => {
  const page = await open(home);
  await page.waitForSelector('.choice');
  await page.type('#panel-playground input[type=search]', 'sentiment');
  await waitText(page, '#panel-playground', 'No model has such a name.');
  assert.equal(await page.$('.choice'), null);
  await page.goto(`${home}#adapters`);
  await page.waitForSelector('.adapters tbody tr');
  await page.type('#panel-adapters input[type=search]', 'sentiment');
  await page.waitForFunction(() => document.querySelectorAll('.adapters tbody tr').length === 1);
  await close(page);
});

test('structured output, sampling settings, and stop', async () => {
  const page = await open(home);
  await choose(page, 'demo');
  await page.type('#panel-playground form > .field:nth-of-type(2) textarea', 'hello');
  await page.select('#panel-playground select', 'schema');
  const shape = await page.$('textarea.code');
  await shape.click({ count: 3 });
  await page.$eval('textarea.code', (area) => { area.value = '{"type":'; });
  await page.click('button.primary[type=submit]');
  await waitText(page, '[role=alert]', 'The schema is not JSON');
  const schema = { type: 'object', properties: { ok: { enum: [true] } }, required: ['ok'], additionalProperties: false };
  await page.$eval('textarea.code', (area, text) => { area.value = text; }, JSON.stringify(schema));
  await page.click('button.primary[type=submit]');
  await waitAnswers(page);
  assert.deepEqual(JSON.parse((await answerOf(page, 'demo')).text), { ok: true });
  // A long answer, of which the button makes a short one.
  await page.select('#panel-playground select', 'regex');
  await page.$eval('textarea.code', (area) => { area.value = '[ab]{700}'; });
  await page.evaluate(() => { [...document.querySelectorAll('label')].find((l) => l.textContent === 'Most tokens').nextSibling.value = '700'; });
  // Pressed at its first letters, in the page: the answer may be complete before a command from outside arrives.
  await page.evaluate(() => {
    const stop = [...document.querySelectorAll('button')].find((b) => b.textContent === 'Stop');
    new MutationObserver(() => { if (document.querySelector('.said')?.textContent) stop.click(); })
      .observe(document.querySelector('.answers'), { childList: true, subtree: true });
  });
  await page.click('button.primary[type=submit]');
  await page.waitForFunction(() => [...document.querySelectorAll('.facts dd')].some((d) => d.textContent === 'stopped'));
  assert.ok((await answerOf(page, 'demo')).text.length < 700);
  await close(page);
});

test('hundreds of adapters: found, sorted, loaded, pinned and unloaded', async () => {
  const page = await open(`${home}#adapters`);
  const rows = () => page.$$eval('.adapters tbody tr', (all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
  await page.waitForSelector('.adapters tbody tr');
  assert.equal((await rows()).length, 100);
  await page.evaluate(() => [...document.querySelectorAll('button')].find((b) => b.textContent === 'Show more').click());
  await page.waitForFunction((many) => document.querySelectorAll('.adapters tbody tr').length > many, {}, facts.many);
  await page.type('#panel-adapters input[type=search]', 'broken');
  await page.waitForFunction(() => document.querySelectorAll('.adapters tbody tr').length === 1);
  assert.match((await rows())[0][1], /^Broken/);
  const find = await page.$('#panel-adapters input[type=search]');
  const search = async (text) => { await find.click({ count: 3 }); await press(page, 'Backspace'); await find.type(text); };
  await search('');
  await page.click('.adapters th:nth-child(1) .sort');
  assert.equal(await page.$eval('.adapters th:nth-child(1)', (th) => th.getAttribute('aria-sort')), 'descending');
  assert.equal((await rows())[0][0], 'upper');

  // A name that would be markup, and a pin.
  await page.evaluate(() => document.querySelector('details.box summary').click());
  const load = await page.$$('#panel-adapters details input');
  await load[0].type(HOSTILE);
  await load[1].type(`${facts.adapters}/count`);
  await load[2].click();
  await page.click('#panel-adapters details button[type=submit]');
  await waitText(page, '#notice', 'added successfully');
  await search('<img');
  await waitText(page, '.adapters .place', 'Device');
  const [row] = await rows();
  assert.equal(row[0], HOSTILE);
  assert.match(row[1], /pinned/);
  assert.match(row[8], /ms|s/);   // its load took a while
  assert.equal(await page.$('.adapters img'), null);

  // Unpinned and unloaded by keyboard.
  await page.focus('#panel-adapters input[type=search]');
  await tabTo(page, `Unpin ${HOSTILE}`);
  await press(page, 'Enter');
  await page.waitForFunction(() => document.querySelector('.adapters .pinned').hidden);
  await tabTo(page, `Unload ${HOSTILE}`);
  await press(page, 'Enter');
  await page.waitForSelector('dialog[open] strong');
  assert.equal(await textOf(page, 'dialog[open] strong'), HOSTILE);
  await tabTo(page, 'Unload', { most: 4 });
  await press(page, 'Enter');
  await waitText(page, '#notice', 'removed successfully');
  await page.waitForFunction(() => document.querySelectorAll('.adapters tbody tr').length === 0);
  await close(page);

  const guest = await open(`${home}#adapters`, { admin: 'not the key' });
  await guest.waitForSelector('.adapters tbody tr');
  await guest.evaluate(() => [...document.querySelectorAll('.adapters button')].find((b) => b.textContent === 'Pin').click());
  await waitText(guest, '#notice', 'needs the admin key');
  await close(guest);
});

async function post(model, more) {
  const answer = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, { method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${facts.key}` },
    body: JSON.stringify({ model, messages: [{ role: 'user', content: 'hello' }], ...more }) });
  assert.equal(answer.status, 200);
  return answer.json();
}

test('Live shows what runs, only while it is shown', async () => {
  const page = await open(home);
  await page.focus('#tab-playground');
  await press(page, 'ArrowRight', 'ArrowRight');
  assert.equal(await focused(page), 'Live');
  await waitText(page, '#panel-live [role=status]', 'an event a second');
  const ends = Promise.all(['reverse', 'upper', 'sort'].map((model) => post(model, { max_tokens: 50 })));
  await ends;
  await waitText(page, '#panel-live tbody th', 'reverse');
  await waitText(page, '#panel-live tbody th', 'api-key-1');
  const figures = await page.$$eval('#panel-live section tbody tr', (all) => all.map((row) => [...row.children].map((c) => c.textContent)));
  const reverse = figures.find((row) => row[0] === 'reverse');
  assert.match(reverse[5], /^[\d.,]+ m?s$/);   // TTFT p50
  assert.equal(await page.$$eval('#panel-live svg.chart path', (paths) => paths.length > 8), true);
  const label = await page.$eval('#panel-live svg.chart', (chart) => document.getElementById(chart.getAttribute('aria-labelledby')).textContent);
  assert.match(label, /^Device memory, .*Running requests .*Free /);
  await page.click('#panel-live details.numbers summary');
  await page.waitForSelector('#panel-live details.numbers[open] table');
  assert.equal(await viewers(), 2);
  await page.focus('#tab-live');
  await press(page, 'End');
  assert.equal(await focused(page), 'Replay');
  await waitUntil(async () => await viewers() === 1);
  await close(page);
});

// How many connections watch, this one too.
async function viewers() {
  const stop = new AbortController();
  const answer = await fetch(`http://127.0.0.1:${port}/internal/live`, { headers: { authorization: `Bearer ${facts.key}` }, signal: stop.signal });
  let text = '', found = [];
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    found = [...text.matchAll(/"viewers":(\d+)/g)];
    if (found.length >= 3) break;   // two events may have been begun before this connection
  }
  stop.abort();
  return Number(found.at(-1)[1]);
}

async function waitUntil(condition) {
  const until = Date.now() + PATIENCE;
  while (!await condition()) assert.ok(Date.now() < until, 'not in time');
}

async function pickRecording(page) {
  await page.waitForSelector('#panel-replay input[type=file]');
  await (await page.$('#panel-replay input[type=file]')).uploadFile(facts.result);
  await page.waitForSelector('#panel-replay svg.chart path');
}

test('Replay shows a recording, and its time moves by keyboard', async () => {
  const page = await open(`${home}#replay`);
  await pickRecording(page);
  assert.match(await textOf(page, '#panel-replay .words'), /recorded by loramux/);
  await page.focus('#panel-replay input[type=range]');
  const shown = () => textOf(page, '#panel-replay output');
  const last = await shown();
  await press(page, 'Home');
  assert.notEqual(await shown(), last);
  assert.match(await shown(), /\d+ running, \d+ waiting/);
  assert.ok(await page.$('#panel-replay .mark'));
  const wrong = path.join(facts.shots, 'wrong.json');
  fs.writeFileSync(wrong, '{"kind": "<b>other</b>"}');
  await (await page.$('#panel-replay input[type=file]')).uploadFile(wrong);
  await waitText(page, '#panel-replay [role=alert]', 'cannot be shown');
  fs.unlinkSync(wrong);
  await close(page);
});

test('the switch changes the colours, and they stay', async () => {
  const page = await open(home, { theme: 'light' });
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await ground();
  await page.select('#theme', 'dark');
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.goto(`${home}docs`, { waitUntil: 'load' });
  assert.equal(await ground(), dark);
  await page.select('#theme', 'auto');
  assert.equal(await ground(), light);
  await close(page);
});

test('/docs shows every route and field', async () => {
  const page = await open(`${home}docs`);
  await page.waitForSelector('.route');
  const paths = await page.$$eval('.route code', (all) => all.map((code) => code.textContent));
  for (const wanted of ['/v1/chat/completions', '/v1/messages', '/internal/live', '/v1/load_lora_adapter']) assert.ok(paths.includes(wanted), wanted);
  await page.focus('input[type=search]');
  await page.keyboard.type('chat/completions');
  await tabTo(page, await page.$eval('.route:not([hidden]) summary', (summary) => summary.textContent), { most: 5 });
  await press(page, 'Enter');
  await waitText(page, '.fields th code', 'temperature');
  await close(page);
});

test('axe finds nothing, and nothing is wider than the window', async () => {
  const found = [];
  for (const theme of ['light', 'dark']) {
    for (const width of [360, 1440, 3840]) {
      const page = await open(home, { theme, width, height: width === 360 ? 780 : 900 });
      await fill(page);
      for (const part of [...PARTS, 'docs']) {
        if (part === 'docs') {
          await page.goto(`${home}docs`, { waitUntil: 'load' });
          await page.waitForSelector('.route');
          await page.click('.route summary');
        } else {
          await showPart(page, part);
        }
        if (part === 'replay') await page.click('#open-keys');   // the dialog over it
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
        for (const violation of violations) found.push(`${part} ${theme} ${width}: ${violation.id}: ${violation.nodes[0].html} ${violation.nodes[0].failureSummary}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        if (wide > 0) found.push(`${part} ${width}: ${wide} pixels too wide`);
        if (part === 'replay') await press(page, 'Escape');
        if (width < 3840 || theme === 'dark') await page.screenshot({ path: path.join(facts.shots, `${part}-${theme}-${width}.png`) });
      }
      await close(page);
    }
  }
  assert.deepEqual(found, []);
});

// Something to see in each part.
async function fill(page) {
  await choose(page, 'reverse', 'upper');
  await page.type('#panel-playground form > .field:nth-of-type(2) textarea', 'hello world');
  await page.evaluate(() => document.querySelector('#panel-playground form').requestSubmit());
  await waitAnswers(page);
}

async function showPart(page, part) {
  await page.click(`#tab-${part}`);
  if (part === 'adapters') await page.waitForSelector('.adapters tbody tr');
  if (part === 'replay') await pickRecording(page);
  if (part !== 'live') return;
  await Promise.all(['reverse', 'sort', 'rot13'].map((model) => post(model, { max_tokens: 60 })));
  await waitText(page, '#panel-live tbody th', 'rot13');
  await page.click('#panel-live details.numbers summary');
}

test('no request left the origin, nothing was refused, and no script failed', () => {
  assert.deepEqual(complaints, []);
});
