#!/usr/bin/env node
// As tokenizer.cpp, of Hugging Face's library on one thread. usage: tokenizer.js PACKAGES TOKENIZER TEXTS
'use strict';
const fs = require('fs');
const [packages, file, texts] = process.argv.slice(2);
process.env.RAYON_NUM_THREADS = '1';
const {Tokenizer} = require(`${packages}/tokenizers`);
(async () => {
  const documents = fs.readFileSync(texts, 'utf8').split('\0').slice(0, -1);
  let begin = process.cpuUsage();
  const seconds = () => { const used = process.cpuUsage(begin); return (used.user + used.system) / 1e6; };
  const tokenizer = Tokenizer.fromFile(file);
  const loaded = seconds();
  begin = process.cpuUsage();
  let tokens = 0;
  for (let i = 0; i < documents.length; i += 64) {
    for (const e of await tokenizer.encodeBatch(documents.slice(i, i + 64), {addSpecialTokens: false})) tokens += e.getLength();
  }
  console.log(`${tokens} ${seconds().toFixed(4)} ${loaded.toFixed(4)}`);
})();
