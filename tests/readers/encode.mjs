// node encode.mjs FOLDER FILE: FILE has batches of texts and the dtypes as JSON, and gets the results of each model.
import { AutoTokenizer, BertModel, LlamaForCausalLM, env } from '@huggingface/transformers';
import fs from 'node:fs';
import path from 'node:path';

const [folder, file] = process.argv.slice(2);
const asked = JSON.parse(fs.readFileSync(file));
env.allowRemoteModels = false;
env.localModelPath = path.dirname(folder) + '/';
const name = path.basename(folder);
const tokenizer = await AutoTokenizer.from_pretrained(name);
tokenizer.padding_side = asked.padding_side;
const found = {};
for (const dtype of asked.dtypes) {
  found[dtype] = [];
  const model = await { BertModel, LlamaForCausalLM }[asked.architecture].from_pretrained(name, { dtype });
  for (const texts of asked.batches) {
    const inputs = await tokenizer(texts, { padding: true });
    const result = asked.generate
      ? (await model.generate({ ...inputs, ...asked.generate })).tolist()
      : (await model(inputs)).last_hidden_state.tolist();
    found[dtype].push(JSON.parse(JSON.stringify(result, (_, value) => (typeof value === 'bigint' ? Number(value) : value))));
  }
}
fs.writeFileSync(file, JSON.stringify(found));
