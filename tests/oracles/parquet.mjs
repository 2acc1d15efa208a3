#!/usr/bin/env node
// Writes tests/parquet/*.parquet, for the reader's tests, by two other implementations of the format: Rust's (npm's parquet-wasm)
// and hyparquet-writer; and rows.jsonl, which has the rows of all of them.
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
function writeRust(name, codec, options = {}) {
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
  const stream = wasm.Table.fromIPCStream(arrow.tableToIPC(table, 'stream'))
  fs.writeFileSync(path.join(folder, name + '.parquet'), wasm.writeParquet(stream, builder.build()))
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
