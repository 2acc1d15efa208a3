#!/usr/bin/env node
// Writes tests/parquet/*.parquet, for the reader's tests, by two other implementations of the format: Rust's (npm's parquet-wasm)
// and hyparquet-writer; and rows.jsonl, which has the rows of all of them. Also tests/data/chat/*.parquet, conversations in structs and
// lists, in columns of strings, and of dates, times and maps, with the same records in lines of JSON.
//
// usage: mkdir -p build/parquet && cp tests/oracles/parquet/package.json build/parquet/ && npm install --prefix build/parquet
//        tests/oracles/parquet.mjs [PACKAGES]     PACKAGES: build/parquet/node_modules
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..')
const packages = path.resolve(process.argv[2] ?? path.join(root, 'build/parquet/node_modules'))
const require = createRequire(path.join(packages, 'x.js'))
const arrow = require('apache-arrow')
const wasm = require('parquet-wasm')
const hyparquet = await import(pathToFileURL(path.join(packages, 'hyparquet-writer/src/index.js')))
const folder = path.join(root, 'tests/parquet')

const kRows = 120
const words = ['alpha', 'beta', 'γάμμα', 'delta', '', 'zwölf', '🦜', 'eta']
const rows = []
for (let i = 0; i < kRows; ++i) {
  rows.push({
    text: i % 11 === 3 ? '' : `row ${i} ${words[i % 8]} ` + 'x'.repeat((i * 37) % 150),
    number: i * 3,
    few: words[(i * 5) % 7],
    list: Array.from({ length: i % 4 }, (_, k) => `${words[(i + k) % 8]} ${k} of ${i}`),
    meta: { title: `t${i}`, body: `body ${words[(i * 3) % 8]}` },
    holes: i % 9 === 4 ? null : `h${i}`,
    listHoles: i % 9 === 4 ? null : i % 9 === 7 ? ['a', null] : [`l${i}`],
  })
}
fs.writeFileSync(path.join(folder, 'rows.jsonl'), rows.map((row) => JSON.stringify(row) + '\n').join(''))

const utf8 = new arrow.Utf8()
const list = new arrow.List(new arrow.Field('item', utf8, true))
const meta = new arrow.Struct([new arrow.Field('title', utf8, true), new arrow.Field('body', utf8, false)])
const column = (name, type) => arrow.vectorFromArray(rows.map((row) => row[name]), type)
const table = new arrow.Table({
  text: column('text', utf8),
  number: column('number', new arrow.Int32()),
  few: column('few', utf8),
  list: column('list', list),
  meta: column('meta', meta),
  holes: column('holes', utf8),
  listHoles: column('listHoles', list),
})

// Small pages and row groups, so that there are several of both.
function writeRust(name, codec, options = {}, written = table, to = folder) {
  let builder = new wasm.WriterPropertiesBuilder()
    .setCompression(wasm.Compression[codec])
    .setWriterVersion(options.v2 ? wasm.WriterVersion.V2 : wasm.WriterVersion.V1)
    .setMaxRowGroupSize(50)
    .setDataPageSizeLimit(600)
    .setDictionaryPageSizeLimit(600)
    .setWriteBatchSize(8)
    .setDictionaryEnabled(options.dictionary ?? true)
  if (options.encoding !== undefined)
    for (const path of ['text', 'few', 'list.list.item', 'meta.body', 'meta.title', 'holes', 'listHoles.list.item'])
      builder = builder.setColumnEncoding(path, wasm.Encoding[options.encoding])
  const stream = wasm.Table.fromIPCStream(arrow.tableToIPC(written, 'stream'))
  fs.writeFileSync(path.join(to, name + '.parquet'), wasm.writeParquet(stream, builder.build()))
}
for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD', 'LZ4_RAW']) {
  writeRust(`rust_v1_${codec.toLowerCase()}`, codec)
  writeRust(`rust_v2_${codec.toLowerCase()}`, codec, { v2: true })
}
writeRust('rust_v1_plain', 'ZSTD', { dictionary: false })
writeRust('rust_v2_plain', 'ZSTD', { v2: true, dictionary: false, encoding: 'PLAIN' })
writeRust('rust_v1_delta_length', 'SNAPPY', { dictionary: false, encoding: 'DELTA_LENGTH_BYTE_ARRAY' })
writeRust('rust_v2_delta', 'UNCOMPRESSED', { v2: true, dictionary: false, encoding: 'DELTA_BYTE_ARRAY' })

