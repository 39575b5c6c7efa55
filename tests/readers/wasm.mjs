// node wasm.mjs FOLDER FILE: the results of each file of ONNX by onnxruntime-web, which browsers run.
import * as ort from 'onnxruntime-web';
import fs from 'node:fs';

const [folder, file] = process.argv.slice(2);
const asked = JSON.parse(fs.readFileSync(file));
ort.env.wasm.numThreads = 1;
const tensor = (rows) => new ort.Tensor('int64', BigInt64Array.from(rows.flat().map(BigInt)), [rows.length, rows[0].length]);
const feeds = Object.fromEntries(Object.entries(asked.inputs).map(([name, rows]) => [name, tensor(rows)]));
const found = {};
for (const name of asked.files) {
  const session = await ort.InferenceSession.create(fs.readFileSync(`${folder}/onnx/${name}`), { executionProviders: ['wasm'] });
  found[name] = Array.from((await session.run(feeds)).last_hidden_state.data);
}
fs.writeFileSync(file, JSON.stringify(found));
