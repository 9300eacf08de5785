// Makes the pictures of the README: node page_picture.mjs PORT BROWSER FOLDER, in the folder of the clients. The page as it
// answers, light and dark, with fixed times in place of those measured: page-light.png, page-dark.png, and page.txt, all that
// can be read in them.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const puppeteer = require('puppeteer-core');
const [port, executablePath, folder] = process.argv.slice(2);
const PATIENCE = 120_000;
const MODELS = ['count', 'reverse', 'rot13', 'upper'];
const FIXED = { TTFT: ['24 ms', '26 ms', '27 ms', '27 ms'], 'Tokens/s': ['512', '498', '505', '501'] };

const browser = await puppeteer.launch({ executablePath, headless: true, protocolTimeout: PATIENCE,
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking', '--hide-scrollbars'] });
try {
  for (const theme of ['light', 'dark']) {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await page.setViewport({ width: 1180, height: 552, deviceScaleFactor: 1.5 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }]);
    await page.goto(`http://127.0.0.1:${port}/`, { waitUntil: 'load' });
    await page.waitForSelector('.choice input');
    await page.evaluate((models) => {
      for (const box of document.querySelectorAll('.choices input')) if (box.checked !== models.includes(box.value)) box.click();
    }, MODELS);
    await page.type('#panel-playground form > .field:nth-of-type(2) textarea', 'duxe');
    await page.evaluate(() => document.querySelector('#panel-playground form').requestSubmit());
    await page.waitForFunction(() => document.querySelector('#status').textContent.includes('answers are complete'));
    const text = await page.evaluate((fixed) => {
      document.activeElement.blur();
      for (const [place, pane] of [...document.querySelectorAll('.pane')].entries()) {
        for (const fact of pane.querySelectorAll('.facts div')) {
          const values = fixed[fact.firstChild.textContent];
          if (values) fact.lastChild.textContent = values[place];
        }
      }
      window.scrollTo(0, 0);
      return document.body.innerText;
    }, FIXED);
    await page.screenshot({ path: path.join(folder, `page-${theme}.png`) });
    fs.writeFileSync(path.join(folder, 'page.txt'), text);
    await page.close();
  }
} finally {
  await browser.close();
}