// The text columns alone: of the rest it has other schemas.
for (const codec of ['UNCOMPRESSED', 'SNAPPY']) {
  const buffer = hyparquet.parquetWriteBuffer({
    columnData: ['text', 'few', 'holes'].map((name) => ({ name, data: rows.map((row) => row[name]), type: 'STRING' })),
    codec,
    rowGroupSize: 50,
    pageSize: 500,
  })
  fs.writeFileSync(path.join(folder, `hyparquet_${codec.toLowerCase()}.parquet`), Buffer.from(buffer))
}

// Conversations. What a record has not is null in the table; the content of a turn is there in every record.
const chats = path.join(root, 'tests/data/chat')
const field = (name, type, nullable = true) => new arrow.Field(name, type, nullable)
const struct = (...fields) => new arrow.Struct(fields)
const listOf = (type) => new arrow.List(field('item', type))
const call = struct(field('id', utf8), field('function', struct(field('name', utf8), field('arguments', struct(field('place', utf8), field('days', new arrow.Int32()))))))
const turn = struct(field('role', utf8, false), field('content', utf8), field('tool_calls', listOf(call)), field('seconds', new arrow.Float64()), field('learn', new arrow.Bool()), field('number', new arrow.Int64()))
const types = {
  messages: listOf(turn),
  tools: listOf(struct(field('name', utf8), field('grid', listOf(listOf(new arrow.Int32()))))),
  chat_template_kwargs: struct(field('style', utf8), field('warmth', new arrow.Float32())),
  id: new arrow.Int32(),
}
function conversation(i) {
  const messages = []
  for (let k = 0; k < 1 + (i % 5); ++k) {
    const content = `${words[(i + k) % 8]} ${i}.${k} ` + 'z'.repeat((i * 11 + k * 31) % 90)
    messages.push({ role: k % 2 === 0 ? 'user' : 'assistant', content })
    if ((i + k) % 3 === 0) messages[k].seconds = i + k / 4 + 0.125
    if ((i + k) % 4 === 1) messages[k].learn = k % 3 === 0
    if ((i + k) % 5 === 2) messages[k].number = (i * 1000003 - 1e12) * (k % 2 === 0 ? 1 : -1)
  }
  if (i % 6 === 5) {
    const calls = Array.from({ length: i % 3 }, (_, k) => ({ id: `c${k}`, function: { name: 'w', arguments: k === 0 ? { place: `p${i}` } : { days: k - i } } }))
    messages.push({ role: 'assistant', content: null, tool_calls: calls })
  }
  const record = { messages }
  if (i % 4 === 0) record.tools = i % 8 === 0 ? [] : [{ name: 'w', grid: [[1, i], [], [-i]] }, { name: 'v' }]
  if (i % 7 === 3) record.chat_template_kwargs = { style: words[i % 8], warmth: i + 0.5 }
  record.id = i
  return record
}
const records = Array.from({ length: 90 }, (_, i) => conversation(i))
fs.writeFileSync(path.join(chats, 'records.jsonl'), records.map((record) => JSON.stringify(record) + '\n').join(''))
// The value with a null for what each struct lacks, and 64-bit integers as apache-arrow wants them.
function filled(value, type) {
  if (value === undefined || value === null) return null
  if (arrow.DataType.isList(type)) return value.map((item) => filled(item, type.children[0].type))
  if (arrow.DataType.isStruct(type)) return Object.fromEntries(type.children.map((of) => [of.name, filled(value[of.name], of.type)]))
  return arrow.DataType.isInt(type) && type.bitWidth === 64 ? BigInt(value) : value
}
const whole = new arrow.Table(Object.fromEntries(Object.entries(types).map(([name, type]) => [name, arrow.vectorFromArray(records.map((record) => filled(record[name], type)), type)])))
writeRust('records_v1', 'SNAPPY', {}, whole, chats)
writeRust('records_v1_plain', 'UNCOMPRESSED', { dictionary: false }, whole, chats)
writeRust('records_v2', 'ZSTD', { v2: true, dictionary: false }, whole, chats)

