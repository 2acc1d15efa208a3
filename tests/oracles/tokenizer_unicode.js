#!/usr/bin/env node
// What Hugging Face's tokenizers library makes of every code point by itself, as one number a property, for
// tests/tokenizer/unicode_test.cpp. The library is npm's package tokenizers@0.23.2, the Rust library itself:
//   npm install tokenizers@0.23.2 && NODE_PATH=node_modules tests/oracles/tokenizer_unicode.js > tests/tokenizer/unicode.json
// A set of code points counts as a byte 0 or 1 for each from 0 to U+10FFFF, surrogates 0; a mapping as the UTF-8 of what
// each code point but the surrogates becomes, each followed by a byte 0; scripts as a byte a code point, their numbers from 1 in the
// order of their first code points, 0 where no other script is a border. The number is the 32-bit FNV-1a hash of it all.
const {Tokenizer} = require('tokenizers');

function tokenizer(normalizer, preTokenizer) {
  return Tokenizer.fromString(JSON.stringify({
    version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer, pre_tokenizer: preTokenizer,
    post_processor: null, decoder: null, model: {type: 'WordLevel', vocab: {a: 0}, unk_token: 'a'}}));
}

const all = [];
for (let c = 0; c < 0x110000; ++c) if (c < 0xD800 || c > 0xDFFF) all.push(c);
const everything = all.map((c) => String.fromCodePoint(c)).join('');

function fnv(bytes, hash = 0x811C9DC5) {
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

function matched(pattern) {
  const splitter = tokenizer(null, {type: 'Split', pattern: {Regex: pattern}, behavior: 'Removed', invert: false}).getPreTokenizer();
  const set = new Uint8Array(0x110000);
  for (const c of all) set[c] = 1;
  for (const [piece] of splitter.preTokenizeString(everything)) for (const c of piece) set[c.codePointAt(0)] = 0;
  return fnv(set);
}

// Code points for which `test` holds of the pieces of "a", the code point, "b".
function split(preTokenizer, test) {
  const splitter = tokenizer(null, preTokenizer).getPreTokenizer();
  const set = new Uint8Array(0x110000);
  for (const c of all) set[c] = test(splitter.preTokenizeString('a' + String.fromCodePoint(c) + 'b').map((p) => p[0])) ? 1 : 0;
  return fnv(set);
}

function mapped(normalizer) {
  const n = tokenizer(normalizer, null).getNormalizer();
  let hash = 0x811C9DC5;
  for (const c of all) hash = fnv(Buffer.from(n.normalizeString(String.fromCodePoint(c)) + '\0'), hash);
  return hash;
}

// Scripts have no names here: those of one script are what is in one word with a code point of it.
function scripts() {
  const splitter = tokenizer(null, {type: 'UnicodeScripts'}).getPreTokenizer();
  const joined = (first, list) => {
    const set = new Set();
    for (let i = 0; i < list.length; i += 20000) {
      const part = list.slice(i, i + 20000);
      const begins = new Set(splitter.preTokenizeString(part.map((c) => first + String.fromCodePoint(c)).join('')).map(([, [begin]]) => begin));
      part.forEach((c, k) => { if (!begins.has(2 * k + 1)) set.add(c); });
    }
    return set;
  };
  const han = joined('\u4E00', all);
  const any = new Set([...joined('a', all)].filter((c) => han.has(c)));
  const number = new Uint8Array(0x110000);
  let rest = all.filter((c) => !any.has(c));
  for (let n = 1; rest.length > 0; ++n) {
    const set = joined(String.fromCodePoint(rest[0]), rest);
    for (const c of set) number[c] = n;
    rest = rest.filter((c) => !set.has(c));
  }
  return fnv(number);
}

const result = {};
const categories = 'Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn';
for (const name of categories.split(' ')) result[name] = matched(`\\p{${name}}`);
result.white_space = matched('\\s');
result.word = split({type: 'Whitespace'}, (p) => p.length === 1);
result.numeric = split({type: 'Digits', individual_digits: true}, (p) => p.length === 3);
result.old_punctuation = split({type: 'Punctuation', behavior: 'Isolated'}, (p) => p.length === 3);
result.scripts = scripts();
for (const type of ['NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents', 'Nmt']) result[type] = mapped({type});
const bert = {type: 'BertNormalizer', clean_text: false, handle_chinese_chars: false, strip_accents: false, lowercase: false};
result.bert_clean = mapped({...bert, clean_text: true});
result.bert_accents = mapped({...bert, strip_accents: true});
result.bert_chinese = mapped({...bert, handle_chinese_chars: true});
console.log(JSON.stringify(result, null, 1));