const questions = Array.from({ length: 40 }, (_, i) => ({ question: `q ${i} ${words[i % 8]}`, ...(i % 3 === 0 ? { context: `c ${i}` } : {}), answer: `a ${i}` + words[(i * 3) % 8] }))
fs.writeFileSync(path.join(chats, 'questions.jsonl'), questions.map((record) => JSON.stringify(record) + '\n').join(''))
const columns = ['question', 'context', 'answer'].map((name) => ({ name, data: questions.map((record) => record[name] ?? null), type: 'STRING' }))
fs.writeFileSync(path.join(chats, 'questions_hyparquet.parquet'), Buffer.from(hyparquet.parquetWriteBuffer({ columnData: columns, rowGroupSize: 15, pageSize: 300 })))

// Numbers without a sign, dates, timestamps and maps. What they are as JSON: dates and times as Python's isoformat() has them.
const typed = []
const iso = (ms, micros = 0) => {
  const text = new Date(ms).toISOString()
  const fraction = text.slice(20, 23) + String(micros).padStart(3, '0')
  return text.slice(0, 19) + (fraction === '000000' ? '' : '.' + fraction)
}
const kDay = 86400000
const kSpan = Date.UTC(9999, 11, 31) / kDay
for (let i = 0; i < 60; ++i) {
  const day = i % 10 === 0 ? [-719162, -1, 0, 59, 11016, kSpan][i / 10] : ((i * 7919) % 40000) - 20000
  const ms = day * kDay + ((i * 7654321) % kDay) * (i % 4 === 0 ? 0 : 1)
  const number = i % 3 === 0 ? 4294967295 - i : i
  const record = { id: i, small: 255 - i, number, large: i % 2 === 0 ? 2 ** 52 + i : i, day, ms, us: Math.min(ms, 4e12 + 57) } // apache-arrow has microseconds up to 2^53
  if (i % 5 !== 1) record.counts = Object.fromEntries(Array.from({ length: i % 4 }, (_, k) => [`k${k}${words[(i + k) % 8]}`, (i + k) % 6 === 5 ? null : i - k]))
  if (i % 5 !== 2) record.notes = Array.from({ length: i % 3 }, (_, k) => ({ at: ms + k, tags: k === 0 ? { [words[i % 7]]: [`t${i}`, ''] } : {} }))
  typed.push(record)
}
const asText = (record) => ({
  ...record,
  day: iso(record.day * kDay).slice(0, 10),
  ms: iso(record.ms),
  us: iso(record.us) + '+00:00',
  ...(record.notes ? { notes: record.notes.map((note) => ({ ...note, at: iso(note.at) + '+00:00' })) } : {}),
})
fs.writeFileSync(path.join(chats, 'typed.jsonl'), typed.map((record) => JSON.stringify(asText(record)) + '\n').join(''))
const mapOf = (type) => new arrow.Map_(field('entries', struct(field('key', utf8, false), field('value', type)), false))
const note = struct(field('at', new arrow.TimestampMillisecond('UTC')), field('tags', mapOf(listOf(utf8))))
const typedColumns = {
  id: [new arrow.Uint16(), (v) => v],
  small: [new arrow.Uint8(), (v) => v],
  number: [new arrow.Uint32(), (v) => v],
  large: [new arrow.Uint64(), BigInt],
  day: [new arrow.DateDay(), (v) => new Date(v * kDay)],
  ms: [new arrow.TimestampMillisecond(), (v) => v],
  us: [new arrow.TimestampMicrosecond('UTC'), (v) => v],
  counts: [mapOf(new arrow.Int32()), (v) => v && new Map(Object.entries(v))],
  notes: [listOf(note), (v) => v && v.map((n) => ({ at: n.at, tags: new Map(Object.entries(n.tags)) }))],
}
const typedTable = new arrow.Table(Object.fromEntries(Object.entries(typedColumns).map(([name, [type, of]]) => [name, arrow.vectorFromArray(typed.map((record) => of(record[name] ?? null)), type)])))
writeRust('typed_v1', 'SNAPPY', {}, typedTable, chats)
writeRust('typed_v2', 'ZSTD', { v2: true, dictionary: false }, typedTable, chats)
